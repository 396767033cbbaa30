(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; What only SBCL and ECL have to do in another way: here nothing defers interrupts, and
;;;; sockets are those of usocket.

(defmacro uninterruptibly (&body body)
  "Runs BODY; nothing protects it from BT:DESTROY-THREAD, which on ABCL has an effect only where a
thread waits or evaluates."
  `(progn ,@body))

(defmacro deferring-interrupts (&body body)
  "Runs BODY: interrupts cannot be deferred."
  `(progn ,@body))

(defmacro interruptibly (&body body)
  "Runs BODY: interrupts were not deferred."
  `(progn ,@body))

(defmacro with-acquired ((variable acquire release) &body body)
  "Evaluates BODY with VARIABLE bound to the value of the form ACQUIRE, and then, however BODY was
left, the form RELEASE."
  `(let ((,variable ,acquire))
     (unwind-protect-whole (progn ,@body)
       ,release)))

(defmacro with-lock-except-in-waits ((lock) &body body)
  "Evaluates BODY while the current thread holds LOCK.  In BODY, (WAITING FORM) evaluates FORM, a
call of WAIT-ON."
  `(macrolet ((waiting (form) form))
     (bt:with-lock-held (,lock)
       ,@body)))

(defmacro set-published (place value)
  "Sets PLACE, which other threads read without a lock, to VALUE, an object made for that."
  `(setf ,place ,value))

(defun %error-number (condition)
  (declare (ignore condition))
  nil)

(defun %prepare-listener (listener seconds)
  (declare (ignore listener seconds))
  nil)

(defun %accept (listener)
  ;; The stream tells its element type as it is given here, so Hunchentoot's words for it.
  (usocket:socket-accept listener :element-type '(unsigned-byte 8)))
