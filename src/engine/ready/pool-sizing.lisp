(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; The number of workers of the ready engine that take events follows one rule, SIZE-POOL.
;;;;
;;;; As many workers as there are processors take events.  At each look, every half millisecond
;;;; while it is needed, the sentinel counts the available workers.  A worker that is blocked is not
;;;; available, and is replaced: the sentinel resumes a suspended one or makes another.  It adds as
;;;; many again as there are more blocked workers than lately, so bursts grow faster and faster.  A
;;;; free worker suspends itself if as many wait as there are processors, and half as many again as
;;;; were blocked or asleep lately; later it ends.  One worker a look suspends itself while no
;;;; worker waits and more than that run.
;;;;
;;;; A worker is blocked if it is at one request, or held up elsewhere, at two looks in a row, and
;;;; its thread sleeps.  If no processor is free, more workers would only wait for each other, and
;;;; for what the requests wait for: then the worker must have been there for 3 ms.  A worker that
;;;; has computed for 5 ms at its request is blocked as well.  While no worker waits, shorter sleeps
;;;; count too: if a processor is free, all workers are asleep but those that the other processors
;;;; can run; if none is, hardly fewer than before.
;;;;
;;;; Three facts come from the system, because without each of them the rule was measured to do
;;;; worse (see docs/decisions.md, "One rule for the pool"):
;;;;
;;;;   fact                              asked                       without it
;;;;   is a processor free: for most of  once in 4 ms, if no worker  handlers that ask a database on
;;;;   4 ms no thread waited for one     waits or some seem blocked  the same machine have ten times
;;;;                                                                 the threads, and are slower
;;;;   does this thread sleep, or wait   about one worker a look,    a thread that was denied a
;;;;   for a processor                   if some seem blocked        busy processor is replaced
;;;;   has it computed for long at this  about all of those, if      computing handlers make a
;;;;   request                           that one did not sleep      thread for each connection
;;;;
;;;; If the system does not tell the first, a processor is free if processors were idle for a while.
;;;;
;;;; While no worker was blocked lately, looks are seldom.  The first worker that seems blocked then
;;;; only makes the next looks follow closely.  During a collection of garbage, threads are blocked
;;;; for microseconds, and a thread resumed for each would take a processor from a request.

(defparameter *tick-microseconds* 500
  "The sentinel naps for this long between two looks while it may be needed.")

(defparameter *computing-microseconds* 5000
  "The worker of a request that has computed for longer counts as blocked.")

(defparameter *long-milliseconds* 3
  "While no processor is free, a worker that has been at one request for less does not count as
blocked.")

(defparameter *watch-looks* 10
  "For this number of looks after a worker was missing the sentinel naps for one tick at most.")

(defparameter *idle-looks* 100
  "After this number of looks, at all of which a worker waited and none was blocked, the sentinel
waits until a worker wakes it.  That costs the worker more than several looks.")

(defstruct (controller (:include opaque)
                       (:constructor make-controller
                           (processors last-processor-count decisions)))
  "The data that the sentinel of a ready engine keeps from look to look."
  (processors 1 :type fixnum)
  (looks-without-need 0 :type fixnum)   ; since a worker was missing, or seemed blocked
  (idle-looks 0 :type fixnum)           ; since no worker waited, or one was blocked
  (blocked-lately 0 :type real)         ; how many workers were blocked lately, and how many were
  (asleep-lately 0 :type real)          ; blocked or asleep
  (free-p t)                            ; see PROCESSOR-FREE-P
  (total 0 :type integer)               ; what the system counted when that was decided, and the
  (time-asked 0 :type fixnum)           ; time in MICROSECONDS
  (last-housekeeping 0 :type fixnum)    ; of deadlines, in MILLISECONDS
  (last-processor-count 0 :type fixnum) ; of processors, likewise
  (decisions nil :type (simple-array fixnum (*)) :read-only t)) ; counters

(defun count-decision (controller decision)
  "Counts DECISION, one of *DECISIONS*."
  (incf (aref (controller-decisions controller) (position decision *decisions*))))

;;; The rule

(defun faded (lately slowly-p)
  "What is left of LATELY, the number of workers that were blocked lately, at the next look: half of
it is forgotten in 11 looks, or in 177 if SLOWLY-P."
  (let ((left (* lately (if slowly-p (float 255/256) (float 15/16)))))
    (if (< left 1/2) 0 left)))

(defun size-pool (&key waiting active blocked asleep free-p floor processors
                       blocked-lately asleep-lately)
  "Returns four values: how many workers are missing, whether one worker too many runs, and how many
were blocked, and asleep, lately.  Of the ACTIVE workers, WAITING wait for events, BLOCKED are
blocked, and at least ASLEEP sleep, however briefly.  FREE-P is true if a processor is free; if none
is while no worker waits, it is not known how many sleep briefly, and the numbers of lately fade
slowly.  FLOOR workers are to be available at rest, up to PROCESSORS under load.  BLOCKED-LATELY and
ASLEEP-LATELY are the last values of the last look."
  (let* ((slowly-p (and (zerop waiting) (not free-p)))
         (unavailable (max blocked asleep))
         (available (- active unavailable))
         (most-asleep (max unavailable (faded asleep-lately slowly-p))))
    (values (cond ((< available floor)
                   (+ (- floor available) (max 0 (- blocked (round blocked-lately)))))
                  ((and (zerop waiting) (< available processors)) 1)
                  (t 0))
            (and (zerop waiting)
                 (> active (+ 1 (enough-workers processors most-asleep))))
            (max blocked (faded blocked-lately slowly-p))
            most-asleep)))

(defun enough-workers (free blocked)
  "The number of workers that are enough to have FREE ones while BLOCKED or so are blocked."
  (+ free (ceiling (* 3/2 blocked))))

;;; Observations of the sentinel

(defparameter *stall-microseconds* 4000
  "The waits of threads for processors are measured over this time at least.")

(defparameter *idle-microseconds* 40000
  "The idle time of processors is measured over this time at least: four steps of its counter.")

(defun processor-free-p (controller)
  "True if for most of the last few milliseconds no thread of the system had to wait for a
processor.  Where the system does not tell, true if processors were idle for a quarter of the last
time."
  (let* ((now (microseconds))
         (elapsed (- now (controller-time-asked controller))))
    (flet ((since (total)
             (- total (controller-total controller)))
           (know (free-p total)
             (setf (controller-free-p controller) free-p
                   (controller-total controller) total
                   (controller-time-asked controller) now)))
      (when (>= elapsed *stall-microseconds*)
        (let ((stall (processor-stall)))
          (cond (stall
                 (know (< (* 2 (since stall)) elapsed) stall))
                ((>= elapsed *idle-microseconds*)
                 (let ((idle (processor-idle-time)))
                   (know (>= (* 4 (since idle)) elapsed) idle)))))))
    (controller-free-p controller)))

(defun computed-for-long-p (worker)
  "True if WORKER has computed for long at its request, counted from the first question about that.
Time in which its thread waited for a processor does not count."
  (let ((stamp (ready-worker-stamp worker))
        (run-time (thread-run-time (ready-worker-identity worker))))
    (unless (= stamp (ready-worker-asked-stamp worker))
      (setf (ready-worker-asked-stamp worker) stamp
            (ready-worker-run-time worker) run-time))
    (> (- run-time (ready-worker-run-time worker)) *computing-microseconds*)))

(defun look-at-workers (engine controller tick)
  "The observations of the sentinel of ENGINE at TICK, a plist for SIZE-POOL.  The second value is
true if some workers seem blocked and the next look is to decide."
  (let* ((pool (engine-pool-state engine))
         (waiting (counter-count (pool-state-waiting pool)))
         (active 0) (blocked 0) (suspects '()))
    (declare (type fixnum active blocked))
    (dolist (worker (engine-workers engine))
      (when (member (worker-state worker) '(:active :starting))
        (incf active)
        (let ((since (ready-worker-stamp worker)))
          (cond ((zerop since))
                ((= since (ready-worker-blocked-stamp worker)) (incf blocked))
                ((> (- tick since) 1) (push worker suspects)))))) ; at two looks
    (let* ((free-p (or (and (null suspects) (plusp waiting)) ; no matter
                       (processor-free-p controller)))
           (long (- (pool-state-clock pool) *long-milliseconds*))
           (candidates (if free-p
                           suspects
                           (remove-if (lambda (worker) (< long (ready-worker-begun worker)))
                                      suspects)))
           (one (and candidates (nth (random (length candidates)) candidates)))
           (found (if (and one (eq :blocked (thread-state (ready-worker-identity one))))
                      candidates        ; the thread of one answers for all
                      (remove-if-not #'computed-for-long-p suspects)))
           (asleep (if (and free-p (zerop waiting))
                       (max 0 (- active (1- (online-processors))))
                       0))
           (doubt-p (pool-state-calm-p pool)))
      (unless doubt-p
        (dolist (worker found)
          (setf (ready-worker-blocked-stamp worker) (ready-worker-stamp worker))))
      (values (list :waiting waiting
                    :active active
                    :blocked (if doubt-p blocked (+ blocked (length found)))
                    :asleep (if doubt-p 0 asleep)
                    :free-p free-p)
              (and doubt-p (or found (> asleep blocked)) t)))))

;;; One look

(defun long-naps-p (controller)
  "True if no worker was missing for some time."
  (>= (controller-looks-without-need controller) *watch-looks*))

(defun add-workers (engine controller count)
  "Has COUNT more workers of ENGINE wait on the ready set: suspended ones first, then new ones."
  (let ((resumed (resume-workers engine count))
        (made-before (engine-made engine)))
    (when (plusp resumed)
      (count-decision controller :resume))
    (make-workers engine (lambda (engine)
                           (and (serving-p engine) (room-p engine) (may-launch-p engine)))
                  (- count resumed))
    (when (> (engine-made engine) made-before)
      (count-decision controller :launch))))

(defun adjust-pool (engine controller)
  "Looks at the workers of ENGINE, and adds or suspends workers as SIZE-POOL says.  Returns
:NEEDED if a worker is missing that may be added, or one seemed blocked; :BUSY if no worker waits or
some are blocked; else NIL."
  (let* ((pool (engine-pool-state engine))
         (tick (incf (pool-state-tick pool)))
         (floor (pool-state-floor pool)))
    (setf (pool-state-clock pool) (milliseconds))
    (multiple-value-bind (look suspect-p) (look-at-workers engine controller tick)
      (multiple-value-bind (missing excess-p blocked-lately asleep-lately)
          (apply #'size-pool :floor floor :processors (controller-processors controller)
                             :blocked-lately (controller-blocked-lately controller)
                             :asleep-lately (controller-asleep-lately controller) look)
        (let* ((limit (engine-thread-limit engine))
               ;; Below 0 if the limit was lowered and more than that take events.
               (places (if limit
                           (- limit (worker-count engine :active :starting))
                           most-positive-fixnum))
               (excess (max (if excess-p 1 0) (- places))))
          (setf (controller-blocked-lately controller) blocked-lately
                (controller-asleep-lately controller) asleep-lately
                (pool-state-target pool) (enough-workers floor asleep-lately)
                (pool-state-excess pool) excess
                (pool-state-calm-p pool) (and (zerop asleep-lately) (long-naps-p controller)))
          (when (plusp excess)
            (count-decision controller (if excess-p :suspend :limit)))
          (when (plusp missing)
            (add-workers engine controller (max 0 (min missing places)))
            (accept-overflow engine controller))
          (cond ((or suspect-p (and (plusp missing) (> places missing))) :needed)
                ((or (plusp missing) (plusp asleep-lately) (not (somebody-waits-p engine)))
                 :busy)))))))
