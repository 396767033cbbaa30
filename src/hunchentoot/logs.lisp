(in-package #:hunchentoot-recycling-taskmaster)

;;;; The access log and the message log of acceptors, from an event to a line.
;;;;
;;;; A journal writes the lines for one destination, of both logs where these have the same.  It has
;;;; a thread while the acceptor runs.  When the destination blocks, as a full disk or a pipe
;;;; without a reader does, lines are lost and counted, but no reply and no worker waits.

(defun complain (acceptor level control &rest arguments)
  "Logs the message of CONTROL and ARGUMENTS, at LEVEL, for ACCEPTOR.  Never signals."
  (let ((engine (server-engine acceptor)))
    (if engine
        (apply #'log-message engine level control arguments)
        (handler-case
            (apply #'hunchentoot:acceptor-log-message acceptor level control arguments)
          (error () nil)))))            ; there is no other place to report it

(defun settle-logs (acceptor)
  "Gives ACCEPTOR a journal for each destination of its logs, starts these if it is started, and
ends all others."
  (with-slots (journals journal-lock) acceptor
    (let ((destinations (remove-duplicates
                         (remove nil (list (hunchentoot:acceptor-access-log-destination acceptor)
                                           (hunchentoot:acceptor-message-log-destination
                                            acceptor)))))
          (started-p (hunchentoot:started-p acceptor))
          (old '()) (new '()))
      (with-lock-briefly (journal-lock)
        (setf old journals
              new (loop for destination in destinations
                        collect (or (find destination old :key #'journal-destination)
                                    (make-journal destination
                                                  (format nil "log of ~A" (place-of acceptor))
                                                  (lambda (&rest complaint)
                                                    (apply #'complain acceptor complaint)))))
              journals new))
      (when started-p
        (mapc #'start-journal new))
      (dolist (journal (union old new))
        (unless (and started-p (member journal new))
          (end-journal journal))))))

(defun journal-for (acceptor destination)
  "The journal of ACCEPTOR for DESTINATION."
  (flet ((known ()
           (find destination (the list (acceptor-journals acceptor))
                 :key #'journal-destination :test #'eq)))
    (or (known)
        (progn (settle-logs acceptor)
               (known))
        (make-journal destination "" (constantly nil))))) ; it was just replaced

(defmethod (setf hunchentoot:acceptor-access-log-destination) :after
    (destination (acceptor parallel-acceptor))
  (declare (ignore destination))
  (settle-logs acceptor))

(defmethod (setf hunchentoot:acceptor-message-log-destination) :after
    (destination (acceptor parallel-acceptor))
  (declare (ignore destination))
  (settle-logs acceptor))

(defun reopen-logs (acceptor)
  "Writes the pending lines of the logs of ACCEPTOR, and returns ACCEPTOR.  Call it
after a log file was renamed, as logrotate does: lines of later requests, and all lines after the
return, go to the new file of that name.  Since log files are not kept open, lines go there without
this call too, after about half a second.  Waits for the disk."
  (mapc #'flush-journal (acceptor-journals acceptor))
  acceptor)

;;; A line of the access log: in Hunchentoot's format, as JSON, or made by a function of the program

(defun write-access-line (acceptor combined facts)
  "Writes a line to the access log of ACCEPTOR, in its format.  COMBINED, a function of an OUTPUT,
appends a line in the format :COMBINED to that; the function FACTS returns the plist for the others.
An error is counted and logged, and does not harm the request."
  (let ((journal (journal-for acceptor (hunchentoot:acceptor-access-log-destination acceptor)))
        (format (access-log-format acceptor))
        (test (access-log-test acceptor))
        (text nil))
    (handler-case
        (when (or (null test) (funcall test (funcall facts)))
          (with-line (line)
            (when (case format
                    (:combined (funcall combined line) t)
                    (:json (encode-json line (list* :time (utc-now-with-milliseconds)
                                                    (cddr (funcall facts))))
                     t)
                    (t (when (setf text (funcall format (funcall facts)))
                         (encode-escaped line text :free)
                         t)))
              (end-line line)
              (append-line journal line))))
      (error (condition)
        (lose-line journal condition)))))

(defun encode-combined (line address forwarded user method path query protocol status octets
                        referer user-agent)
  "Appends to LINE what Hunchentoot's ACCEPTOR-LOG-ACCESS writes of these facts, of which most may
be NIL.  Characters that could forge a part of the line are escaped."
  (flet ((put (text value &optional (where :quoted))
           (encode-string line text :utf-8)
           (encode-printed line (or value "-") where)))
    (put "" address)
    (when forwarded
      (put " (" forwarded :bracketed))
    (put (if forwarded ") " " ") user :bracketed)
    (put " [" (local-now))
    (put "] \"" method)
    (when path
      (put " " path))
    (when query
      (put "?" query))
    (when protocol
      (put " " protocol))
    (put "\" " status)
    (put " " octets)
    (put " \"" referer)
    (put "\" \"" user-agent)
    (encode-string line "\"" :utf-8)))

(defun log-access (acceptor request reply status duration)
  "Writes a line about REQUEST, answered by REPLY with STATUS after DURATION, in microseconds or
NIL, to the access log of ACCEPTOR."
  (flet ((user ()                       ; NIL also for credentials that cannot be decoded
           (and (hunchentoot:header-in :authorization request)
                (handler-case (values (hunchentoot:authorization request))
                  (error () nil))))
         (forwarded ()                  ; unless the address tells what was believed
           (and (not (behind-proxies-p (hunchentoot:request-acceptor request)))
                (hunchentoot:header-in :x-forwarded-for request))))
    (flet ((combined (line)
             (encode-combined line (hunchentoot:remote-addr request) (forwarded) (user)
                              (hunchentoot:request-method request)
                              (hunchentoot:script-name request)
                              (hunchentoot:query-string request)
                              (hunchentoot:server-protocol request) status
                              (hunchentoot:content-length reply)
                              (hunchentoot:header-in :referer request)
                              (hunchentoot:header-in :user-agent request)))
           (facts ()
             (list :time (utc-now)
                   :remote-address (hunchentoot:remote-addr request)
                   :forwarded-for (forwarded)
                   :user (user)
                   :method (princ-to-string (hunchentoot:request-method request))
                   :uri (hunchentoot:request-uri request)
                   :protocol (princ-to-string (hunchentoot:server-protocol request))
                   :status status
                   :bytes (if (content-wanted-p (hunchentoot:request-method request) status)
                              (hunchentoot:content-length reply) ; NIL where it is not known
                              0)
                   :duration-us duration
                   :referer (hunchentoot:header-in :referer request)
                   :user-agent (hunchentoot:header-in :user-agent request)
                   :request-id (request-id request))))
      (declare (dynamic-extent #'combined #'facts))
      (write-access-line acceptor #'combined #'facts))))

(defun rejection-facts (address method uri protocol status &optional headers)
  "The facts of a line about a request without a request object."
  (list :time (utc-now) :remote-address address :forwarded-for nil :user nil
        :method (and method (princ-to-string method)) :uri uri
        :protocol (and protocol (princ-to-string protocol))
        :status status :bytes nil :duration-us nil
        :referer (cdr (assoc :referer headers))
        :user-agent (cdr (assoc :user-agent headers))
        :request-id nil))

(defun log-rejection (acceptor address status &optional method uri protocol headers)
  "Writes a line to the access log of ACCEPTOR about a request from ADDRESS that was rejected with
STATUS.  METHOD, URI, PROTOCOL and HEADERS, an alist, are NIL where they are not known."
  (when (hunchentoot:acceptor-access-log-destination acceptor)
    (write-access-line acceptor
                       (lambda (line)
                         (encode-combined line address nil nil method uri nil protocol status nil
                                          (cdr (assoc :referer headers))
                                          (cdr (assoc :user-agent headers))))
                       (lambda ()
                         (rejection-facts address method uri protocol status headers)))))

;;; In the format :COMBINED the line is made when the reply begins, as with Hunchentoot.  In other
;;; formats it tells how long the request took, so it is made at the end of the request.

(defmethod hunchentoot:acceptor-log-access ((acceptor parallel-acceptor) &key return-code)
  "Has a log thread write the line that Hunchentoot would write, or one in another
:ACCESS-LOG-FORMAT; see REOPEN-LOGS."
  (let ((request hunchentoot:*request*) (reply hunchentoot:*reply*))
    (cond ((null (hunchentoot:acceptor-access-log-destination acceptor)))
          ((and *exchange* (not (eq :combined (access-log-format acceptor))))
           (setf (exchange-access *exchange*) (list request reply return-code)))
          (t
           (log-access acceptor request reply return-code nil)))))

(defun finish-access (acceptor exchange)
  "Writes the line of EXCHANGE that is to be written at its end, if there is one."
  (let ((access (shiftf (exchange-access exchange) nil)))
    (when (and access (hunchentoot:acceptor-access-log-destination acceptor))
      (destructuring-bind (request reply status) access
        (log-access acceptor request reply status (exchange-duration exchange))))))

(defun call-timed (acceptor exchange function)
  "Calls FUNCTION, which serves the request of EXCHANGE.  After the call, also when it is left by an
error or a throw, writes the line that tells how long the request took, unless it goes on."
  (unwind-protect (funcall function)
    (when (and (exchange-access exchange) (not (deferred-p exchange)))
      (finish-access acceptor exchange))))

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
  (typecase argument
    (client-left t)
    (end-of-file (typep (ignore-errors (stream-error-stream argument)) 'stream-of-content))))

(defun current-request ()
  "The request that the current thread serves, or NIL."
  (and (boundp 'hunchentoot:*request*) hunchentoot:*request*))

(defmethod identifier-of ((request hunchentoot:request))
  (keep-request-id (hunchentoot:aux-request-value 'request-id request)))

(defmethod identifier-of ((request (eql nil))) ; goes before the method for NULL
  (let ((current (current-request)))
    (and current (identifier-of current))))

(defun write-message (acceptor level control arguments)
  "Writes the message of CONTROL and ARGUMENTS, at LEVEL, to the message log of ACCEPTOR.  That of
an error in a handler has the request and the backtrace.  Never signals an error, and never waits
for the destination while ACCEPTOR is started."
  (let* ((destination (hunchentoot:acceptor-message-log-destination acceptor))
         (request (current-request))
         (error-p (equal control *error-control*))
         ;; Makes a text of an argument, if clients can cause the message.
         (treat (cond (error-p #'report-text)
                      ((not (stringp control)) nil) ; a program's: FORMAT takes functions, too
                      ((some (lambda (beginning) (uiop:string-prefix-p beginning control))
                             *client-caused-messages*)
                       #'client-text))))
    (cond ((null destination))
          ((and treat (some #'departure-p arguments))
           (log-rarely (slot-value acceptor 'throttle) :departure
                       (lambda (control &rest arguments)
                         (write-message acceptor :info control arguments))
                       "A client left before its request was answered"
                       "clients left before their requests were answered"))
          (t
           (unless (or treat (not *ours-to-tell-p*) (equal control *rare-control*))
             (setf treat #'report-text))
           (multiple-value-bind (arguments backtrace) (message-parts control arguments)
             ;; With the number of earlier ones that were left out; NIL where they come too often.
             (let ((text (if treat
                             (counted-text (slot-value acceptor 'throttle)
                                           control arguments treat)
                             (message-text control arguments))))
               (when text
                 (append-line
                  (journal-for acceptor destination)
                  (encoded-message (message-log-format acceptor) level text
                                   :backtrace (and hunchentoot:*log-lisp-backtraces-p* backtrace)
                                   :request (and request error-p
                                                 (request-words
                                                  (hunchentoot:request-method request)
                                                  (hunchentoot:request-uri request)
                                                  (hunchentoot:server-protocol request)))
                                   :request-id (and request (request-id request))
                                   :remote-address
                                   (cond (request (hunchentoot:remote-addr request))
                                         ((and *exchange* (exchange-http *exchange*))
                                          (http-address (exchange-http *exchange*)))))))))))))

(defmethod hunchentoot:acceptor-log-message ((acceptor parallel-acceptor) level control
                                             &rest arguments)
  "Has a log thread write the line that Hunchentoot would write.  The rate of messages that clients
can cause is limited; a later line tells how many were left out."
  (write-message acceptor level control arguments))

(defmethod note ((taskmaster recycling-taskmaster) level control &rest arguments
                 &aux (*ours-to-tell-p* t))
  (apply #'hunchentoot:acceptor-log-message (hunchentoot:taskmaster-acceptor taskmaster)
         level control arguments))

;;; Rejected requests, those that are no HTTP, beyond a limit or too slow; and failed handshakes

(defun count-rejection (acceptor status)
  "Counts a request to ACCEPTOR that was rejected with STATUS."
  (count-as status (taskmaster-rejections (acceptor-taskmaster acceptor))))

(defmethod note-rejected ((taskmaster recycling-taskmaster) http refusal
                          &optional method uri protocol headers)
  (let ((acceptor (hunchentoot:taskmaster-acceptor taskmaster))
        (status (protocol-error-status refusal)))
    (count-rejection acceptor status)
    (log-rejection acceptor (http-address http) status method uri protocol headers)))

(defmethod note-failed-handshake ((taskmaster recycling-taskmaster) condition)
  "Counts and logs that CONDITION has ended a handshake of TASKMASTER."
  (let ((kind (handshake-failure-kind condition)))
    (case kind
      ((nil)                            ; an error of the server: logged as Hunchentoot does
       (when hunchentoot:*log-lisp-errors-p*
         (complain (hunchentoot:taskmaster-acceptor taskmaster)
                   hunchentoot:*lisp-errors-log-level* "~A" condition)))
      (:expired)                        ; the sentinel ended it, and has counted it
      (t
       (count-as kind (taskmaster-failed-handshakes taskmaster))
       (tell-of-failed-handshake taskmaster condition)))))
