(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; Operations for all Lisps except SBCL and ECL: interrupts cannot be deferred, and sockets are
;;;; those of usocket.

(defmacro uninterruptibly (&body body)
  "Runs BODY.  BT:DESTROY-THREAD can still end BODY; on ABCL, only while it waits or calls EVAL."
  `(progn ,@body))

(defmacro interruptibly (&body body)
  "Runs BODY: interrupts were not deferred."
  `(progn ,@body))

(defmacro with-lock-except-in-waits ((lock) &body body)
  "Evaluates BODY while the current thread holds LOCK.  In BODY, (WAITING FORM) evaluates FORM, a
call of WAIT-ON."
  `(macrolet ((waiting (form) form))
     (bt:with-lock-held (,lock)
       ,@body)))

(defmacro set-published (place value)
  "Sets PLACE, which other threads read without a lock, to VALUE, a new object."
  `(setf ,place ,value))

(defun %error-number (condition)
  (declare (ignore condition))
  nil)

(defun %prepare-listener (listener seconds)
  (declare (ignore listener seconds))
  nil)

(defun receive-before-stream (usocket octets count)
  "Receives at most COUNT octets from USOCKET, whose stream was not read yet, into OCTETS, and waits
for the first.  Returns their number; 0 at the end of input, and if the socket has failed."
  ;; A read of several would wait for all of them.
  (handler-case (read-stream-octets (usocket:socket-stream usocket) octets 0 (min count 1))
    (error () 0)))

(defun %accept (listener)
  ;; The stream reports the element type in this form, so this is the form that Hunchentoot uses.
  (usocket:socket-accept listener :element-type '(unsigned-byte 8)))
