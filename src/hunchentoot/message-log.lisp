(in-package #:hunchentoot-recycling-taskmaster)

;;;; The message log, for messages of Hunchentoot, of this library and of programs.  All go through
;;;; one method, so that no client can forge a line or fill the disk, and a destination that fails
;;;; costs only the line.

(defvar *ours-to-tell-p* nil
  "True while this library, and not a program, logs a message.")

;;; Clients that leave

(defun cause-of (condition)
  "CONDITION, or the condition that usocket has wrapped in it."
  (loop while (typep condition 'usocket:unknown-error)
        do (setf condition (slot-value condition 'usocket::real-error)))
  condition)

(defun departure-p (argument)
  "True when ARGUMENT, of a message, is a condition which tells that a client has left, or takes no
more of its reply.  That is no error of the program."
  (let ((condition (cause-of argument)))
    (typecase condition
      (client-left t)
      (end-of-file (typep (ignore-errors (stream-error-stream condition)) 'content)))))

(defun tell-departure (acceptor)
  "Logs, at a limited rate, that a client of ACCEPTOR has left."
  (log-rarely (acceptor-departures acceptor)
              (lambda (control &rest arguments)
                (write-message acceptor :info control arguments))
              "A client left before its request was answered"
              "clients left before their requests were answered"))

;;; Messages

(defparameter *client-caused-messages*
  '("Error when creating REQUEST object" "Error when reading POST parameters"
    "While parsing multipart/form-data" "Can't read request body" "Got Content-Length header"
    "Fake session identifier" "No session for session identifier" "Session with ID"
    "Error while processing connection" "Warning while processing connection"
    "Can't handle a new request")
  "The beginnings of the control strings of Hunchentoot's messages that clients can cause at will.")

(defun client-caused (control)
  "True when CONTROL is a message of Hunchentoot's that a client can cause.  The second value is the
function that makes a text of an argument."
  (cond ((not (stringp control)) nil)   ; a program's: FORMAT takes functions, too
        ((some (lambda (beginning) (uiop:string-prefix-p beginning control))
               *client-caused-messages*)
         (values t #'client-text))
        ((string= control *error-control*)
         (values t #'report-text))))

(defun throttled-text (acceptor control arguments)
  "The text of a message of CONTROL and ARGUMENTS for ACCEPTOR, with the number of earlier ones that
were left out.  NIL where a message that clients can cause comes too often."
  (multiple-value-bind (client-caused-p treat) (client-caused control)
    (if (or client-caused-p
            (and *ours-to-tell-p* (not (equal control *rare-control*))))
        (counted-text (acceptor-throttle acceptor) control arguments (or treat #'report-text))
        (message-text control arguments))))

(defun current-request ()
  "The request that the current thread serves, or NIL."
  (and (boundp 'hunchentoot:*request*) hunchentoot:*request*))

(defmethod identifier-of ((request hunchentoot:request))
  (keep-request-id (hunchentoot:aux-request-value 'request-id request)))

(defmethod identifier-of ((request (eql nil))) ; goes before the method for NULL
  (let ((current (current-request)))
    (and current (identifier-of current))))

(defun current-address (request)
  "The address of the client of REQUEST; where that is NIL, since the request is still read, that of
the client that sends it.  NIL where there is none."
  (cond (request
         (hunchentoot:remote-addr request))
        ((and *exchange* (current-http-connection))
         (http-address (current-http-connection)))))

(defun message-line (acceptor level control arguments)
  "The line, an OUTPUT, for a message of CONTROL and ARGUMENTS for ACCEPTOR at LEVEL; NIL where it
comes too often.  That of an error in a handler has the request and the backtrace."
  (multiple-value-bind (arguments backtrace) (message-parts control arguments)
    (let ((text (throttled-text acceptor control arguments))
          (request (current-request)))
      (and text
           (encoded-message (message-log-format acceptor) level text
                            :backtrace (and hunchentoot:*log-lisp-backtraces-p* backtrace)
                            :request (and request
                                          (equal control *error-control*)
                                          (request-words (hunchentoot:request-method request)
                                                         (hunchentoot:request-uri request)
                                                         (hunchentoot:server-protocol request)))
                            :request-id (and request (request-id request))
                            :remote-address (current-address request))))))

(defun write-message (acceptor level control arguments)
  "Writes the message of CONTROL and ARGUMENTS, at LEVEL, to the message log of ACCEPTOR.  Never
signals an error, and never waits for the destination while ACCEPTOR is started."
  (let ((destination (hunchentoot:acceptor-message-log-destination acceptor)))
    (cond
      ((null destination))
      ((and (client-caused control) (some #'departure-p arguments))
       (tell-departure acceptor))
      (t
       (let ((line (message-line acceptor level control arguments)))
         (when line
           (append-line (journal-for acceptor :messages destination) line t)))))))

(defmethod hunchentoot:acceptor-log-message ((acceptor parallel-acceptor) level control
                                             &rest arguments)
  "Has a log thread write the line that Hunchentoot would write.  The rate of messages that clients
can cause is limited; a later line tells how many were left out."
  (write-message acceptor level control arguments))
