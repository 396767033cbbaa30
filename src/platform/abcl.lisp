(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; ABCL: the Java virtual machine's sockets and clock.

(defmacro uninterruptibly (&body body)
  "Runs BODY; the JVM interrupts threads only where they wait, so nothing is needed."
  `(progn ,@body))

(defun milliseconds ()
  "Milliseconds, a fixnum, of a clock that never steps and has no epoch."
  (values (floor (java:jstatic "nanoTime" "java.lang.System") 1000000)))

(defun processor-count ()
  "How many processors the virtual machine may use, at least 1."
  (java:jcall "availableProcessors" (java:jstatic "getRuntime" "java.lang.Runtime")))

(defun wait-on (condition-variable lock seconds)
  "Releases LOCK, waits up to SECONDS, a real, for a notification of CONDITION-VARIABLE, and
takes LOCK again.  May return early: call it in a loop around what is waited for."
  (bt:condition-wait condition-variable lock :timeout seconds))

(defun %error-number (condition)
  (declare (ignore condition))
  nil)

(defun %accept (listener)
  (usocket:socket-accept listener :element-type 'octet))

(defun %closed-p (listener)
  (java:jcall "isClosed" (usocket:socket listener)))

(defun %pending-connection-p (listener)
  ;; A selector would need the shared channel to be non-blocking under the feet of
  ;; those who accept, so nobody can tell: a connection may be there.
  (declare (ignore listener))
  t)

(defun %wake-listener (listener)
  (usocket:socket-close listener)
  t)

(defun %await-input (usocket seconds)
  (and (usocket:wait-for-input usocket :timeout seconds :ready-only t) t))

(defun %limit-waits (usocket seconds)
  (java:jcall "setSoTimeout" (usocket:socket usocket) (ceiling (* 1000 (or seconds 0)))))

(defun %shut-down (usocket direction)
  (let ((socket (usocket:socket usocket)))
    (unless (eq direction :output) (java:jcall "shutdownInput" socket))
    (unless (eq direction :input) (java:jcall "shutdownOutput" socket))
    t))
