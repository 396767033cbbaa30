(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; The bench of the ready engine: workers that are not needed now, and may be soon.

(defparameter *bench-seconds* 4
  "How long a worker sits on the bench before it ends, where the pool is larger than its floor.")

(declaim (inline enough-wait-p))
(defun enough-wait-p (pace)
  (>= (counter-count (pace-waiting pace)) (pace-target pace)))

(declaim (inline leave-crowd-p))
(defun leave-crowd-p (pace)
  "True when the caller is one of those who should sit down before the next tick."
  (let ((surplus (pace-surplus pace)))
    (and (plusp surplus)
         (compare-and-set (pace-surplus pace) surplus (1- surplus)))))

(defun on-duty-p (engine worker pace)
  "True when WORKER, which is free, should wait for something to do; it may sit on the bench
until then.  NIL when it should end; it has left the pool."
  (cond ((not (serving-p engine))
         (with-engine (engine) (retire worker))
         nil)
        ((or (enough-wait-p pace) (leave-crowd-p pace))
         (sit-on-bench engine worker))
        (t t)))

(defun take-seat (engine worker)
  "Makes WORKER, which was just made, one that is at the ready set."
  (with-engine (engine)
    (move worker :active)
    (bt:condition-notify (engine-changed engine))))

(defun sit-on-bench (engine worker)
  "Waits to be promoted.  True then, NIL when WORKER has left the pool.  The caller defers interrupts:
its thread can be destroyed only where it waits, when the cleanup form will take it off the bench."
  (interruptibly (ensure-sentinel engine))
  (unwind-protect (progn
                    (sit-down engine worker)
                    (await-promotion engine worker))
    (get-up engine worker)))

(defun sit-down (engine worker)
  (with-engine (engine)
    (incf (engine-benchings engine))
    (move worker :benched)
    (push worker (engine-benched engine))))

(defun get-up (engine worker)
  (with-engine (engine)
    (setf (engine-benched engine) (delete worker (engine-benched engine))
          (ready-worker-patience worker) *wait-milliseconds*)))

(defun await-promotion (engine worker)
  (bt:with-lock-held ((engine-lock engine))
    (loop
      (cond ((eq (worker-state worker) :active)
             (return t))
            ((or (not (serving-p engine)) (dispensable-p engine worker))
             (retire worker)
             (return nil))
            (t
             (interruptibly
              (wait-on (ready-worker-bell worker) (engine-lock engine)
                       (seconds-on-bench engine))))))))

(defun seconds-on-bench (engine)
  "How long a worker waits before it looks whether it is dispensable; NIL for ever: the pool grows only
when the bench is empty, and whoever makes its floor lower has it LOOK-AGAIN."
  (and (> (pool-size engine) (engine-standby engine))
       *bench-seconds*))

(defun dispensable-p (engine worker)
  (and (> (pool-size engine) (engine-standby engine))
       (>= (worker-milliseconds worker) (* 1000 *bench-seconds*))))

(defun promote (engine count)
  "Calls up to COUNT workers from the bench to the ready set; returns how many came."
  (with-engine (engine)
    (loop repeat count
          for worker = (pop (engine-benched engine))
          while worker
          do (move worker :active)
             (incf (engine-promotions engine))
             (bt:condition-notify (ready-worker-bell worker))
          count t)))
