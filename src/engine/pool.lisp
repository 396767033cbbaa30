(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; How workers come and go.

(defun move (worker state)
  "Changes WORKER to STATE.  Under the lock."
  (let ((engine (worker-engine worker)))
    (decf (svref (engine-counts engine) (state-index (worker-state worker))))
    (incf (svref (engine-counts engine) (state-index state)))
    (setf (worker-state worker) state
          (worker-since worker) (milliseconds))))

(defun pool-limit (engine)
  "How many workers ENGINE may have, or NIL.  Where connections beyond the limit are accepted,
one more worker than may serve stands at the door."
  (let ((limit (engine-thread-limit engine)))
    (cond ((null limit) nil)
          ((eq (engine-accept-limit engine) :unlimited) limit)
          (t (1+ limit)))))

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
        ((zerop (coming-count engine)) 1)
        (t 0)))

(defun reserve-worker (engine)
  "A new worker, counted as :STARTING before its thread exists.  Under the lock."
  (let ((worker (make-worker engine (incf (engine-made engine)))))
    (push worker (engine-workers engine))
    (incf (svref (engine-counts engine) (state-index :starting)))
    worker))

(defun retire (worker)
  "Takes WORKER out of its pool.  Under the lock; does nothing the second time."
  (unless (eq (worker-state worker) :ended)
    (let ((engine (worker-engine worker)))
      (move worker :ended)
      (incf (engine-served-before engine) (worker-served worker))
      (setf (engine-workers engine) (delete worker (engine-workers engine)))
      (when (worker-thread worker)
        (push (worker-thread worker) (engine-leavers engine)))
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
      (with-engine (engine)
        (retire worker)))))

(defun count-failure (engine)
  (with-engine (engine)
    (incf (engine-failed engine))))

(defun tell (engine level control &rest arguments)
  "NOTEs what happened; a failure of that, too, is only counted."
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
