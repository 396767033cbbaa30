(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; How workers come and go.

(defun set-worker-state (worker state)
  "Changes WORKER to STATE.  Under the lock."
  (let ((engine (worker-engine worker)))
    (decf (svref (engine-counts engine) (state-index (worker-state worker))))
    (incf (svref (engine-counts engine) (state-index state)))
    (setf (worker-state worker) state
          (worker-since worker) (milliseconds))))

(defgeneric overflow-acceptor-needed-p (engine)
  (:documentation "True if ENGINE needs a worker, besides those that may serve, that accepts
connections only to queue or to refuse them.  A draining engine does: connections that wait in
the kernel would be reset with the listener.")
  (:method ((engine engine))
    (and (accepting-p engine)
         (not (and (eq (engine-accept-limit engine) :unlimited)
                   (running-p engine))))))

(defun pool-limit (engine)
  "How many workers ENGINE may have, or NIL."
  (let ((limit (engine-thread-limit engine)))
    (and limit
         (if (overflow-acceptor-needed-p engine) (1+ limit) limit))))

(defun room-p (engine)
  "True when the pool of ENGINE may grow."
  (let ((limit (pool-limit engine)))
    (or (null limit) (< (pool-size engine) limit))))

(defun full-p (engine)
  "True when as many connections of ENGINE are attended as may be."
  (let ((limit (engine-thread-limit engine)))
    (and limit (>= (busy-count engine) limit))))

(defun unserved-queue-p (engine)
  "True if a connection is queued that may be served, and no worker is about to take it: workers
that wait in an accept do not look.  The worker that served before has died then, or the limit
was raised.  Call it with the lock held."
  (and (engine-queue engine)
       (not (full-p engine))
       (zerop (worker-count engine :starting))))

(defun missing-workers (engine)
  "How many workers ENGINE should make now.  Under the lock."
  (cond ((not (and (serving-p engine) (may-launch-p engine))) 0)
        ((not (room-p engine))
         ;; One that served may have died while all others wait in an accept.  That makes one too
         ;; many, which ends when as many wait as should.
         (if (unserved-queue-p engine) 1 0))
        ((and (accepting-p engine)
              (< (pool-size engine) (engine-standby engine)))
         (let ((limit (pool-limit engine)) (floor (engine-standby engine)))
           (- (if limit (min floor limit) floor) (pool-size engine))))
        ((worker-needed-p engine) 1)
        (t 0)))

(defgeneric worker-needed-p (engine)
  (:documentation "True when ENGINE should make another worker at once.  Under the lock."))

(defun reserve-worker (engine)
  "A new worker, counted as :STARTING before its thread exists.  Under the lock."
  (let ((worker (make-pool-worker engine (incf (tally-made (engine-tally engine))))))
    (push worker (engine-workers engine))
    (incf (svref (engine-counts engine) (state-index :starting)))
    worker))

(defgeneric keep-for-cleanup (engine worker)
  (:documentation "Keeps the parts of WORKER, which leaves ENGINE, that other threads have to
clean up.  Called with the lock held.")
  (:method ((engine engine) worker)
    (when (worker-thread worker)
      (push (worker-thread worker) (threads-exited (engine-threads engine))))))

(defun retire (worker)
  "Takes WORKER out of its pool.  Under the lock; does nothing the second time."
  (unless (eq (worker-state worker) :ended)
    (let ((engine (worker-engine worker)))
      (set-worker-state worker :ended)
      (add-sheet (tally-served-before (engine-tally engine)) (worker-durations worker))
      ;; Other threads read the list without the lock, so the list itself never changes.
      (setf (engine-workers engine) (remove worker (engine-workers engine)))
      (keep-for-cleanup engine worker)
      (bt:condition-notify (engine-changed engine))
      (when (plusp (missing-workers engine))
        (notify-sentinel engine)))))

(defun run-worker (worker)
  "The life of WORKER in its own thread, from here to its end, however that comes."
  (let ((engine (worker-engine worker))
        (*worker* worker))
    (setf (worker-thread worker) (bt:current-thread))
    (unwind-protect-whole
        (call-as-worker (engine-service engine)
                        (lambda () (noting-end (engine) (worker-loop engine worker))))
      (with-engine (engine)
        (retire worker))
      (release-resources-when-empty engine))))

(defun release-resources-when-empty (engine)
  "Releases the resources of ENGINE, once, if it has stopped and no thread of it is left."
  (when (and (eq (engine-phase engine) :stopped)
             (null (engine-workers engine))
             (sentinel-gone-p engine)
             (not (alarm-in-use-p engine)))
    (unlist-engine engine)              ; also for a sentinel that has begun too late
    (when (with-engine (engine)
            (shiftf (engine-resources-held-p engine) nil))
      (release-resources engine))))

(defun reap-worker (engine worker)
  "Cleans up after WORKER, whose thread died without unwinding."
  (let ((connection (with-engine (engine)
                      (retire worker)
                      (shiftf (worker-connection worker) nil))))
    (when connection
      (close-orphaned-connection engine connection))))

(defgeneric close-orphaned-connection (engine connection)
  (:documentation "Closes CONNECTION of ENGINE, whose worker died without doing so."))

(defun reap-dead-workers (engine)
  "Cleans up after dead workers of ENGINE.  Some Lisps, and some ways to kill a thread, run no
cleanup forms."
  (loop for worker in (with-engine (engine) (copy-list (engine-workers engine)))
        for thread = (worker-thread worker)
        when (and thread (not (bt:thread-alive-p thread)))
          do (reap-worker engine worker)))

(defun launch (worker)
  "Makes the thread of WORKER, which was reserved.  True if that succeeded; otherwise the
reservation is given back, and the sentinel tries again.  Never call it with the lock held."
  (let ((engine (worker-engine worker)))
    (or (thread-made-p engine
                       (lambda ()
                         (make-engine-thread (engine-service engine) (worker-number worker)
                                             (lambda () (run-worker worker)))))
        (with-engine (engine)
          (retire worker)
          nil))))

(defun make-workers (engine workers)
  "Makes the threads of WORKERS of ENGINE, a list, which were reserved, until one cannot be made.
True when all were."
  (loop for (worker . others) on workers
        always (or (launch worker)
                   (with-engine (engine)
                     (mapc #'retire others)
                     nil))))

(defun make-missing-workers (engine)
  "Makes the workers that ENGINE misses.  True when none failed."
  (make-workers engine (with-engine (engine)
                         (loop repeat (missing-workers engine)
                               collect (reserve-worker engine)))))

(defun resize-pool (engine &key (standby (engine-standby engine))
                             (thread-limit (engine-thread-limit engine)))
  "Lets ENGINE keep STANDBY workers, an integer above 0, when there is nothing to do, and have up to
THREAD-LIMIT, an integer not below STANDBY or NIL for no limit: from now on."
  (with-engine (engine)
    (setf (engine-standby engine) standby
          (engine-thread-limit engine) thread-limit)
    (notify-sentinel engine))
  (recheck-workers engine))

(defgeneric recheck-workers (engine)
  (:documentation "Lets the resting workers of ENGINE look whether they are needed.")
  (:method ((engine engine))
    nil))
