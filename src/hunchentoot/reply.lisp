(in-package #:hunchentoot-recycling-taskmaster)

;;;; From what a handler returns to the octets of the reply.  What is decided here, and in
;;;; which order, is what Hunchentoot's START-OUTPUT and SEND-RESPONSE decide.

(defun ours-to-send-p ()
  "True when the current request is one that our own code read, and its reply is still to be made."
  (and (current-head)
       (not (headers-sent-p))
       (null hunchentoot:*header-stream*)))

(defun let-program-talk-on (request)
  "Makes the connection's stream the content stream of REQUEST, which has no content, before its
handler returns: libraries for other protocols look for it there."
  (unless (own-content request)
    (open-content-stream request (stream-for-program *exchange*))))

(defmethod hunchentoot:detach-socket :after ((acceptor parallel-acceptor))
  "Lets a handler that will grant the protocol that was asked for pass the stream on."
  (let ((head (current-head)))
    (when (and head (head-upgrade head))
      (let-program-talk-on hunchentoot:*request*))))

(defun stream-for-program (exchange)
  "The stream in which a program may talk on with the client of EXCHANGE, in another protocol."
  (let ((http (exchange-http exchange)))
    (setf (io-talked-on-p (http-io http)) t)
    (if (eq (http-io http) (http-base http))
        (usocket:socket-stream (connection-usocket (exchange-connection exchange)))
        (http-stream http))))

(defun settle-options (head)
  "Answers 204 to the request with HEAD, for which the program has no content, where that asks by
OPTIONS for the server itself, or for its root, and no handler was found: HAProxy asks so whether a
server is alive (RFC 9110, section 9.3.7).  Returns the content then, else NIL."
  (when (and (eq :options (head-method head))
             (eql (hunchentoot:return-code*) hunchentoot:+http-not-found+)
             (member (head-uri head) '("/" "*") :test #'equal))
    (setf (hunchentoot:return-code*) hunchentoot:+http-no-content+)
    ""))

(defun send-result (acceptor request head content condition backtrace)
  "Answers REQUEST, with HEAD, with CONTENT, unless the reply has begun; with an error page where
CONDITION is one.  Content that was refused has a status for it, also where it was read for the
second time."
  (when condition
    (if (and (typep condition 'protocol-error)
             ;; And it is not another request's.
             (eq :error (client-side (exchange-protocol *exchange*)))
             (not (headers-sent-p)))
        (settle-refusal condition)
        (report-error acceptor request head condition backtrace)))
  (unless (headers-sent-p)
    (handler-case
        (with-debugger
          (setf content (or content (settle-options head)))
          (send-content acceptor request head (hunchentoot:return-code*)
                        (or content
                            (hunchentoot:acceptor-status-message
                             acceptor (hunchentoot:return-code*)))))
      (error (condition)
        (report-error acceptor request head condition nil)))))

(defun report-error (acceptor request head condition backtrace)
  "Answers with the error page for CONDITION, unless an answer has begun."
  (log-handler-error condition backtrace)
  (when (typep condition 'invalid-header)
    (drop-header (invalid-header-name condition)))
  (if (headers-sent-p)
      (note-event *exchange* :reply-cut)  ; the client is to see that the rest is missing
      (let ((status hunchentoot:+http-internal-server-error+))
        (send-content acceptor request head status
                      (hunchentoot:acceptor-status-message
                       acceptor status
                       :error (princ-to-string condition)
                       :backtrace (princ-to-string backtrace))))))

(defun send-content (acceptor request head status content)
  "Sends the reply with STATUS and CONTENT: a string, octets, or NIL for none known."
  (if (or hunchentoot:*header-stream* (not (typep content '(or string octets))))
      (start-output status content)
      (send-whole-reply acceptor request head status content)))

;;; The head of the reply

(defun check-transfer-encoding ()
  "Signals INVALID-HEADER when the program has set Transfer-Encoding on a reply whose length is
known: it would be a second framing (RFC 9112, section 6.1)."
  (let ((coding (hunchentoot:header-out :transfer-encoding)))
    (when coding
      (drop-header :transfer-encoding) ; or the reply that tells of it would have it too
      (error 'invalid-header :name :transfer-encoding :value coding))))

(defun kept-p (acceptor request head)
  "True when the connection of REQUEST, with HEAD, may be used again as far as ACCEPTOR and the
program say."
  (and (hunchentoot:acceptor-persistent-connections-p acceptor)
       (not (says-close-p (hunchentoot:header-out :connection)))
       (not (too-much-unasked-p request head))))

(defgeneric settle-headers
    (reply coding server connection keep-alive content-type content-length)
  (:documentation "Gives REPLY those of the headers SERVER, CONNECTION and KEEP-ALIVE that are not
NIL and that it should have, and CONTENT-TYPE and CONTENT-LENGTH unless they are NIL.  CODING is the
transfer coding, NIL where there is to be none, or :ANY for what the program has set, if anything.
Signals INVALID-HEADER, see CHECK-TRANSFER-ENCODING.")
  ;; As (SETF HEADER-OUT) does it, but all at once.
  (:method ((reply hunchentoot:reply) coding server connection keep-alive
            content-type content-length)
    (let ((headers (slot-value reply 'hunchentoot:headers-out)))
      (flet ((entry (name)
               (assoc name headers :test #'eq)))
        (declare (inline entry))
        (when (and (null coding) (entry :transfer-encoding))
          (check-transfer-encoding))
        (macrolet ((put (name value)
                     `(let ((entry (entry ,name)))
                        (if entry
                            (setf (cdr entry) ,value)
                            (push (cons ,name ,value) headers)))))
          (when (stringp coding)
            (put :transfer-encoding coding))
          (when connection
            (let ((entry (entry :connection)))
              (cond ((null entry) (push (cons :connection connection) headers))
                    ;; A program that set it to NIL wants no "Close".
                    ((and keep-alive (null (cdr entry))) (setf (cdr entry) connection)))))
          (when keep-alive
            (put :keep-alive keep-alive))
          (unless (entry :server)
            (push (cons :server server) headers))
          (when content-type
            (put :content-type content-type)
            (setf (slot-value reply 'hunchentoot:content-type) content-type))
          (when content-length
            (put :content-length content-length)
            (setf (slot-value reply 'hunchentoot:content-length) content-length)))
        ;; From the program, or from an attempt that failed; the encoder appends the true one.
        (when (entry :date)
          (setf headers (remove :date headers :key #'car))))
      (setf (slot-value reply 'hunchentoot:headers-out) headers))))

;;; The content

(defstruct (content-kind (:include opaque))
  "What CONTENT-TYPE, as the program set it, and EXTERNAL-FORMAT make of a string."
  (content-type nil :read-only t)
  (external-format nil :read-only t)
  (header nil :read-only t)             ; the Content-Type that is sent
  (encoding nil :read-only t))          ; as ENCODE-STRING calls it, or NIL

(defvar *content-kinds* '()
  "The content kinds seen last.  Content types are literals, most often; others must not fill
the memory, so there are never more than sixteen.")

(defun content-kind (content-type external-format)
  (dolist (kind *content-kinds* (new-content-kind content-type external-format))
    (when (and (eq (content-kind-content-type kind) content-type)
               (eq (content-kind-external-format kind) external-format))
      (return kind))))

(defun new-content-kind (content-type external-format)
  (let ((kind (make-content-kind
               :content-type content-type
               :external-format external-format
               :header (content-type-with-charset content-type external-format)
               :encoding (encoding-of external-format)))
        (others *content-kinds*))
    (set-published *content-kinds* (cons kind (subseq others 0 (min 15 (length others)))))
    kind))

(defun settle-content (content)
  "What is to be sent for CONTENT, a string or octets: octets, or a string and how ENCODE-STRING
calls its encoding; the number of octets; and the Content-Type, or NIL to leave that as it is."
  (if (stringp content)
      (let* ((text (rewrite-urls content))
             (kind (content-kind (hunchentoot:content-type*)
                                 (hunchentoot:reply-external-format*)))
             (encoding (content-kind-encoding kind))
             (length (and encoding (encoded-length text encoding))))
        (if length
            (values text encoding length (content-kind-header kind))
            (let ((octets (flexi-streams:string-to-octets
                           text :external-format (content-kind-external-format kind))))
              (values (coerce octets 'octets) nil (length octets) (content-kind-header kind)))))
      (let ((octets (coerce content 'octets)))
        (values octets nil (length octets) nil))))

(defun own-reason (status)
  "Hunchentoot's phrase for STATUS, or the program's, where it is not the usual one; else NIL, and
the line for STATUS need not be made anew."
  (let ((reason (hunchentoot:reason-phrase status))
        (usual (reason-phrase status)))
    (unless (or (equal reason usual)
                ;; Hunchentoot does not know all that we know.
                (and usual (equal reason (hunchentoot:reason-phrase -1))))
      reason)))

(defun encode-with-cookies (reply status cookies)
  (encode-head reply status (hunchentoot:headers-out*)
               :cookies cookies
               :second (current-second)
               :reason (own-reason status)))

(defun cookie-texts ()
  (loop for (nil . cookie) in (hunchentoot:cookies-out*)
        collect (cookie-text cookie)))

(defun unfolded (value)
  "VALUE, of a header, on one line.  Hunchentoot sends what follows a newline as a second line
that continues the first: obsolete folding, which nobody may send any more (RFC 9112, section
5.2).  It means the same as white space."
  (if (and (stringp value) (find #\Newline value))
      (cl-ppcre:regex-replace-all "\\r?\\n" value (string #\Tab))
      value))

(defun encode-reply-head (reply status)
  (handler-case (encode-with-cookies reply status (cookie-texts))
    (invalid-header ()
      (loop for header in (hunchentoot:headers-out*)
            do (setf (cdr header) (unfolded (cdr header))))
      (encode-with-cookies reply status (mapcar #'unfolded (cookie-texts))))))

(defun send-whole-reply (acceptor request head status content)
  "Sends the reply with STATUS and CONTENT, a string or octets, at once."
  (multiple-value-bind (content encoding length content-type) (settle-content content)
    (flet ((append-it (reply)
             (append-content reply content encoding length)))
      (declare (dynamic-extent #'append-it))
      (send-reply-with acceptor request head status content-type length #'append-it))))

(defun settle-head (acceptor request head status framed-p said content-type)
  "Decides which headers the reply with STATUS to REQUEST, with HEAD, has.  The client will know
where its content ends if FRAMED-P; SAID is as FRAMING-OF-STREAM has it; CONTENT-TYPE is the header,
or NIL to leave that as it is.  Returns the event that it will be to send that head."
  (unless (body-allowed-p status)
    (mapc #'drop-header '(:content-length :transfer-encoding)))
  (let ((event (reply-event status (and framed-p (kept-p acceptor request head)))))
    (multiple-value-bind (connection keep-alive)
        (connection-headers *exchange* event (hunchentoot:acceptor-read-timeout acceptor))
      (settle-headers hunchentoot:*reply*
                      (case said (:chunked "chunked") ((nil) :any))
                      (server-name-of acceptor) connection keep-alive
                      (and (null (exchange-upgrade *exchange*)) content-type)
                      (and (integerp said) (body-allowed-p status) said)))
    event))

(defun begin-reply (acceptor status event)
  "Notes that the head of the reply with STATUS is about to be sent, which is EVENT."
  (note-event *exchange* event)
  (note-headers-sent)
  (when (persists-p (exchange-protocol *exchange*))
    (keep-connection))
  (hunchentoot:acceptor-log-access acceptor :return-code status))

(defun send-reply-with (acceptor request head status content-type length append)
  "Sends the reply with STATUS and a content of LENGTH octets.  CONTENT-TYPE is as SETTLE-HEAD has
it.  APPEND, a function of the OUTPUT that the reply is made in, appends the content, or returns
what is to be sent after it."
  (let ((event (settle-head acceptor request head status t length content-type)))
    (with-reply (reply)
      (encode-reply-head reply status)  ; may signal INVALID-HEADER
      (let ((body (and (content-wanted-p (hunchentoot:request-method request) status)
                       (funcall append reply))))
        (begin-reply acceptor status event)
        (take-what-was-not-read request head)
        (send-reply (http-io (current-http-connection)) reply body)
        (note-event *exchange* :reply-end)))))

(defun append-content (reply content encoding length)
  "Appends CONTENT, LENGTH octets or a string that is as many in ENCODING, to REPLY; or returns the
octets where it is better to send them by themselves."
  (cond (encoding (encode-string reply content encoding length) nil)
        ((encode-body reply content) nil)
        (t content)))
