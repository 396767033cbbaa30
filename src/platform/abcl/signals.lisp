(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; Signals of the Java virtual machine.

(defun call-on-signal (name function)
  "Has FUNCTION, a function without arguments, called for each signal NAME that the process gets
from now on: :HANGUP, :INTERRUPT, :TERMINATE or :REPORT, which is SIGUSR1.  Java makes a thread for
each call."
  (java:jstatic "handle" "sun.misc.Signal"
                (java:jnew "sun.misc.Signal" (ecase name
                                               (:hangup "HUP")
                                               (:interrupt "INT")
                                               (:terminate "TERM")
                                               (:report "USR1")))
                (java:jinterface-implementation "sun.misc.SignalHandler" "handle"
                                                (lambda (signal)
                                                  (declare (ignore signal))
                                                  (funcall function)))))

(defun exit-process (code seconds)
  "Ends the process with CODE, an integer.  SECONDS is ignored, since Java waits for no thread."
  (declare (ignore seconds))
  (finish-output *standard-output*)
  (finish-output *error-output*)
  (ext:quit :status code))
