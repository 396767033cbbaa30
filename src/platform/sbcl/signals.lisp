(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; Signals of SBCL on Unix.

(defun call-on-signal (name function)
  "Has FUNCTION, a function without arguments, called for each signal NAME that the process gets
from now on: :HANGUP, :INTERRUPT, :TERMINATE or :USER-1.  The call may happen at any moment that
allows interrupts, in any thread, so FUNCTION should only leave a note."
  (sb-sys:enable-interrupt (ecase name
                             (:hangup sb-unix:sighup)
                             (:interrupt sb-unix:sigint)
                             (:terminate sb-unix:sigterm)
                             (:user-1 sb-unix:sigusr1))
                           (lambda (signal information context)
                             (declare (ignore signal information context))
                             (funcall function))))

(defun exit-process (code seconds)
  "Ends the process with CODE, an integer.  Runs exit hooks and unwinds the other threads, and waits
up to SECONDS, a real, for the ends of these.  Call it in the main thread."
  (sb-ext:exit :code code :timeout seconds))
