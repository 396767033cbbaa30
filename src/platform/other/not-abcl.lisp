(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; Operations for all Lisps except ABCL.

(defun destroy-thread (thread)
  "Makes THREAD unwind and end."
  (bt:destroy-thread thread))

(defmacro unwind-protect-whole (form &body cleanup)
  "Evaluates FORM, and then all of CLEANUP, also after a non-local exit from FORM or if the thread
is destroyed meanwhile.  Returns the values of FORM."
  `(unwind-protect ,form ,@cleanup))

(defun wait-timed-out-p (condition)
  "True if CONDITION, signalled by a read or write of a socket's stream, means that the wait has
timed out."
  (typep condition '(or usocket:timeout-error #+sbcl sb-sys:io-timeout)))

(defun %closed-p (listener)
  (declare (ignore listener))
  nil)                                  ; the error number of accept(2) tells

(defun %pending-connection-p (listener)
  (%await-input listener (milliseconds)))
