(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; What only ABCL has to do in another way.

(defun destroy-thread (thread)
  "Makes THREAD unwind and end."
  (bt:destroy-thread thread))

(defmacro unwind-protect-whole (form &body cleanup)
  "Evaluates FORM, and then, however that was left, all of CLEANUP, though its thread was destroyed.
Returns the values of FORM."
  `(unwind-protect ,form ,@cleanup))

(defparameter *destruction-period* nil
  "How often, in seconds, a thread that waits has to call HEED-DESTRUCTION; NIL where that is not
needed.")

(declaim (inline heed-destruction))
(defun heed-destruction ()
  "Does nothing: a thread that is destroyed ends where it waits."
  nil)

(defun wait-timed-out-p (condition)
  "True when CONDITION, which reading or writing a socket's stream has signalled, tells that the
wait had its time."
  (typep condition '(or usocket:timeout-error #+sbcl sb-sys:io-timeout)))

(defun %closed-p (listener)
  (declare (ignore listener))
  nil)                                  ; the error number tells

(defun %pending-connection-p (listener)
  (%await-input listener (milliseconds)))
