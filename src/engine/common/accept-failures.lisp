(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; The trouble of accepting connections is logged once while it lasts.

(defun note-accept-trouble (engine condition)
  "Logs CONDITION, unless the last trouble of ENGINE was of the same kind.  True if it lasts."
  (let ((lasts-p (with-engine (engine)
                   (incf (tally-failed (engine-tally engine)))
                   (setf (engine-accept-again-p engine) (not (typep condition 'listener-closed)))
                   (when (typep condition 'descriptors-exhausted)
                     (setf (engine-overloaded-p engine) t)) ; let descriptors go
                   (eq (type-of condition)
                       (shiftf (engine-accept-trouble engine) (type-of condition))))))
    (unless lasts-p
      (log-message engine :error "~A" condition))
    lasts-p))

(defun forget-accept-trouble (engine)
  "Notes that ENGINE can accept connections again."
  (with-engine (engine)
    (when (eq (engine-accept-trouble engine) 'descriptors-exhausted)
      (setf (engine-overloaded-p engine) nil))
    (setf (engine-accept-trouble engine) nil
          (engine-accept-again-p engine) nil)))
