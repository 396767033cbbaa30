(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; The state of a handler that may run for a limited time.  handler-limit.lisp has the table of
;;;; its states, and says which thread acts in each.

(defstruct (handler-watch (:include opaque) (:constructor make-handler-watch (exchange end))
                          (:copier nil))
  "The handler of EXCHANGE may run until END, in MILLISECONDS."
  (exchange nil :read-only t)
  (end 0 :type fixnum)
  (lock (bt:make-lock "handler limit") :read-only t)
  (changed (bt:make-condition-variable) :read-only t)
  (state :running
   :type (member :running :reading :replying :over :answering :answered :cutting :cut))
  (function nil))                       ; of the program, called when END has passed; or NIL

(defun watch-late-p (watch)
  "True when the sentinel has acted in place of the handler of WATCH, or is about to."
  (and (member (handler-watch-state watch) '(:answering :answered :cutting :cut)) t))

(defun change-watch (watch states)
  "Changes the state of WATCH to the one that follows its state in STATES, a plist; waits first
while the sentinel uses the connection.  Returns the state before."
  (wait-until (lambda ()
                (let ((state (handler-watch-state watch)))
                  (case state
                    ((:answering :cutting) nil)
                    (t (setf (handler-watch-state watch) (getf states state state))
                       state))))
              (handler-watch-changed watch) (handler-watch-lock watch) nil 1/4))

;;; Reading

(defun watch-of-io (io)
  "The watch of the handler that runs for a request over IO; NIL where there is none."
  (let* ((connection (io-connection (io-base io)))
         (http (and connection (connection-data connection))))
    (and http
         (http-watch http))))

(defun call-reading-under-watch (watch function)
  "Calls FUNCTION, which reads content for the handler of WATCH.  The sentinel does not use the
connection meanwhile, and that time does not count: reading has limits of its own."
  (if (eq :running (change-watch watch '(:running :reading)))
      (let ((began (milliseconds)))
        (unwind-protect (funcall function)
          (incf (handler-watch-end watch) (- (milliseconds) began))
          (change-watch watch '(:reading :running))))
      (funcall function)))
