(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; Whether an engine accepts: who may use its listener, and the trouble of accepting connections,
;;;; which is logged once while it lasts.

(defun note-accept-trouble (engine condition)
  "Logs CONDITION, unless the last trouble of ENGINE was of the same kind.  True if it lasts."
  (let* ((state (engine-accept-state engine))
         (lasts-p (with-engine (engine)
                    (incf (tally-failed (engine-tally engine)))
                    (setf (accept-again-p state) (not (typep condition 'listener-closed)))
                    (when (typep condition 'descriptors-exhausted)
                      (setf (engine-overloaded-p engine) t)) ; let descriptors go
                    (eq (type-of condition)
                        (shiftf (accept-trouble state) (type-of condition))))))
    (unless lasts-p
      (log-message engine :error "~A" condition))
    lasts-p))

(defun forget-accept-trouble (engine)
  "Notes that ENGINE can accept connections again."
  (let ((state (engine-accept-state engine)))
    (with-engine (engine)
      (when (eq (accept-trouble state) 'descriptors-exhausted)
        (setf (engine-overloaded-p engine) nil))
      (setf (accept-trouble state) nil
            (accept-again-p state) nil))))

;;; Its end

(defgeneric leave-listener (engine)
  (:documentation "Wakes the workers of ENGINE that wait for its listener.  Called once,
when ENGINE accepts nothing more.")
  (:method ((engine engine))
    (wake-listener (engine-listener engine)
                   (with-engine (engine) (worker-count engine :waiting)))))

(defun end-accepting (engine)
  "Makes ENGINE accept nothing more.  The system refuses later clients, or they wait for other
processes with the same listener."
  ;; Otherwise workers might wait for the listener for ever.
  (when (with-engine (engine)
          (shiftf (accept-open-p (engine-accept-state engine)) nil))
    (leave-listener engine)))

;;; Several threads may stop an engine.  The first to return may close the listener, and its
;;; descriptor number may soon be another listener's.  So nobody returns while another may still use
;;; it.

(defun call-while-accepting (engine function)
  "Calls FUNCTION if ENGINE accepts.  No stop of ENGINE returns before FUNCTION does."
  (when (begin-using-listener engine)
    (unwind-protect (funcall function)
      (end-using-listener engine))))

(defun begin-using-listener (engine)
  "Counts the caller as a user of the listener of ENGINE, if that accepts; else NIL."
  (with-engine (engine)
    (when (accepting-p engine)
      (incf (accept-users (engine-accept-state engine))))))

(defun end-using-listener (engine)
  (with-engine (engine)
    (decf (accept-users (engine-accept-state engine)))
    (bt:condition-notify (engine-changed engine))))

(defun await-listener-users (engine)
  "Waits until no stopping thread uses the listener of ENGINE, which accepts nothing more.  They
see that soon."
  (wait-for-change engine 5 (lambda () (zerop (accept-users (engine-accept-state engine))))))
