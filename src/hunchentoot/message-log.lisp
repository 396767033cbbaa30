(in-package #:hunchentoot-recycling-taskmaster)

;;;; The message log: what Hunchentoot, we and programs have to tell.  Whatever is told goes
;;;; through one method: there a client can neither forge a line nor fill the disk, and a
;;;; destination that fails costs the line alone.

(defvar *ours-to-tell-p* nil
  "True while we tell something, and not a program.")

(defun message-head (level)
  "What a message at LEVEL, a keyword or NIL, begins with."
  (format nil "[~A~@[ [~A]~]] "
          (rendered-second *local-time* (get-universal-time) 'local-time-text) level))

;;; Clients that leave

(defun cause-of (condition)
  "What CONDITION is, or what it is about where usocket has made it of another one."
  (loop while (typep condition 'usocket:unknown-error)
        do (setf condition (slot-value condition 'usocket::real-error)))
  condition)

(defun departure-p (argument)
  "True when ARGUMENT, of a message, is an error that tells that a client is gone, or takes no more
of its reply: amid the content of its request, or its reply.  That is no error of the program."
  (let ((condition (cause-of argument)))
    (typecase condition
      ((or descriptor-broken stream-timeout) t)
      (end-of-file (typep (ignore-errors (stream-error-stream condition)) 'content)))))

(defun tell-departure (acceptor)
  "Tells, seldom, that a client of ACCEPTOR has left."
  (log-rarely (acceptor-departures acceptor)
              (lambda (control &rest arguments)
                (write-message acceptor :info control arguments))
              "A client left before its request was answered"
              "clients left before their requests were answered"))

;;; Messages

(defun throttled-text (acceptor control arguments)
  "The text of a message to ACCEPTOR of CONTROL and ARGUMENTS, with how many there were of its
kind; NIL where it is one too many of those that clients can cause."
  (multiple-value-bind (client-caused-p treat) (client-caused control)
    (if (or client-caused-p
            (and *ours-to-tell-p* (not (equal control *rare-control*))))
        (counted-text (acceptor-throttle acceptor) control arguments (or treat #'report-text))
        (message-text control arguments))))

(defun write-message (acceptor level control arguments)
  "Writes what CONTROL and ARGUMENTS say to the message log of ACCEPTOR, at LEVEL.  Never signals
an error, and never waits for the destination while ACCEPTOR is started."
  (let ((destination (hunchentoot:acceptor-message-log-destination acceptor)))
    (cond
      ((null destination))
      ((and (client-caused control) (some #'departure-p arguments))
       (tell-departure acceptor))
      (t
       (let ((text (throttled-text acceptor control arguments)))
         (when text
           (append-line (journal-for acceptor :messages destination)
                        (encoded-message (message-head level) text)
                        t)))))))

(defparameter *message-method*
  (make-calling-method (lambda (acceptor level control &rest arguments)
                         (write-message acceptor level control arguments)))
  "A method that does what ours does; NIL where methods cannot be called.")

(defmethod hunchentoot:acceptor-log-message ((acceptor parallel-acceptor) level control
                                             &rest arguments)
  "Writes the line that Hunchentoot would write, by way of a thread of its own.  Of what a client
can cause again and again, no more than some lines are written, which tell how many there were."
  (let ((methods (primaries-after-ours #'hunchentoot:acceptor-log-message
                                       (list acceptor level control))))
    (if methods
        (call-methods (append methods (list *message-method*))
                      (list* acceptor level control arguments))
        (write-message acceptor level control arguments))))
