(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; Signals of ECL on Unix.

(defun call-on-signal (name function)
  "Has FUNCTION, a function without arguments, called for each signal NAME that the process gets
from now on: :HANGUP, :INTERRUPT, :TERMINATE or :REPORT, which is SIGUSR1.  The call may happen at
any moment that allows interrupts, in any thread, so FUNCTION should only leave a note."
  (ext:set-signal-handler (ecase name
                            (:hangup ext:+sighup+)
                            (:interrupt ext:+sigint+)
                            (:terminate ext:+sigterm+)
                            (:report ext:+sigusr1+))
                          (lambda (&rest arguments)
                            (declare (ignore arguments))
                            (funcall function))))

(defun exit-process (code seconds)
  "Ends the process with CODE, an integer.  SECONDS is ignored, since ECL waits for no thread.  Call
it in the main thread."
  (declare (ignore seconds))
  (finish-output *standard-output*)
  (finish-output *error-output*)
  (ext:exit code))
