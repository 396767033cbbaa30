(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; The sentinel of the ready engine.  At each look it sizes the pool, and rests.  A few times a
;;;; second it looks at all connections.
;;;;
;;;; The number of workers that take events follows one rule, SIZE-POOL.
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
  "The sentinel naps for this long between two looks while it may be needed, and for four times as
long when no worker was missing for some looks.")

(defparameter *computing-microseconds* 5000
  "The worker of a request that has computed for longer counts as blocked.")

(defparameter *long-microseconds* 3000
  "While no processor is free, a worker that has been at one request for less does not count as
blocked.")

(defparameter *stall-microseconds* 4000
  "The waits of threads for processors are measured over this time at least.")

(defparameter *idle-microseconds* 40000
  "The idle time of processors is measured over this time at least: four steps of its counter.")

(defparameter *watch-looks* 10
  "For this number of looks after a worker was missing the sentinel naps for one tick at most.")

(defparameter *idle-looks* 100
  "After this number of looks without need the sentinel waits for up to a tick until a worker wakes
it.  That costs the worker more than several looks.")

;;; The rule

(defun size-pool (&key waiting active blocked asleep free-p floor processors
                       blocked-lately asleep-lately)
  "Returns four values: how many workers are missing, whether one worker too many runs, and how many
were blocked, and asleep, lately.  Of the ACTIVE workers, WAITING wait for events, BLOCKED are
blocked, and at least ASLEEP sleep, however briefly.  FREE-P is true if a processor is free; if none
is while no worker waits, it is not known how many sleep briefly, and the numbers of lately fade
slowly.  FLOOR workers are to be available at rest, up to PROCESSORS under load.  BLOCKED-LATELY and
ASLEEP-LATELY are the last values of the last look."
  (flet ((faded (lately)                ; half of it is forgotten in 11 looks, or in 177 if slowly
           (let ((left (* lately (if (or free-p (plusp waiting)) (float 15/16) (float 255/256)))))
             (if (< left 1/2) 0 left))))
    (let* ((unavailable (max blocked asleep))
           (available (- active unavailable))
           (most-asleep (max unavailable (faded asleep-lately))))
      (values (cond ((< available floor)
                     (+ (- floor available) (max 0 (- blocked (round blocked-lately)))))
                    ((and (zerop waiting) (< available processors)) 1)
                    (t 0))
              (and (zerop waiting)
                   (> active (+ 1 (enough-workers processors most-asleep))))
              (max blocked (faded blocked-lately))
              most-asleep))))

(defun enough-workers (free blocked)
  "The number of workers that are enough to have FREE ones while BLOCKED or so are blocked."
  (+ free (ceiling (* 3/2 blocked))))

;;; One look

(defun processor-free-p (engine now)
  "True if for most of the last few milliseconds no thread of the system had to wait for a
processor.  Where the system does not tell, true if processors were idle for a quarter of the last
time."
  (let* ((elapsed (- now (engine-time-asked engine)))
         (stall (and (>= elapsed *stall-microseconds*) (processor-stall)))
         (total (or stall (and (>= elapsed *idle-microseconds*) (processor-idle-time)))))
    (when total
      (let ((since (- total (engine-total engine))))
        (setf (engine-free-p engine) (if stall (< (* 2 since) elapsed) (>= (* 4 since) elapsed))
              (engine-total engine) total
              (engine-time-asked engine) now)))
    (engine-free-p engine)))

(defun computed-for-long-p (worker)
  "True if WORKER has computed for long at its request, counted from the first question about that.
Time in which its thread waited for a processor does not count."
  (let ((stamp (worker-stamp worker))
        (run-time (thread-run-time (worker-identity worker))))
    (unless (= stamp (worker-asked-stamp worker))
      (setf (worker-asked-stamp worker) stamp
            (worker-run-time worker) run-time))
    (> (- run-time (worker-run-time worker)) *computing-microseconds*)))

(defun adjust-pool (engine)
  "Looks at the workers of ENGINE, and adds or suspends workers as SIZE-POOL says."
  (let* ((now (microseconds))
         (before (shiftf (engine-looked engine) now))
         (floor (min (engine-processors engine) (engine-standby engine)))
         (waiting (counter-count (engine-waiting engine)))
         (calm-p (engine-calm-p engine))
         (active 0) (blocked 0) (suspects '()))
    (declare (type fixnum active blocked))
    (dolist (worker (engine-workers engine))
      (when (member (worker-state worker) '(:active :starting))
        (incf active)
        (let ((since (worker-stamp worker)))
          (cond ((zerop since))
                ((= since (worker-blocked-stamp worker)) (incf blocked))
                ((<= since before) (push worker suspects)))))) ; at two looks
    (let* ((free-p (or (and (null suspects) (plusp waiting)) ; no matter
                       (processor-free-p engine now)))
           (candidates (if free-p
                           suspects
                           (remove-if (lambda (worker)
                                        (< (- now *long-microseconds*) (worker-stamp worker)))
                                      suspects)))
           (one (and candidates (nth (random (length candidates)) candidates)))
           (found (if (and one (eq :blocked (thread-state (worker-identity one))))
                      candidates        ; the thread of one answers for all
                      (remove-if-not #'computed-for-long-p suspects)))
           (asleep (if (and free-p (zerop waiting))
                       (max 0 (- active (1- (online-processors))))
                       0))
           (suspect-p (and calm-p (or found (> asleep blocked)))))
      (cond (calm-p                     ; the next looks are to decide
             (setf asleep 0))
            (t
             (dolist (worker found)
               (setf (worker-blocked-stamp worker) (worker-stamp worker)))
             (incf blocked (length found))))
      (multiple-value-bind (missing excess-p blocked-lately asleep-lately)
          (size-pool :waiting waiting :active active :blocked blocked :asleep asleep
                     :free-p free-p :floor floor :processors (engine-processors engine)
                     :blocked-lately (engine-blocked-lately engine)
                     :asleep-lately (engine-asleep-lately engine))
        ;; Below 0 if the limit was lowered and more than that take events.
        (let ((places (if (engine-thread-limit engine)
                          (- (engine-thread-limit engine) active)
                          most-positive-fixnum)))
          (setf (engine-blocked-lately engine) blocked-lately
                (engine-asleep-lately engine) asleep-lately
                (engine-target engine) (enough-workers floor asleep-lately)
                (engine-excess engine) (max (if excess-p 1 0) (- places))
                (engine-calm-p engine) (and (zerop asleep-lately)
                                            (>= (engine-looks engine) *watch-looks*))
                (engine-looks engine) (if (or suspect-p (< 0 missing places))
                                                  0
                                                  (1+ (engine-looks engine))))
          (when (plusp missing)
            (let ((count (max 0 (min missing places))))
              (make-workers engine #'room-p (- count (resume-workers engine count))))
            (accept-overflow engine)))))))

(defmethod look ((engine ready-engine))
  (when (zerop (engine-looked engine))  ; the first time
    (schedule-as-batch)
    (let-timers-be-late 100))           ; it has to see soon that workers are blocked
  (when (> (- (microseconds) (engine-housekept engine)) (* 1000000 *tick*))
    (setf (engine-housekept engine) (microseconds))
    (housekeep-connections engine)
    (clear-stack))                      ; a rest must keep no connection alive
  (adjust-pool engine)
  (cond ((not (and (>= (engine-looks engine) *idle-looks*)
                   (zerop (engine-asleep-lately engine))
                   (somebody-waits-p engine)))
         (nap (if (< (engine-looks engine) *watch-looks*)
                  *tick-microseconds*
                  (* 4 *tick-microseconds*))))
        (t
         ;; The last worker that waits first stops counting itself, and then reads SENTINEL-IDLE-P.
         ;; So all threads must see that slot before the count is read here; otherwise each might
         ;; miss the other's write.  An atomic instruction orders the two.
         (compare-and-set (engine-sentinel-idle-p engine) nil t)
         (rest-until-woken engine *tick*
                           (lambda ()   ; no thread has woken it by now
                             (not (and (engine-sentinel-idle-p engine) (somebody-waits-p engine)))))
         ;; If a worker has ended an idle wait, the next few looks follow closely, the first after
         ;; requests had time to block.
         (unless (compare-and-set (engine-sentinel-idle-p engine) t nil)
           (setf (engine-looks engine) 0)
           (nap *tick-microseconds*)))))

;;; Its look at all connections, twice a second
;;;
;;;   a connection that is                and                         is
;;;   parked, with output left            its peer is too slow        shut down, for a worker to
;;;                                                                   close
;;;   overdue, parked                     queued for a worker         left to the workers, however
;;;                                                                   long they are busy
;;;   overdue, parked, no output left     has input that no worker    queued for a worker
;;;                                       has looked at
;;;   overdue, parked                     waits for an answer         queued for a worker
;;;   overdue, parked                     the service gives notice    closed gently
;;;   overdue, parked                     otherwise                   closed
;;;   overdue, owned                      its owner waits for it      shut down, for its owner to
;;;                                                                   close
;;;   overdue, owned                      its handler has run too long  left to its service
;;;   idle when a drain is over                                       treated as overdue

(defun housekeep-connections (engine)
  "Ends the overdue connections of ENGINE, and those that idle when its drain is over, and does what
else is due twice a second."
  (let ((now (milliseconds)))
    (flet ((due-p (connection)
             (or (overdue-p connection now)
                 (and (drain-over-p engine now)
                      (not (unfinished-p connection)))))
           (late (connection)           ; why it is, if it is
             (and (overdue-p connection now) (connection-deadline-kind connection))))
      (map-connections
       (lambda (connection)
         (cond ((or (not (due-p connection)) (eq :turn (connection-awaiting connection))))
               ((eq :handler (late connection))
                (time-out-handler (engine-service engine) connection))
               ((end-parked engine connection (late connection) #'due-p))
               ;; A program's method may be waiting for its peer.  One that has just set a deadline
               ;; for the rest of a request is about to park.
               ((and (not (awaits-p connection :body :deferred))
                     (late connection)
                     (shut-if-owned connection (direction-to-end connection)))
                (count-late engine (connection-deadline-kind connection))
                (setf (connection-deadline connection) nil)))
         (when (and (connection-output connection)
                    (parked-p connection)
                    (taker-given-up-p (connection-queue connection) now))
           (give-output-up engine connection :write)))
       (engine-table engine))))
  (with-listener (engine)
    (if (getf (engine-troubles engine) :accept) ; which nobody learns to be over, else
        (queue-events engine (list (engine-listener-descriptor engine)))
        (rearm-listener engine)))
  (setf (engine-launch-failed-p engine) nil)
  (make-workers engine #'worker-missing-p))

(defun end-parked (engine connection kind ends-p)
  "Ends CONNECTION of ENGINE, and returns true, unless it has an owner.  A worker does so if an
answer is awaited.  KIND says why, a keyword as for COUNT-LATE, or NIL; ENDS-P, a function, whether
it is still to end.  One with input that no worker had time for is left to the workers."
  (as-owner (claim-parked connection)
    (cond ((not (funcall ends-p connection)) ; it was served meanwhile
           (requeue-connection engine connection))
          ((or (awaited-p connection)
               (and (not (unfinished-p connection))
                    (not (and (eq :evicted kind)
                              (input-kept-p (engine-service engine) connection)))
                    (not (virtual-connection-p connection))
                    (await-descriptor (connection-descriptor connection) :input
                                      :until (milliseconds))))
           (when (and (eq :evicted kind) (awaited-p connection))
             (give-output-up engine connection kind))
           (setf (connection-awaiting connection) :turn)
           (requeue-connection engine connection))
          (t
           (when kind
             (count-late engine kind))
           (finish-connection engine connection
                              (and (not (unfinished-p connection)) ; else it would land in an answer
                                   (setf (connection-deadline-kind connection)
                                         (or kind (connection-deadline-kind connection)))
                                   (ask engine nil #'give-notice connection)
                                   :close))))
    t))

;;; Connections that end because others need their descriptor or their memory

(defun give-output-up (engine connection kind)
  "Drops the output of CONNECTION at once, and counts that by KIND.  A worker closes it."
  (end-queue (connection-queue connection) t)
  (count-late engine kind))

(defun evict-connections (engine share rank)
  "Ends a SHARE, a rational, of those connections of ENGINE without an owner, or with output left,
for which RANK, a function, returns an integer, not NIL: the lowest first; of these, those without a
deadline, whose peers do not take their output; then those that would end first anyway.  Not all of
them, but not one either: else the next client, or octet, would search all connections again.  True
if there were any.  The caller owns none of them."
  (let ((connections '()))
    (map-connections (lambda (connection)
                       (let ((rank (and (or (parked-p connection) (connection-output connection))
                                        (funcall rank connection))))
                         (when rank
                           (push (cons (+ (ash rank 48) (or (connection-deadline connection) 0))
                                       connection)
                                 connections))))
                     (engine-table engine))
    (loop repeat (ceiling (* share (length connections)))
          for (nil . connection) in (stable-sort (nreverse connections) #'< :key #'car)
          do (if (connection-output connection)
                 (give-output-up engine connection :evicted)
                 (end-parked engine connection :evicted rank)))
    connections))

(defun evict-for-descriptor (engine)
  "Ends some connections of ENGINE: first those that idle or linger, then those whose peers owe the
rest of a request, last those whose peers do not take their output.  True if there were any."
  (evict-connections engine 1/64
                     (lambda (connection)
                       (cond ((awaits-p connection :linger) 0)
                             ((connection-output connection) 2)
                             ((unfinished-p connection) nil)
                             ((awaits-p connection :body) 1)
                             (t 0)))))

(defun evict-oldest (engine)
  "Ends an eighth of the connections of ENGINE that have memory, if it is a ready engine.  True if
any memory came free at once.  The caller owns none of them."
  (let ((before (client-memory-reserved)))
    (when (typep engine 'ready-engine)
      (evict-connections engine 1/8
                         (lambda (connection)
                           (let ((queue (connection-queue connection)))
                             (and (or (plusp (send-queue-reserved queue))
                                      (and (not (send-queue-dead-p queue))
                                           (input-kept-p (engine-service engine) connection)))
                                  0)))))
    (< (client-memory-reserved) before)))

(defun make-room-for-output (engine queue)
  "Called after something was queued in QUEUE, of a connection of ENGINE, perhaps by a thread that
does not own it.  If more memory is reserved than may wait for clients, others give way.  If the
heap has no room for as much by each worker, collects garbage."
  (let ((octets (send-queue-reserved queue)))
    (when (plusp octets)
      (loop until (reserve-client-memory 0 *waiting-share*)
            while (evict-oldest engine))
      (make-room-in-heap (* octets (worker-count engine :active :starting))))))
