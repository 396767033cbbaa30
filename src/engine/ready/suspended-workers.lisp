(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; Workers of the ready engine that are not needed now, and may be soon.

(defparameter *suspension-seconds* 4
  "A worker that is suspended for longer ends if the pool is larger than its floor.")

(declaim (inline target-met-p))
(defun target-met-p (pool)
  (>= (counter-count (pool-state-waiting pool)) (pool-state-target pool)))

(declaim (inline one-of-excess-p))
(defun one-of-excess-p (pool)
  "True if the caller is one of the workers to be suspended before the next tick; counts the
caller."
  (let ((excess (pool-state-excess pool)))
    (and (plusp excess)
         (compare-and-set (pool-state-excess pool) excess (1- excess)))))

(defun keep-working-p (engine worker pool)
  "True if WORKER, which is free, is to wait for an event, perhaps after it was suspended; NIL if
it has left the pool and is to end."
  (cond ((not (serving-p engine))
         (with-engine (engine) (retire worker))
         nil)
        ((or (target-met-p pool) (one-of-excess-p pool))
         (suspend-worker engine worker))
        (t t)))

(defun suspend-worker (engine worker)
  "Waits until WORKER is resumed: true; or has left the pool: NIL."
  (clear-stack)                         ; else it may keep the last connection alive for long
  (with-engine (engine)
    (incf (tally-suspends (engine-tally engine)))
    (set-worker-state worker :suspended)
    (push worker (engine-suspended engine)))
  (prog1 (await-resume engine worker)
    (with-engine (engine)
      (setf (engine-suspended engine) (delete worker (engine-suspended engine))
            (ready-worker-poll-milliseconds worker) *poll-milliseconds*))))

(defun await-resume (engine worker)
  "Waits until WORKER, which is suspended, is resumed: true; or may leave the pool, and does: NIL.
The pool grows only while none is suspended, and a thread that lowers the floor calls
RECHECK-WORKERS."
  (flet ((outcome ()
           (cond ((eq :active (worker-state worker)) :resumed)
                 ((or (not (serving-p engine))
                      (and (> (pool-size engine) (engine-standby engine))
                           (>= (worker-milliseconds worker) (* 1000 *suspension-seconds*))))
                  (retire worker)
                  :retired)))
         (period ()
           (and (> (pool-size engine) (engine-standby engine))
                *suspension-seconds*)))
    (declare (dynamic-extent #'outcome #'period))
    (eq :resumed (interruptibly
                   (wait-until #'outcome (ready-worker-resumed worker) (engine-lock engine)
                               nil #'period)))))

(defun resume-workers (engine count)
  "Lets up to COUNT suspended workers of ENGINE wait on the ready set again; returns how many."
  (with-engine (engine)
    (loop repeat count
          for worker = (pop (engine-suspended engine))
          while worker
          do (set-worker-state worker :active)
             (incf (tally-resumes (engine-tally engine)))
             (bt:condition-notify (ready-worker-resumed worker))
          count t)))
