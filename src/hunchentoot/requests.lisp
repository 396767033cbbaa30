(in-package #:hunchentoot-recycling-taskmaster)

;;;; One request, from the head that the server has read to the end of its reply; from top to
;;;; bottom:
;;;;
;;;;   RESPOND              the server has the taskmaster answer
;;;;   PROCESS-CONNECTION   the program's methods around it, then ours
;;;;   SERVE-REQUEST        makes Hunchentoot's objects
;;;;   PROCESS-REQUEST      the program's methods around it, then ours: calls the handler
;;;;   SEND-RESULT          sends what that returns (reply.lisp)
;;;;   CONCLUDE-EXCHANGE    ends the reply; whether the connection is kept

;;; The call of PROCESS-CONNECTION

(defmethod respond ((taskmaster recycling-taskmaster) exchange)
  (let* ((acceptor (hunchentoot:taskmaster-acceptor taskmaster))
         (first-p (reads-first-p taskmaster))
         (connection (exchange-connection exchange))
         (socket (connection-usocket connection))
         (*exchange* exchange))
    (when first-p
      (watch-socket socket))
    (if (plusp (connection-served connection))
        (hunchentoot:process-connection acceptor socket)
        (hunchentoot:handle-incoming-connection taskmaster socket))
    (or (connection-outcome connection)
        ;; A method of the program may have closed the socket, or passed it on.
        (let ((io (socket-io socket)))
          (cond ((not (and first-p (socket-asked-p socket))) :close)
                (io (if (lent-open-p io) (leave-to-program connection io) :close))
                ((socket-open-p socket)
                 (setf (connection-outcome connection) :detached)) ; also if what follows fails
                (t :close))))))

(defmethod hunchentoot:process-connection ((acceptor parallel-acceptor) socket)
  "Serves one request, or all requests where a method of the program reads the connection first."
  (let* ((exchange *exchange*)
         (connection (exchange-connection exchange)))
    (flet ((serve-next (&optional (wait-p t))
             (or (next-request-missing exchange wait-p)
                 (serve-request acceptor exchange))))
      ;; In the connection, since methods of programs need not pass our value on.
      (setf (connection-outcome connection) :close ; if this fails
            (connection-outcome connection)
            (cond ((exchange-head exchange)
                   (serve-request acceptor exchange))
                  ((socket-asked-p socket)
                   (loop for outcome = (serve-next)
                         while (eq outcome :park)
                         finally (return outcome)))
                  (t
                   ;; If none has come, the connection is parked where that is possible.
                   (serve-next (not (connection-parkable-p connection)))))))))

;;; Its dynamic context

(defun call-with-connection-stream (exchange stream function)
  "Calls FUNCTION, which goes on with EXCHANGE over STREAM, in the dynamic context that handlers
expect.  FUNCTION returns the outcome for the connection; :DEFERRED when the reply comes later.
Returns the connection's outcome."
  (let* ((http (exchange-http exchange))
         (connection (exchange-connection exchange))
         (*hunchentoot-stream* stream)
         (*close-hunchentoot-stream* t)
         (*finish-processing-socket* t))
    (flet ((hand-over ()                ; a program has detached the socket
             (give-away (exchange-application exchange) connection http)))
      (let ((result (unless-returned (funcall function)
                      (unless *close-hunchentoot-stream*
                        (setf (connection-outcome connection) (hand-over))))))
        (unless (and (eq :deferred result) *close-hunchentoot-stream*)
          (setf (http-stream http) *hunchentoot-stream*))
        (if *close-hunchentoot-stream* result (hand-over))))))

(defun call-as-request (request function keep)
  "Calls FUNCTION in the dynamic context of REQUEST, and returns its values.  If files were uploaded
during the call, calls KEEP, a function, with a list of their pathnames."
  (catch 'request-processed
    (let ((*tmp-files* '())
          (*headers-sent* nil)
          (hunchentoot:*request* request))
      (unwind-protect (funcall function)
        (let ((files (shiftf *tmp-files* '())))
          (when files
            (funcall keep files)))))))

(defun delete-files (files)
  "Deletes those of FILES, a list of pathnames, that still exist."
  (dolist (path files)
    (ignore-errors (delete-file path)))) ; the handler may have moved the file

;;; Hunchentoot's objects

(defmethod initialize-instance :after ((request hunchentoot:request) &rest initargs)
  "Fills the slots that Hunchentoot computes from head and target, and finds the session.  Takes the
place of Hunchentoot's method, which parses by regular expressions and streams: that costs more than
all other work for a short request."
  (declare (ignore initargs))
  (handler-case*
      (let* ((headers (hunchentoot:headers-in request))
             (uri (coerce (hunchentoot:request-uri request) 'text))
             (type (cdr (assoc :content-type headers :test #'eq)))
             (named (and type (external-format-of-type nil type)))
             (external-format (or named *uri-format*))
             (cookies (cdr (assoc :cookie headers :test #'eq))))
        (declare (type text uri))
        (flet ((plain-p (text)          ; it is what it would be decoded to
                 (declare (type text text))
                 (and (null named)
                      (every (lambda (char)
                               (and (< (char-code char) 128) (char/= char #\%) (char/= char #\+)))
                             text))))
          (multiple-value-bind (path-start path-end) (uri-path uri)
            (let ((path (text-part uri path-start path-end)))
              (setf (slot-value request 'hunchentoot:script-name)
                    (cond ((plain-p path) path)
                          (*plus-kept-p* ; since 1.3.0
                           (funcall 'hunchentoot:url-decode path external-format nil))
                          (t (hunchentoot:url-decode path external-format)))))
            (when (< path-end (length uri))
              (let* ((query (text-part uri (1+ path-end) (length uri)))
                     (elements (cl-ppcre:split "&" query))
                     (flexi-streams:*substitution-char* #\?))
                (setf (slot-value request 'hunchentoot:query-string) query
                      (slot-value request 'hunchentoot:get-parameters)
                      (if (plain-p query) ; a tenth of all work for a short request
                          (loop for element in elements
                                for end = (or (position #\= element) (length element))
                                collect (cons (subseq element 0 end)
                                              (subseq element (min (1+ end) (length element)))))
                          (form-url-encoded-list-to-alist elements external-format)))))))
        (when cookies
          (setf (slot-value request 'hunchentoot:cookies-in)
                (cookies-to-alist (text-elements cookies))))
        (let ((name (hunchentoot:session-cookie-name hunchentoot:*acceptor*)))
          ;; Hunchentoot would read a number in a longer one.  Its own are far shorter.
          (unless (< 512 (length (or (hunchentoot:cookie-in name request)
                                     (hunchentoot:get-parameter name request))))
            (setf hunchentoot:*session* (hunchentoot:session-verify request)
                  (slot-value request 'hunchentoot:session) hunchentoot:*session*))))
    (error (condition)
      (hunchentoot:log-message* :error "Error when creating REQUEST object: ~A" condition)
      (setf (hunchentoot:return-code*) hunchentoot:+http-bad-request+))))

(defmethod chunga:chunked-stream-input-chunking-p ((stream stream))
  "The answer to HUNCHENTOOT:INPUT-CHUNKING-P in a handler."
  (let ((head (current-head)))
    (and head
         (eq :chunked (head-framing head)))))

(defun serve-request (acceptor exchange)
  "Serves the request of EXCHANGE, whose head was read.  Returns the connection's outcome."
  (let* ((http (exchange-http exchange))
         (head (exchange-head exchange)))
    (flet ((process-it ()
             (let ((content (take-content exchange))
                   (remote (request-remote http))
                   (local (http-local http))
                   (hunchentoot:*reply*
                     (make-instance (hunchentoot:acceptor-reply-class acceptor)))
                   (hunchentoot:*session* nil))
               (when hunchentoot:*header-stream*
                 (format hunchentoot:*header-stream* "~A ~A ~A~%~:{~:(~A~): ~A~%~}~%~@[~A~%~]"
                         (head-method head) (head-uri head) (head-protocol head)
                         (loop for (name . value) in (head-headers head)
                               collect (list name value))
                         (and (head-expect-100-continue-p head) "HTTP/1.1 100 Continue")))
               (when (and (eq :chunked (head-framing head))
                          (not (hunchentoot:acceptor-input-chunking-p acceptor)))
                 (hunchentoot:parameter-error
                  "The client sends a chunked body, but INPUT-CHUNKING-P is false for ~A."
                  acceptor))
               (unless-returned
                   (let ((request
                           (make-instance (hunchentoot:acceptor-request-class acceptor)
                                          :acceptor acceptor
                                          :remote-addr (first remote) :remote-port (second remote)
                                          :local-addr (first local) :local-port (second local)
                                          :headers-in (headers-for-program exchange)
                                          :method (head-method head) :uri (head-uri head)
                                          :server-protocol (head-protocol head)
                                          :content-stream (content-as-stream content)))
                         (origin (http-origin http))
                         (told-id (exchange-request-id exchange)))
                     ;; For threads that know only the request.
                     (when origin
                       (setf (hunchentoot:aux-request-value 'scheme request)
                             (origin-scheme origin)))
                     (when told-id
                       (setf (hunchentoot:aux-request-value 'request-id request) told-id))
                     (hunchentoot:process-request request))
                 (drop-upgrade exchange)))
             (cond ((deferred-p exchange)
                    :deferred)
                   ((and (exchange-upgrade exchange) (switch-protocols exchange http))
                    (abandon-content http)
                    :deferred)
                   (t
                    (when (exchange-upgrade exchange)
                      (drop-upgrade exchange))
                    (conclude-exchange acceptor exchange)))))
      (declare (dynamic-extent #'process-it))
      ;; They may be left from an earlier request, where one call serves all requests.
      (setf (exchange-deferred-response exchange) nil
            (exchange-upgrade exchange) nil
            (exchange-claim exchange) nil)
      (let ((outcome (call-with-connection-stream exchange (http-stream http) #'process-it)))
        (if (eq :deferred outcome)
            (leave-or-keep exchange)
            outcome)))))

;;; The handler

(defmethod hunchentoot:process-request ((request hunchentoot:request))
  "Does what Hunchentoot's method does, but makes the reply of octets where our own code has read
the head."
  (if (null (current-head))
      (call-next-method)
      (let ((acceptor hunchentoot:*acceptor*)
            (exchange *exchange*))
        (flet ((answer ()
                 (multiple-value-bind (content condition backtrace left-p)
                     ;; Or making the request has found it bad.
                     (and (eql (hunchentoot:return-code*) hunchentoot:+http-ok+)
                          (call-handler acceptor request exchange))
                   (let ((deferred-response (exchange-deferred-response exchange)))
                     (when (and (exchange-upgrade exchange)
                                (or condition
                                    (not (eql hunchentoot:+http-switching-protocols+
                                              (hunchentoot:return-code*)))))
                       ;; The reply is an ordinary one after all.
                       (mapc #'drop-header '(:upgrade :connection :sec-websocket-accept
                                             :sec-websocket-protocol))
                       (drop-upgrade exchange))
                     (cond ((eq :late (exchange-claim exchange))
                            ;; The request was answered in place of its handler.
                            (when (and condition (not (departure-p condition)))
                              (log-handler-error condition backtrace))
                            (when deferred-response
                              (withdraw-deferred-response deferred-response))
                            (drop-upgrade exchange)
                            ;; Methods around this one would switch protocols by its status.
                            (setf (hunchentoot:return-code*)
                                  hunchentoot:+http-service-unavailable+)
                            (note-event exchange :reply-cut))
                           (t
                            (cond ((exchange-upgrade exchange)
                                   (setf content "")) ; a head without content
                                  (deferred-response
                                   (setf (values content condition backtrace)
                                         (deferred-result deferred-response
                                                          left-p condition backtrace))))
                            (unless (eq :later content)
                              (send-result acceptor request content condition backtrace))))))))
          (declare (dynamic-extent #'answer))
          (call-as-request request #'answer #'delete-files))
        ;; After this method, methods of WebSocket libraries go on with the stream.
        (when (and (eql (hunchentoot:return-code*) hunchentoot:+http-switching-protocols+)
                   (null (exchange-upgrade exchange)))
          (note-event exchange :switch)
          (setf (slot-value request 'content-stream) (stream-for-program exchange))))))

(defun call-handler (acceptor request exchange)
  "Calls the handler for REQUEST, of EXCHANGE, and returns its value.  If it was left by an error or
a throw, returns what was thrown or NIL, the condition, a backtrace, which is NIL where memory is
exhausted, and true.  A backtrace ends at this function."
  ;; Hunchentoot catches errors.  An exhausted stack has to be unwound first.
  (flet ((handle ()
           (hunchentoot:handle-request acceptor request)))
    (declare (dynamic-extent #'handle))
    (handler-case
        (multiple-value-bind (content condition backtrace)
            (catch 'handler-done
              (return-from call-handler
                (values (call-with-handler-limit exchange #'handle))))
          (values content condition backtrace t))
      (storage-condition (condition)
        (make-room-in-heap 0)           ; or the next handler would run out of memory too
        (values nil condition nil t)))))

(defun log-handler-error (condition backtrace)
  (when hunchentoot:*log-lisp-errors-p*
    (hunchentoot:log-message* hunchentoot:*lisp-errors-log-level* *error-control* condition
                              (and hunchentoot:*log-lisp-backtraces-p* backtrace))))

(defun short-backtrace (hunchentoots)
  "A backtrace of the caller, a string.  With an acceptor of ours, it has only the beginning of long
sequences, and no frames of the server below the handler; else HUNCHENTOOTS, a function, makes it.
Hunchentoot's has all elements of all arguments, even the octets of a large body: a client that
leaves during an upload of 10 MiB would cost a gigabyte.  Besides, what clients send does not belong
into logs, nor into the error page of another client."
  (if (typep hunchentoot:*acceptor* 'parallel-acceptor)
      (call-for-backtrace hunchentoots *backtrace-print-length* 'call-handler)
      (funcall hunchentoots)))

;;; The end

(defun conclude-exchange (acceptor exchange)
  "Completes the reply of EXCHANGE.  Returns the outcome for the connection, :PARK or :CLOSE."
  (let* ((http (exchange-http exchange))
         (io (http-io http)))
    (flet ((without-reply (stream)
             ;; The stream beneath the reply's, or STREAM, if the reply was no stream.
             (cond ((and (typep stream 'reply-stream) (not (eq stream (http-stream http))))
                    (note-event exchange (if (end-reply stream) :reply-end :reply-cut))
                    (reply-stream-inner stream))
                   (t stream))))
      (cond ((eq :cut (exchange-output exchange))
             ;; In the middle: octets that were written are sent, but no last chunk.
             (setf *hunchentoot-stream* (http-stream http))
             (when (io-open-p io)
               (push-output io)))
            (t
             (let ((stream (without-reply *hunchentoot-stream*)))
               (unless (flushed-p io stream)
                 (finish-output stream))
               ;; If a program has put a stream around the reply's, its method has removed it.
               (setf *hunchentoot-stream*
                     (without-reply (hunchentoot:reset-connection-stream acceptor stream))))
             (cond (*finish-processing-socket* ; the program wants that
                    (setf (exchange-kept-p exchange) nil))
                   ((null (exchange-output exchange)) ; Hunchentoot's code has sent
                    (note-event exchange :reply)
                    (note-event exchange :reply-end)))))
      (end-exchange exchange))))

;; These are no errors of the program, so they do not enter the debugger where
;; HUNCHENTOOT:*CATCH-ERRORS-P* is NIL.
(defmethod hunchentoot:maybe-invoke-debugger ((condition client-left))
  nil)

(defmethod hunchentoot:maybe-invoke-debugger ((condition protocol-error))
  "Leaves the handler, whose content is refused: Hunchentoot would make a backtrace, and since 1.3
pass the text of CONDITION on."
  (when (current-head)
    (throw 'handler-done (values nil condition))))
