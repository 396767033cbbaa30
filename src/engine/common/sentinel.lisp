(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; Each engine has one thread, the sentinel, for work that no worker can do: it makes workers in
;;;; place of those that died or could not be made, and ends connections whose time is over.

(defun count-expired (engine kind)
  "Counts a connection of ENGINE as ended by the sentinel because of KIND.  Under the lock."
  (incf (getf (tally-expired-by (engine-tally engine)) kind 0)))

(defun count-late (engine kind)
  "Counts a connection of ENGINE as ended because of KIND, a keyword as for SET-DEADLINE.  Its
service has found it late before the sentinel did."
  (with-engine (engine)
    (count-expired engine kind)))

(defun maintain-pool (engine)
  "Removes the workers of ENGINE that are gone, and makes missing ones.  True if none failed."
  (reap-dead-workers engine)
  (join-exited-threads engine)
  (outlive-thread-trouble engine)
  (make-missing-workers engine))

(defun call-surviving (engine part function)
  "Calls FUNCTION, which does PART, a keyword, of the work of the sentinel.  True if it succeeds.
A failure is logged, unless the last call for PART failed as well."
  (let ((sentinel (engine-sentinel engine)))
    (handler-case (funcall function)
      (serious-condition (condition)
        (count-failure engine)
        (unless (member part (sentinel-failing-parts sentinel))
          (push part (sentinel-failing-parts sentinel))
          (log-message engine :error "The sentinel failed: ~A" condition))
        nil)
      (:no-error (&rest values)
        (declare (ignore values))
        (when (sentinel-failing-parts sentinel)
          (setf (sentinel-failing-parts sentinel) (remove part (sentinel-failing-parts sentinel))))
        t))))

(defun rest-until-woken (engine period &optional (needed-p (constantly nil)))
  "Lets the sentinel of ENGINE wait until it is woken, for at most PERIOD, as for WAIT-UNTIL; not
at all if ENGINE has stopped, or if NEEDED-P, called with the lock held, is true."
  (interruptibly
    (wait-once (lambda () (or (engine-stopped-p engine) (funcall needed-p)))
               (sentinel-wakeup (engine-sentinel engine)) (engine-lock engine) period)))

;;; Its thread.  Only a person at a REPL or a failing Lisp makes it die.  Its last act is then to
;;; make the next one.

(defun make-sentinel-thread (engine)
  "Makes the sentinel of ENGINE, and returns its thread."
  (make-engine-thread (engine-service engine) :sentinel (lambda () (run-sentinel engine))))

(defun run-sentinel (engine)
  "The life of the sentinel of ENGINE in its own thread."
  (unwind-protect
      (progn
        (with-engine (engine)
          (setf (sentinel-thread (engine-sentinel engine)) (bt:current-thread))
          (bt:condition-notify (engine-changed engine)))
        (list-engine engine)
        (uninterruptibly (sentinel-loop engine)))
    (if (serving-p engine)
        (thread-made-p engine (lambda () (make-sentinel-thread engine)))
        (end-sentinel engine))))

(defun end-sentinel (engine)
  "Notes that ENGINE, which stops, has no sentinel any more."
  (with-engine (engine)
    (setf (sentinel-thread (engine-sentinel engine)) nil))
  (release-resources-when-empty engine))

(defun sentinel-gone-p (engine)
  "True if ENGINE has no sentinel, or that has died."
  (let ((thread (sentinel-thread (engine-sentinel engine))))
    (not (and thread (bt:thread-alive-p thread)))))

(defun await-sentinel (engine seconds)
  "Waits up to SECONDS, a real or NIL for no limit, for the end of the sentinel of ENGINE, however
it ends."
  (let ((thread (sentinel-thread (engine-sentinel engine))))
    (when (and thread (not (eq thread (bt:current-thread))))
      (join-thread thread seconds))))
