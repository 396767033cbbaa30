(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; What the sentinel of the blocking engine does at each tick.

;;; Deadlines

(defun input-awaited-p (worker kind)
  "True when WORKER, whose connection is to be ended because of KIND, only waits for input: it may still tell
its peer why."
  (or (eq (worker-state worker) :keep-alive)
      (member kind '(:first-byte :head :idle))))

(defun end-connection (engine worker kind)
  "Ends what WORKER reads or writes, because of KIND; it will notice, and release the connection
itself.  Under the lock, so that the socket cannot be closed, and its descriptor reused, meanwhile."
  (count-expired engine kind)
  (setf (connection-deadline (worker-connection worker)) nil)
  (shut-down (connection-handle (worker-connection worker))
             (if (input-awaited-p worker kind) :input :io)))

(defun end-overdue-connections (engine)
  "Ends the connections of ENGINE that are overdue.  One that is to be served then has a worker, which looks after the time
itself, and may be late.  Under the lock."
  (loop with now = (milliseconds)
        for worker in (engine-workers engine)
        for connection = (worker-connection worker)
        when (and connection
                  (not (served-when-due-p connection))
                  (overdue-p connection now))
          do (end-connection engine worker (connection-deadline-kind connection))))

;;; Clients that are given up

(defmethod wake-from-client ((engine blocking-engine) connection direction)
  (with-engine (engine)
    (when (find connection (engine-workers engine) :key #'worker-connection)
      (shut-down (connection-handle connection) (if (eq :input direction) :input :io)))))

;;; Overload, and the end of a drain

(defun saturated-p (engine)
  (and (running-p engine)
       (full-p engine)
       (or (engine-queue engine)
           (pending-connection-p (engine-listener engine)))))

(defun idle-too-long-p (worker)
  (and (eq (worker-state worker) :keep-alive)
       (> (worker-milliseconds worker) *overload-idle-milliseconds*)))

(defun end-drained-connections (engine)
  "Ends the connections of ENGINE that idle, when it has drained for long enough.  Under the lock."
  (when (drain-over-p engine (milliseconds))
    (dolist (worker (engine-workers engine))
      (when (eq (worker-state worker) :keep-alive)
        (shut-down (connection-handle (worker-connection worker)) :input)))))

(defun end-idle-connections (engine)
  "Ends the connections of ENGINE that are idle where its drain is over, or while others wait for a worker.
Under the lock."
  (end-drained-connections engine)
  (when (setf (engine-overloaded-p engine) (and (saturated-p engine) t))
    (dolist (worker (remove-if-not #'idle-too-long-p (engine-workers engine)))
      (end-connection engine worker :evicted))))

;;; Its loop

(defun housekeep (engine)
  "What the sentinel of ENGINE does at a tick.  True when all that was missing was made."
  (with-engine (engine)
    (end-overdue-connections engine)
    (end-idle-connections engine))
  (maintain-pool engine))

(defun nothing-under-way-p (engine)
  "True when nothing that the sentinel looks after is under way.  Under the lock."
  (not (or (plusp (worker-count engine :starting :serving))
           (full-p engine)
           (engine-queue engine)
           (engine-overloaded-p engine)
           (engine-thread-trouble-p engine)
           (not (running-p engine)))))

(defun wait-a-tick (engine)
  (rest-until-woken engine
                    (lambda () (if (nothing-under-way-p engine) *idle-tick* *tick*))
                    (lambda () (plusp (missing-workers engine)))))

(defmethod sentinel-loop ((engine blocking-engine))
  (loop until (eq (engine-phase engine) :stopped)
        unless (call-surviving engine :housekeeping (lambda ()
                                                      (housekeep engine)
                                                      (clear-stack)
                                                      (wait-a-tick engine)))
          do (pause-after-failure engine)))
