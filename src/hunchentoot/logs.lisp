(in-package #:hunchentoot-recycling-taskmaster)

;;;; The access log and the message log of acceptors, from an event to a line.
;;;;
;;;; A journal writes the lines for one destination, of both logs where these have the same.  It has
;;;; a thread while the acceptor runs.  When the destination blocks, as a full disk or a pipe
;;;; without a reader does, lines are lost and counted, but no reply and no worker waits.

(defun settle-acceptor-logs (acceptor)
  "Has a journal run for each destination of the logs of ACCEPTOR, if it is started, and no other."
  (settle-logs (acceptor-taskmaster acceptor)
               (and (hunchentoot:started-p acceptor)
                    (remove nil (list (hunchentoot:acceptor-access-log-destination acceptor)
                                      (hunchentoot:acceptor-message-log-destination acceptor))))))

(defmethod (setf hunchentoot:acceptor-access-log-destination) :after
    (destination (acceptor parallel-acceptor))
  (declare (ignore destination))
  (settle-acceptor-logs acceptor))

(defmethod (setf hunchentoot:acceptor-message-log-destination) :after
    (destination (acceptor parallel-acceptor))
  (declare (ignore destination))
  (settle-acceptor-logs acceptor))

(defun reopen-logs (acceptor)
  "Writes the pending lines of the logs of ACCEPTOR, and returns ACCEPTOR.  Call it
after a log file was renamed, as logrotate does: lines of later requests, and all lines after the
return, go to the new file of that name.  Since log files are not kept open, lines go there without
this call too, after about half a second.  Waits for the disk."
  (mapc #'flush-journal (application-journals (acceptor-taskmaster acceptor)))
  acceptor)

;;; A line of the access log: in Hunchentoot's format, as JSON, or made by a function of the program

(defun write-access-line (acceptor request length trace-id &rest facts)
  "Writes a line to the access log of ACCEPTOR, in its format.  FACTS are those for the program, but
time and identifiers; LENGTH is what Hunchentoot writes for the length of the reply to REQUEST;
TRACE-ID is that of its trace, a string or NIL.  Without a REQUEST object, the request was rejected.
An error is logged, and does not harm the request."
  (let ((journal (journal-for (acceptor-taskmaster acceptor)
                              (hunchentoot:acceptor-access-log-destination acceptor)))
        (format (access-log-format acceptor)))
    (labels ((fact (name)
               (getf facts name))
             (all-facts ()
               (append (list :time (utc-now)) facts
                       (list :request-id (and request (request-id request)))
                       (and trace-id (list :trace-id trace-id))))
             (put (line text value &optional (where :quoted))
               (encode-string line text :utf-8)
               (encode-printed line (or value "-") where))
             (encode-combined (line)    ; escaped where characters could forge a part of the line
               (put line "" (fact :remote-address))
               (when (fact :forwarded-for)
                 (put line " (" (fact :forwarded-for) :bracketed))
               (put line (if (fact :forwarded-for) ") " " ") (fact :user) :bracketed)
               (put line " [" (local-now))
               (put line "] \"" (fact :method))
               (cond (request
                      (put line " " (hunchentoot:script-name request))
                      (when (hunchentoot:query-string request)
                        (put line "?" (hunchentoot:query-string request))))
                     ((fact :uri)
                      (put line " " (fact :uri))))
               (when (fact :protocol)
                 (put line " " (fact :protocol)))
               (put line "\" " (fact :status))
               (put line " " length)
               (put line " \"" (fact :referer))
               (put line "\" \"" (fact :user-agent))
               (encode-string line "\"" :utf-8)))
      (handler-case
          (with-line (line)
            (case format
              (:combined (encode-combined line))
              (:json (encode-json line (all-facts)))
              (t (encode-escaped line
                                 (or (funcall format (all-facts))
                                     (return-from write-access-line))
                                 :free)))
            (end-line line)
            (append-line journal line))
        (error (condition)
          (tell (acceptor-taskmaster acceptor) :error
                "A line of the access log could not be made: ~A" condition))))))

(defmethod hunchentoot:acceptor-log-access ((acceptor parallel-acceptor) &key return-code)
  "Has a log thread write the line that Hunchentoot would write, or one in another
:ACCESS-LOG-FORMAT; see REOPEN-LOGS."
  (when (hunchentoot:acceptor-access-log-destination acceptor)
    (let* ((request hunchentoot:*request*)
           (method (hunchentoot:request-method request))
           (length (hunchentoot:content-length*))) ; NIL where it is not known
      (write-access-line
       acceptor request length (request-trace request)
       :remote-address (hunchentoot:remote-addr request)
       ;; Unless the address tells what was believed.
       :forwarded-for (and (not (behind-proxies-p acceptor))
                           (hunchentoot:header-in :x-forwarded-for request))
       :user (and (hunchentoot:header-in :authorization request)
                  (handler-case (values (hunchentoot:authorization request))
                    (error () nil)))    ; they cannot be decoded
       :method (string method)
       :uri (hunchentoot:request-uri request)
       :protocol (string (hunchentoot:server-protocol request))
       :status return-code
       :bytes (if (content-wanted-p method return-code) length 0)
       :duration-us (and *exchange* (exchange-duration *exchange*))
       :referer (hunchentoot:header-in :referer request)
       :user-agent (hunchentoot:header-in :user-agent request)))))

(defun log-rejection (acceptor address status &optional head)
  "Writes a line to the access log of ACCEPTOR about a request from ADDRESS that was rejected with
STATUS.  HEAD is its head as far as it is known, or NIL."
  (when (hunchentoot:acceptor-access-log-destination acceptor)
    (flet ((known (reader)
             (let ((value (and head (funcall reader head))))
               (and value (string/= "" value) (string value)))))
      (write-access-line acceptor nil nil
                         (parse-traceparent (and head (head-header head :traceparent)))
                         :remote-address address :forwarded-for nil :user nil
                         :method (known #'head-method) :uri (known #'head-uri)
                         :protocol (known #'head-protocol)
                         :status status :bytes nil :duration-us nil
                         :referer (and head (head-header head :referer))
                         :user-agent (and head (head-header head :user-agent))))))

;;; Messages of Hunchentoot, of this library and of programs.  All go through one method, so that no
;;; client can forge a line or fill the disk, and a destination that fails costs only the line.

(defvar *ours-to-tell-p* nil
  "True while this library, and not a program, logs a message.")

(defparameter *client-caused-messages*
  '("Error when creating REQUEST object" "Error when reading POST parameters"
    "While parsing multipart/form-data" "Can't read request body" "Got Content-Length header"
    "Fake session identifier" "No session for session identifier" "Session with ID"
    "Error while processing connection" "Warning while processing connection"
    "Can't handle a new request")
  "The beginnings of the control strings of Hunchentoot's messages that clients can cause at will.")

(defun departure-p (argument)
  "True when ARGUMENT, of a message, is a condition which tells that a client has left, or takes no
more of its reply.  That is no error of the program."
  (loop while (typep argument 'usocket:unknown-error) ; it has another one in it
        do (setf argument (slot-value argument 'usocket::real-error)))
  (typep argument 'client-left))

(defun current-request ()
  "The request that the current thread serves, or NIL."
  (and (boundp 'hunchentoot:*request*) hunchentoot:*request*))

(defmethod identifier-of ((request hunchentoot:request))
  (keep-request-id (hunchentoot:aux-request-value 'request-id request)))

(defmethod identifier-of ((request (eql nil))) ; goes before the method for NULL
  (let ((current (current-request)))
    (and current (identifier-of current))))

(defmethod traceparent-of ((request hunchentoot:request))
  (hunchentoot:header-in :traceparent request))

(defmethod traceparent-of ((request (eql nil)))
  (let ((current (current-request)))
    (and current (traceparent-of current))))

(defmethod hunchentoot:acceptor-log-message ((acceptor parallel-acceptor) level control
                                             &rest arguments)
  "Has a log thread write the line that Hunchentoot would write.  That of an error in a handler has
the request and the backtrace.  The rate of messages that clients can cause is limited; a later line
tells how many were left out.  Never signals an error."
  (let* ((destination (hunchentoot:acceptor-message-log-destination acceptor))
         (taskmaster (acceptor-taskmaster acceptor))
         (request (current-request))
         (error-p (equal control *error-control*))
         (seldom-p (or error-p
                       (and (stringp control) ; a program's: FORMAT takes functions, too
                            (not (equal control *rare-control*))
                            (or *ours-to-tell-p*
                                (some (lambda (beginning) (uiop:string-prefix-p beginning control))
                                      *client-caused-messages*))))))
    (cond ((null destination))
          ((and seldom-p (departure-p (first arguments)))
           (tell-seldom taskmaster :departure :info
                        "A client left before its request was answered"
                        "clients left before their requests were answered"))
          (t
           (let ((line (message-line
                        taskmaster (message-log-format acceptor) level control arguments seldom-p
                        :backtrace-p hunchentoot:*log-lisp-backtraces-p*
                        :request (and request error-p
                                      (request-words (hunchentoot:request-method request)
                                                     (hunchentoot:request-uri request)
                                                     (hunchentoot:server-protocol request)))
                        :request-id (and request (request-id request))
                        :trace-id (and request (request-trace request))
                        :remote-address (cond (request (hunchentoot:remote-addr request))
                                              ((and *exchange* (exchange-http *exchange*))
                                               (http-address (exchange-http *exchange*)))))))
             (when line
               (append-line (journal-for taskmaster destination) line)))))))

(defmethod note ((taskmaster recycling-taskmaster) level control &rest arguments
                 &aux (*ours-to-tell-p* t))
  (apply #'hunchentoot:acceptor-log-message (hunchentoot:taskmaster-acceptor taskmaster)
         level control arguments))

;;; Rejected requests, those that are no HTTP, beyond a limit or too slow

(defmethod note-rejected ((taskmaster recycling-taskmaster) http refusal &optional head)
  (log-rejection (hunchentoot:taskmaster-acceptor taskmaster) (http-address http)
                 (protocol-error-status refusal) head)
  (call-next-method))
