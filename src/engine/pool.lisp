(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; How workers come and go.

(defun move (worker state)
  "Changes WORKER to STATE.  Under the lock."
  (let ((engine (worker-engine worker)))
    (decf (svref (engine-counts engine) (state-index (worker-state worker))))
    (incf (svref (engine-counts engine) (state-index state)))
    (setf (worker-state worker) state
          (worker-since worker) (milliseconds))))

(defgeneric doorkeeper-needed-p (engine)
  (:documentation "True when, besides the workers that may serve, ENGINE needs one that accepts
connections only to queue or to refuse them.")
  (:method ((engine engine))
    (not (eq (engine-accept-limit engine) :unlimited))))

(defun pool-limit (engine)
  "How many workers ENGINE may have, or NIL."
  (let ((limit (engine-thread-limit engine)))
    (and limit
         (if (doorkeeper-needed-p engine) (1+ limit) limit))))

(defun room-p (engine)
  "True when the pool of ENGINE may grow."
  (let ((limit (pool-limit engine)))
    (or (null limit) (< (pool-size engine) limit))))

(defun full-p (engine)
  "True when as many connections of ENGINE are attended as may be."
  (let ((limit (engine-thread-limit engine)))
    (and limit (>= (attended-count engine) limit))))

(defun missing-workers (engine)
  "How many workers ENGINE should make now.  Under the lock."
  (cond ((not (and (running-p engine) (room-p engine))) 0)
        ((< (pool-size engine) (engine-standby engine))
         (let ((limit (pool-limit engine)) (floor (engine-standby engine)))
           (- (if limit (min floor limit) floor) (pool-size engine))))
        ((short-handed-p engine) 1)
        (t 0)))

(defgeneric short-handed-p (engine)
  (:documentation "True when ENGINE should make another worker at once.  Under the lock.")
  (:method ((engine engine))
    (zerop (coming-count engine))))

(defun reserve-worker (engine)
  "A new worker, counted as :STARTING before its thread exists.  Under the lock."
  (let ((worker (make-pool-worker engine (incf (engine-made engine)))))
    (push worker (engine-workers engine))
    (incf (svref (engine-counts engine) (state-index :starting)))
    worker))

(defgeneric leave-behind (engine worker)
  (:documentation "Keeps of WORKER, which leaves ENGINE, what others are to clear away.  Under
the lock.")
  (:method ((engine engine) worker)
    (when (worker-thread worker)
      (push (worker-thread worker) (engine-leavers engine)))))

(defun retire (worker)
  "Takes WORKER out of its pool.  Under the lock; does nothing the second time."
  (unless (eq (worker-state worker) :ended)
    (let ((engine (worker-engine worker)))
      (move worker :ended)
      (incf (engine-served-before engine) (worker-served worker))
      (setf (engine-workers engine) (delete worker (engine-workers engine)))
      (leave-behind engine worker)
      (bt:condition-notify (engine-changed engine))
      (when (plusp (missing-workers engine))
        (bt:condition-notify (engine-bell engine))))))

(defun run-worker (worker)
  "The life of WORKER in its own thread, from here to its end, however that comes."
  (let ((engine (worker-engine worker))
        (*worker* worker))
    (unwind-protect
         (progn
           (with-engine (engine)
             (setf (worker-thread worker) (bt:current-thread)))
           (call-as-worker (engine-service engine) (lambda () (work engine worker))))
      (survive-cleanup)
      (with-engine (engine)
        (retire worker))
      (close-doors-when-empty engine))))

(defun close-doors-when-empty (engine)
  "Closes the doors of ENGINE, once, if it has stopped and nobody is left in it."
  (when (with-engine (engine)
          (and (eq (engine-phase engine) :stopped)
               (null (engine-workers engine))
               (shiftf (engine-doors-open-p engine) nil)))
    (close-doors engine)))

(defun bury (engine worker)
  "Does what WORKER, whose thread died without unwinding, could not do itself."
  (let ((connection (with-engine (engine)
                      (retire worker)
                      (shiftf (worker-connection worker) nil))))
    (when connection
      (give-up-connection engine connection))))

(defgeneric give-up-connection (engine connection)
  (:documentation "Closes CONNECTION of ENGINE, whose worker died without doing so."))

(defun bury-dead-workers (engine)
  "Some Lisps, and some ways to kill a thread, run no cleanup forms."
  (loop for worker in (with-engine (engine) (copy-list (engine-workers engine)))
        for thread = (worker-thread worker)
        when (and thread (not (bt:thread-alive-p thread)))
          do (bury engine worker)))

(defun count-failure (engine)
  (with-engine (engine)
    (incf (engine-failed engine))))

(defun let-go (engine connection)
  "Lets the service RELEASE CONNECTION of ENGINE; a failure of that is only counted."
  (handler-case (release (engine-service engine) connection)
    (error () (count-failure engine))))

(defun tell (engine level control &rest arguments)
  "Has the service of ENGINE NOTE what happened, as LEVEL, CONTROL and ARGUMENTS tell; a failure
of that, too, is only counted."
  (handler-case (apply #'note (engine-service engine) level control arguments)
    (error () (count-failure engine))))

(defun launch (worker)
  "Makes the thread of WORKER, which was reserved.  True when that succeeded; else the
reservation is given back, and the sentinel will try again.  Never under the lock."
  (let ((engine (worker-engine worker)))
    (handler-case
        (make-worker-thread (engine-service engine) (lambda () (run-worker worker))
                            (worker-number worker))
      (error (condition)
        (with-engine (engine)
          (setf (engine-last-error engine) condition)
          (retire worker))
        (count-failure engine)
        (tell engine :error "A worker thread could not be made: ~A" condition)
        nil)
      (:no-error (&rest values)
        (declare (ignore values))
        t))))

(defun refill (engine)
  "Makes the workers that ENGINE misses.  True when none failed."
  (let ((workers (with-engine (engine)
                   (loop repeat (missing-workers engine)
                         collect (reserve-worker engine)))))
    ;; Each is launched or given back, whatever becomes of the others.
    (notany #'null (mapcar #'launch workers))))

(defun join-leavers (engine)
  "Waits for the threads of the workers that ended; they have nothing left to do."
  (loop for thread in (with-engine (engine) (shiftf (engine-leavers engine) '()))
        unless (eq thread (bt:current-thread))
          do (handler-case (bt:join-thread thread)
               (error () nil))))        ; SBCL signals when the thread was destroyed
