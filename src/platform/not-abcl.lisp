(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; What only ABCL has to do in another way.

(defun destroy-thread (thread)
  "Makes THREAD unwind and end."
  (bt:destroy-thread thread))

(declaim (inline survive-cleanup))
(defun survive-cleanup ()
  "Called first in a cleanup form: lets it run whole, though its thread was destroyed."
  nil)

(defun %closed-p (listener)
  (declare (ignore listener))
  nil)                                  ; the error number tells

(defun %pending-connection-p (listener)
  (%await-input listener (milliseconds)))
