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
  (wait-once (lambda ()
               (or (eq (engine-phase engine) :stopped)
                   (funcall needed-p)))
             (sentinel-wakeup (engine-sentinel engine)) (engine-lock engine) period))

(defun pause-after-failure (engine)
  (surviving-interrupts (engine)
    (rest-until-woken engine *tick*)))

;;; Its thread
;;;
;;; Only a person at a REPL or a failing Lisp makes it die.  Its last act is then to wake a worker,
;;; which makes the next sentinel: the dying thread may be dying with the whole Lisp.

(defun start-sentinel (engine)
  "Makes the sentinel of ENGINE, which is counted already, and returns its thread."
  (call-making-thread (lambda ()
                        (make-engine-thread (engine-service engine) :sentinel
                                            (lambda () (run-sentinel engine))))))

(defun run-sentinel (engine)
  "The life of the sentinel of ENGINE in its own thread."
  (unwind-protect-whole
      (progn
        (with-engine (engine)
          (setf (sentinel-thread (engine-sentinel engine)) (bt:current-thread))
          (bt:condition-notify (engine-changed engine)))
        (list-engine engine)
        (sentinel-loop engine))
    (when (with-engine (engine)
            (setf (sentinel-lost-p (engine-sentinel engine))
                  (not (eq (engine-phase engine) :stopped))))
      (request-sentinel engine))
    (with-engine (engine)
      (discount-sentinel engine))
    (release-resources-when-empty engine)))

(defun discount-sentinel (engine)
  "One sentinel of ENGINE less.  Under the lock."
  (let ((sentinel (engine-sentinel engine)))
    (setf (sentinel-count sentinel) (max 0 (1- (sentinel-count sentinel))))))

(defun lost-sentinel-p (engine)
  "True if the sentinel of ENGINE died, whether it did its last act or not."
  (let ((sentinel (engine-sentinel engine)))
    (or (sentinel-lost-p sentinel)
        (let ((thread (sentinel-thread sentinel)))
          (and thread (not (bt:thread-alive-p thread)))))))

(defun call-for-sentinel (engine)
  "Has a worker of ENGINE make the next sentinel if the last one died.  Called by a worker that
ends: it may be the one that was to do so, and no thread that dies makes another."
  (when (with-engine (engine)
          (when (and (serving-p engine) (lost-sentinel-p engine))
            (setf (sentinel-lost-p (engine-sentinel engine)) t)))
    (request-sentinel engine)))

(defun replace-sentinel-p (engine)
  "True if the caller is to make a sentinel of ENGINE, which counts from now on."
  (let ((sentinel (engine-sentinel engine)))
    (with-engine (engine)
      (when (and (serving-p engine)
                 (may-launch-p engine)
                 (lost-sentinel-p engine))
        (setf (sentinel-lost-p sentinel) nil
              (sentinel-thread sentinel) nil)
        (incf (sentinel-count sentinel))))))

(defun ensure-sentinel (engine)
  "Makes a sentinel for ENGINE if the last one died.  Any thread of ENGINE that has a moment
calls it, without the lock."
  (let ((counted-p nil))
    (unwind-protect-whole
        (when (uninterruptibly
                (and (lost-sentinel-p engine)
                     (setf counted-p (replace-sentinel-p engine))
                     (start-successor engine)
                     (not (setf counted-p nil))))
          (log-message engine :warning "The sentinel died, and has a successor."))
      (when counted-p                   ; the current thread may have died as well
        (with-engine (engine)
          (setf (sentinel-lost-p (engine-sentinel engine)) t)
          (discount-sentinel engine))))))

(defun record-sentinel (engine thread)
  "Records THREAD as the sentinel of ENGINE.  Once it begins it records itself, but it may be
destroyed before that."
  (when (bt:threadp thread)             ; a program's method may return something else
    (let ((sentinel (engine-sentinel engine)))
      (with-engine (engine)
        (unless (or (sentinel-thread sentinel) (sentinel-lost-p sentinel))
          (setf (sentinel-thread sentinel) thread))))))

(defun start-successor (engine)
  "Makes another sentinel of ENGINE.  True when that succeeded."
  (handler-case (progn (record-sentinel engine (start-sentinel engine))
                       t)
    (error (condition)
      (note-thread-trouble engine condition)
      nil)))

(defun await-sentinel (engine seconds)
  "Waits up to SECONDS, a real or NIL for no limit, for the end of the sentinel of ENGINE, however
it ends."
  (let ((thread (sentinel-thread (engine-sentinel engine))))
    (when (and thread (not (eq thread (bt:current-thread)))
               (join-thread thread seconds))
      ;; Not even its last act may have been done.
      (with-engine (engine)
        (setf (sentinel-count (engine-sentinel engine)) 0)))))
