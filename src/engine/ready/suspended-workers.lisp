(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; Workers of the ready engine that are not needed now, and may be soon.

(defparameter *suspension-seconds* 4
  "How long a worker is suspended before it ends, where the pool is larger than its floor.")

(declaim (inline target-met-p))
(defun target-met-p (pool)
  (>= (counter-count (pool-state-waiting pool)) (pool-state-target pool)))

(declaim (inline one-of-excess-p))
(defun one-of-excess-p (pool)
  "True when the caller is one of those to be suspended before the next tick, and counts it."
  (let ((excess (pool-state-excess pool)))
    (and (plusp excess)
         (compare-and-set (pool-state-excess pool) excess (1- excess)))))

(defun keep-working-p (engine worker pool)
  "True when WORKER, which is free, should wait for something to do; it may be suspended
until then.  NIL when it should end; it has left the pool."
  (cond ((not (serving-p engine))
         (with-engine (engine) (retire worker))
         nil)
        ((or (target-met-p pool) (one-of-excess-p pool))
         (suspend-worker engine worker))
        (t t)))

(defun become-active (engine worker)
  "Makes WORKER, which was just made, one that is at the ready set."
  (with-engine (engine)
    (set-worker-state worker :active)
    (bt:condition-notify (engine-changed engine))))

(defun suspend-worker (engine worker)
  "Waits to be resumed.  True then, NIL when WORKER has left the pool.  The caller defers
interrupts: its thread can be destroyed only where it waits, when the cleanup form takes it off the
list."
  (look-around engine worker)
  (clear-stack)                         ; for long it may keep alive what was served last
  (unwind-protect (progn
                    (begin-suspension engine worker)
                    (await-resume engine worker))
    (end-suspension engine worker)))

(defun begin-suspension (engine worker)
  (with-engine (engine)
    (incf (tally-suspends (engine-tally engine)))
    (set-worker-state worker :suspended)
    (push worker (engine-suspended engine))))

(defun end-suspension (engine worker)
  (with-engine (engine)
    (setf (engine-suspended engine) (delete worker (engine-suspended engine))
          (ready-worker-poll-milliseconds worker) *poll-milliseconds*
          (ready-worker-away worker) 0)))

(defun await-resume (engine worker)
  "Waits until WORKER, which is suspended, is resumed: true then; or may leave the pool, and has:
NIL then."
  (flet ((outcome ()
           (case (worker-state worker)
             (:active :resumed)
             (:ended :retired)          ; an interrupt signalled an error when that was seen last
             (t (when (or (not (serving-p engine)) (dispensable-p engine worker))
                  (retire worker)
                  :retired))))
         (period () (suspension-seconds engine)))
    (declare (dynamic-extent #'outcome #'period))
    (loop for outcome = (surviving-interrupts (engine)
                          (wait-until #'outcome (ready-worker-resumed worker) (engine-lock engine)
                                      nil #'period))
          until outcome
          finally (return (eq :resumed outcome)))))

(defun suspension-seconds (engine)
  "How long a worker waits before it looks whether it is dispensable; NIL for ever: the pool grows
only when nobody is suspended, and whoever makes its floor lower has it RECHECK-WORKERS."
  (and (> (pool-size engine) (engine-standby engine))
       *suspension-seconds*))

(defun dispensable-p (engine worker)
  (and (> (pool-size engine) (engine-standby engine))
       (>= (worker-milliseconds worker) (* 1000 *suspension-seconds*))))

(defun resume-workers (engine count)
  "Has up to COUNT suspended workers of ENGINE wait on the ready set again; returns how many."
  (with-engine (engine)
    (loop repeat count
          for worker = (pop (engine-suspended engine))
          while worker
          do (set-worker-state worker :active)
             ;; An interrupt may hold it up, so it is missed if it does not come.
             (setf (ready-worker-away worker) (+ *brief-ticks* (pool-state-tick (engine-pool-state engine))))
             (incf (tally-resumes (engine-tally engine)))
             (bt:condition-notify (ready-worker-resumed worker))
          count t)))
