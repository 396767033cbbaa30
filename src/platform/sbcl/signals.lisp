(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; Signals of SBCL on Unix.
;;;;
;;;; SBCL does not defer SIGUSR1, as it does the others: Lisp code would run in the middle of a
;;;; collection of garbage, and end the process.  So SIGQUIT asks for the report, as it asks a Java
;;;; virtual machine.
;;;;
;;;; Until its handler is replaced, SIGTERM calls SB-EXT:EXIT, in any thread.  In the finalizer's,
;;;; which the system chooses when the main thread blocks signals, that ends this thread alone, and
;;;; every later exit waits for the lock that it keeps.

(defun exit-begun-p ()
  "True if a thread has begun to end the process, and perhaps failed."
  (sb-thread:mutex-owner sb-impl::*exit-lock*))

(defun call-on-signal (name function)
  "Has FUNCTION, a function without arguments, called for each signal NAME that the process gets
from now on: :HANGUP, :INTERRUPT, :TERMINATE or :REPORT, which is SIGQUIT; also for a :TERMINATE
that came before.  The call may happen at any moment that allows interrupts, in any thread, so
FUNCTION should only leave a note."
  (sb-sys:enable-interrupt (ecase name
                             (:hangup sb-unix:sighup)
                             (:interrupt sb-unix:sigint)
                             (:terminate sb-unix:sigterm)
                             (:report sb-unix:sigquit))
                           (lambda (&rest arguments)
                             (declare (ignore arguments))
                             (funcall function)))
  (when (and (eq name :terminate) (exit-begun-p))
    (funcall function)))

(defun exit-process (code seconds)
  "Ends the process with CODE, an integer.  Writes what the standard streams keep, runs exit hooks
and unwinds the other threads, and waits up to SECONDS, a real, for the first, and for the ends of
these; but not where a thread has begun that, and failed.  Call it in the main thread."
  (let ((writer (ignore-errors (sb-thread:make-thread #'sb-impl::flush-standard-output-streams))))
    ;; SBCL's exit would wait without limit for the reader of a pipe that has stopped.
    (unless (or (null writer) (join-thread writer seconds))
      (setf sb-sys:*stdout* (make-broadcast-stream)
            sb-sys:*stderr* sb-sys:*stdout*
            sb-sys:*tty* (make-two-way-stream sb-sys:*stdin* sb-sys:*stdout*))))
  (sb-ext:exit :code code :timeout seconds :abort (exit-begun-p)))
