(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; Signals of SBCL on Unix.
;;;;
;;;; SBCL does not defer SIGUSR1, as it does the others: Lisp code would run in the middle of a
;;;; collection of garbage, and end the process.  So SIGQUIT asks for the report, as it asks a Java
;;;; virtual machine.

(defun call-on-signal (name function)
  "Has FUNCTION, a function without arguments, called for each signal NAME that the process gets
from now on: :HANGUP, :INTERRUPT, :TERMINATE or :REPORT, which is SIGQUIT.  The call may happen at
any moment that allows interrupts, in any thread, so FUNCTION should only leave a note."
  (sb-sys:enable-interrupt (ecase name
                             (:hangup sb-unix:sighup)
                             (:interrupt sb-unix:sigint)
                             (:terminate sb-unix:sigterm)
                             (:report sb-unix:sigquit))
                           (lambda (signal information context)
                             (declare (ignore signal information context))
                             (funcall function))))

(defun exit-process (code seconds)
  "Ends the process with CODE, an integer.  Runs exit hooks and unwinds the other threads, and waits
up to SECONDS, a real, for the ends of these.  Call it in the main thread."
  (sb-ext:exit :code code :timeout seconds))
