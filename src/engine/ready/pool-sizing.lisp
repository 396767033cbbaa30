(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; The number of workers of the ready engine that take events follows one rule, SIZE-POOL.
;;;;
;;;; As many workers as there are processors take events.  At each look, every half millisecond
;;;; while it is needed, the sentinel counts the available workers.  A worker that has been on one
;;;; request, or held up elsewhere, since the last look but one is blocked, and not available,
;;;; unless its thread merely waits for a processor.  While no worker waits for events, and requests
;;;; block for less than a look, workers that serve are not available either.  For each missing
;;;; worker the sentinel resumes a suspended one or makes another.  It adds as many again as there
;;;; are more blocked workers than lately, so bursts grow by powers.  A free worker suspends itself
;;;; if as many wait as there are processors, and half as many again as were blocked lately; later
;;;; it ends.  One worker a look suspends itself while no worker waits and more than that run.
;;;;
;;;; Three facts come from the system, because without each of them the rule was measured to do
;;;; worse (see docs/decisions.md, "One rule for the pool"):
;;;;
;;;;   fact                              asked                       without it
;;;;   does this thread sleep, or wait   about one worker a look,    a thread that was denied a
;;;;   for a processor                   if some seem blocked        busy processor is replaced
;;;;   has it computed for long at this  about all of those, if      computing handlers make a
;;;;   request                           that one did not sleep      thread for each connection
;;;;   how many threads went to sleep    once a look                 handlers of 0.3 ms have as
;;;;   of their own since the last look                              many threads as processors
;;;;
;;;; If /proc does not give the first, a thread that used no processor since the last look counts as
;;;; asleep.
;;;;
;;;; While no worker was blocked lately, looks are seldom.  The first worker that seems blocked then
;;;; only makes the next looks follow closely.  During a collection of garbage, threads are blocked
;;;; for microseconds, and a thread resumed for each would take a processor from a request.

(defparameter *tick-microseconds* 500
  "The sentinel naps for this long between two looks while it may be needed.")

(defparameter *computing-microseconds* 5000
  "The worker of a request that has computed for longer counts as blocked.")

(defparameter *watch-looks* 10
  "For this number of looks after a worker was missing the sentinel naps for one tick at most.")

(defparameter *idle-looks* 100
  "After this number of looks, at all of which a worker waited and none was blocked, the sentinel
waits until a worker wakes it.  That costs the worker more than several looks.")

(defstruct (controller (:include opaque)
                       (:constructor make-controller
                           (processors &optional (last-processor-count 0)
                                         (decisions (make-decision-counters)))))
  "The data that the sentinel of a ready engine keeps from look to look."
  (processors 1 :type fixnum)
  (switches 0 :type fixnum)             ; VOLUNTARY-SWITCHES at the last look
  (last-look 0 :type fixnum)            ; when that was, in MICROSECONDS
  (turns 0 :type fixnum)                ; of all workers, at the last look
  (looks-without-need 0 :type fixnum)   ; since a worker was missing, or seemed blocked
  (idle-looks 0 :type fixnum)           ; since no worker waited, or one was blocked
  (last-housekeeping 0 :type fixnum)    ; of deadlines, in MILLISECONDS
  (last-processor-count 0 :type fixnum) ; of processors, likewise
  (work-done 0 :type integer)           ; see SAMPLE-WAIT-WHEN-BUSY
  (decisions nil :type (simple-array fixnum (*)) :read-only t)) ; counters

;;; Counters

(defparameter *decisions*
  '(:resume :launch :suspend :limit :accept-overflow :short-nap :long-nap :idle-wait)
  "The decisions of the sentinel at a look: to resume or to make workers; to have one suspended
because too many run, or because the limit was lowered; to accept connections itself, only to
refuse or park them; and how to rest.")

(defun make-decision-counters ()
  "A vector of zeros, one for each of *DECISIONS*.  The sentinel alone writes it."
  (make-array (length *decisions*) :element-type 'fixnum :initial-element 0))

(defun count-decision (controller decision)
  "Counts DECISION, one of *DECISIONS*."
  (incf (aref (controller-decisions controller) (position decision *decisions*))))

(defun decision-counts (counters)
  "A plist of *DECISIONS* and the number of times that each was made, from COUNTERS."
  (loop for decision in *decisions*
        for count across counters
        collect decision
        collect count))

;;; The rule

(defun size-pool (&key waiting active blocked brief floor processors lately)
  "Returns three values: how many workers are missing, whether one worker too many runs, and how
many were blocked lately.  Of the ACTIVE workers, WAITING wait for events and BLOCKED are
blocked; BRIEF more are blocked while none waits.  FLOOR workers are to be available at rest, up
to PROCESSORS under load.  LATELY is the third value of the last look."
  (let* ((blocked (if (zerop waiting) (+ blocked brief) blocked))
         (available (- active blocked))
         (most (max blocked (- lately (ceiling lately 16)))))
    (values (cond ((< available floor) (+ (- floor available) (max 0 (- blocked lately))))
                  ((and (zerop waiting) (< available processors)) 1)
                  (t 0))
            (and (zerop waiting)
                 (> active (+ 1 (enough-workers processors most))))
            most)))

(defun enough-workers (free blocked)
  "The number of workers that are enough to have FREE ones while BLOCKED or so are blocked."
  (+ free blocked (ceiling blocked 2)))

;;; Observations of the sentinel

(defun computed-microseconds (worker since)
  "Returns for how long WORKER has computed at the request that it began at the tick SINCE,
counted from the first question about that; and for how long since the last question.  Time in
which its thread waited for a processor does not count."
  (let ((run-time (thread-run-time (ready-worker-identity worker))))
    (unless (= since (ready-worker-asked-stamp worker))
      (setf (ready-worker-asked-stamp worker) since
            (ready-worker-run-time worker) run-time
            (ready-worker-latest-run-time worker) run-time))
    (values (- run-time (ready-worker-run-time worker))
            (- run-time (shiftf (ready-worker-latest-run-time worker) run-time)))))

(defun asleep-p (worker)
  "True if the thread of WORKER waits for anything but a processor."
  (case (with-acquired (status (open-thread-status (ready-worker-identity worker))
                               (when status
                                 (close-descriptor status)))
          (and status (thread-state status)))
    (:blocked t)
    (:running nil)
    (t (zerop (nth-value 1 (computed-microseconds worker (busy-since worker)))))))

(defun computed-for-long-p (worker)
  "True if WORKER has computed for long at its request."
  (> (computed-microseconds worker (busy-since worker)) *computing-microseconds*))

(defun briefly-asleep (controller turns now)
  "Estimates how many threads are asleep for less than a look: the number that went to sleep of
their own in three ticks, at the rate since the last look.  Returns 0 if fewer did so than half
of the requests and events that workers began, TURNS in all so far, because requests do not block
then; or if the system does not count.  NOW is in MICROSECONDS."
  (let* ((switches (voluntary-switches))
         ;; One of them is the sentinel's own nap.
         (latest (max 0 (- switches (shiftf (controller-switches controller) switches) 1)))
         (begun (- turns (shiftf (controller-turns controller) turns)))
         (elapsed (- now (shiftf (controller-last-look controller) now))))
    (if (>= (* 2 latest) begun)
        (ceiling (* latest 3 *tick-microseconds*) (max elapsed *tick-microseconds*))
        0)))

(defun classify-workers (engine tick)
  "Returns how many workers of ENGINE are at the ready set, or soon will be; how many of them
were found blocked before; how many have served for less than a look; and a list of those that
seem blocked at TICK, because they were on the same request at two looks."
  (let ((active 0) (blocked 0) (serving 0) (suspects '()))
    (declare (type fixnum active blocked serving))
    (dolist (worker (engine-workers engine))
      (when (member (worker-state worker) '(:active :starting))
        (incf active)
        (let ((since (busy-since worker)))
          (cond ((zerop since))
                ((= since (ready-worker-blocked-stamp worker)) (incf blocked))
                ((> (- tick since) 1) (push worker suspects))
                ((plusp (ready-worker-stamp worker)) (incf serving))))))
    (values active blocked serving suspects)))

(defun blocked-suspects (suspects)
  "The workers of the list SUSPECTS that are blocked.  The thread of one answers for all."
  (cond ((null suspects) '())
        ((asleep-p (nth (random (length suspects)) suspects)) suspects)
        (t (remove-if-not #'computed-for-long-p suspects))))

(defun look-at-workers (engine controller tick)
  "The observations of the sentinel of ENGINE at TICK, a plist for SIZE-POOL.  The second value
is true if some workers seem blocked and the next look is to decide."
  (multiple-value-bind (active blocked serving suspects) (classify-workers engine tick)
    (let ((found (blocked-suspects suspects))
          (asleep (briefly-asleep controller
                                  (reduce #'+ (engine-workers engine) :key #'ready-worker-turns)
                                  (microseconds)))
          (doubt-p (pool-state-calm-p (engine-pool-state engine))))
      (unless doubt-p
        (dolist (worker found)
          (setf (ready-worker-blocked-stamp worker) (busy-since worker))))
      (values (list :waiting (counter-count (pool-state-waiting (engine-pool-state engine)))
                    :active active
                    :blocked (if doubt-p blocked (+ blocked (length found)))
                    :brief (min asleep (+ serving (- (length suspects) (length found)))))
              (and doubt-p found t)))))

;;; Fewer

(defun places-left (engine)
  "How many more workers of ENGINE may take events; below 0 if its thread limit was lowered and more
than that do."
  (let ((limit (engine-thread-limit engine)))
    (if limit
        (- limit (worker-count engine :active :starting))
        most-positive-fixnum)))

(defun apply-thread-limit (engine pool controller)
  "Has the workers suspended that exceed the thread limit of ENGINE, after it was lowered."
  (let ((excess (- (places-left engine))))
    (when (> excess (pool-state-excess pool))
      (count-decision controller :limit)
      (setf (pool-state-excess pool) excess))))

;;; More

(defun reserve-workers (engine count)
  "Makes up to COUNT workers of ENGINE, yet without threads; fewer if the limit is reached."
  (with-engine (engine)
    (loop repeat count
          while (and (serving-p engine) (room-p engine) (may-launch-p engine))
          collect (reserve-worker engine))))

(defun add-workers (engine controller count)
  "Has COUNT more workers of ENGINE wait on the ready set, or as many as its thread limit allows:
suspended ones first, then new ones."
  ;; After the limit was lowered, more workers are suspended than may be resumed.
  (let ((resumed (resume-workers engine (max 0 (min count (places-left engine))))))
    (when (plusp resumed)
      (count-decision controller :resume))
    (when (< resumed count)
      (let ((made-before (tally-made (engine-tally engine))))
        (uninterruptibly                ; as for those that are missing
          (launch-all engine (reserve-workers engine (- count resumed))))
        (when (> (tally-made (engine-tally engine)) made-before)
          (count-decision controller :launch))))))

(defun accept-overflow (engine controller)
  "Accepts connections when no worker may, only to refuse or park them, if connections are
limited."
  (unless (or (eq (engine-accept-limit engine) :unlimited)
              (not (engine-accepting-p engine))
              (not (all-serve-p engine)))
    (count-decision controller :accept-overflow)
    (accept-for-others engine)))

;;; One look

(defun adjust-pool (engine controller)
  "Looks at the workers of ENGINE, and adds or suspends workers as SIZE-POOL says.  Returns
:NEEDED if a worker is missing that may be added, or one seemed blocked; :BUSY if no worker waits or
some are blocked; else NIL."
  (let* ((pool (engine-pool-state engine))
         (tick (incf (pool-state-tick pool)))
         (floor (pool-state-floor pool)))
    (setf (pool-state-clock pool) (milliseconds))
    (multiple-value-bind (look suspect-p) (look-at-workers engine controller tick)
      (multiple-value-bind (missing excess-p lately)
          (apply #'size-pool :floor floor :processors (controller-processors controller)
                             :lately (pool-state-lately pool) look)
        (setf (pool-state-lately pool) lately
              (pool-state-target pool) (enough-workers floor lately)
              (pool-state-excess pool) (if excess-p 1 0)
              (pool-state-calm-p pool) (and (zerop lately) (long-naps-p controller)))
        (when excess-p
          (count-decision controller :suspend))
        (apply-thread-limit engine pool controller)
        (when (plusp missing)
          (add-workers engine controller missing)
          (accept-overflow engine controller))
        (cond ((or suspect-p (and (plusp missing) (plusp (places-left engine)))) :needed)
              ((or (plusp missing) (plusp lately) (not (somebody-waits-p engine))) :busy))))))

;;; How long to rest

(defun long-naps-p (controller)
  "True if no worker was missing for some time."
  (>= (controller-looks-without-need controller) *watch-looks*))

(defun decide-rest (engine controller found)
  "One of the last three of *DECISIONS*: how the sentinel of ENGINE rests after a look at which
ADJUST-POOL returned FOUND."
  (if (eq found :needed)
      (setf (controller-looks-without-need controller) 0)
      (incf (controller-looks-without-need controller)))
  (if found
      (setf (controller-idle-looks controller) 0)
      (incf (controller-idle-looks controller)))
  (cond ((draining-p engine) :long-nap) ; somebody waits for the end of it
        ((not (long-naps-p controller)) :short-nap)
        ((< (controller-idle-looks controller) *idle-looks*) :long-nap)
        (t :idle-wait)))
