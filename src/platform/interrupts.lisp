(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; Interrupts.  A thread of an engine or of a log defers them (UNINTERRUPTIBLY), and lets them run
;;;; (INTERRUPTIBLY) only while functions of programs run, and in waits.  A thread of a program, and
;;;; a handler, may be interrupted anywhere, by a time limit for one; so our functions defer
;;;; interrupts while they hold a lock (WITH-LOCK-BRIEFLY), or own a connection.

(defmacro when-taken ((variable take) &body body)
  "Evaluates the form TAKE, and, if its value is true, BODY with VARIABLE bound to it.  Returns the
value of BODY, or NIL.  No interrupt comes in between."
  `(uninterruptibly
     (let ((,variable ,take))
       (when ,variable
         ,@body))))

(defmacro with-acquired ((variable acquire release) &body body)
  "Evaluates BODY with VARIABLE bound to the value of the form ACQUIRE, and then the form RELEASE,
also after a non-local exit from BODY."
  `(let ((,variable ,acquire))
     (unwind-protect (progn ,@body)
       ,release)))

(defmacro set-acquired (place acquire)
  "Sets PLACE to the value of the form ACQUIRE, and returns it."
  `(setf ,place ,acquire))
