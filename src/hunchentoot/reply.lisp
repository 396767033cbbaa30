(in-package #:hunchentoot-recycling-taskmaster)

;;;; From the content that a handler returns to the octets of the reply.  The code here takes the
;;;; same decisions as Hunchentoot's START-OUTPUT and SEND-RESPONSE, in the same order.

(defun ours-to-send-p ()
  "True when our own code has read the current request, and the reply has not begun."
  (and (current-head)
       (not (headers-sent-p))
       (null hunchentoot:*header-stream*)))

(defun let-program-talk-on (request)
  "Makes the connection's stream the content stream of REQUEST, if that has no content of ours.
Libraries for other protocols look for the stream there."
  (unless (own-content request)
    (open-content-stream request (stream-for-program *exchange*))))

(defmethod hunchentoot:detach-socket :after ((acceptor parallel-acceptor))
  "Lets a handler that will switch protocols pass the stream on."
  (let ((head (current-head)))
    (when (and head (head-upgrade head))
      (let-program-talk-on hunchentoot:*request*))))

(defun stream-for-program (exchange)
  "The stream in which a program may speak another protocol with the client of EXCHANGE."
  (lift-handler-limit exchange)
  (let ((http (exchange-http exchange)))
    (setf (io-talked-on-p (http-io http)) t)
    (if (eq (http-io http) (http-base http))
        (usocket:socket-stream (connection-usocket (exchange-connection exchange)))
        (http-stream http))))

(defun settle-options (head)
  "If the request with HEAD asks by OPTIONS for the server or its root, and no handler was found,
sets the status to 204 and returns the content; else NIL."
  (when (and (eql (hunchentoot:return-code*) hunchentoot:+http-not-found+)
             (options-of-server-p head))
    (setf (hunchentoot:return-code*) hunchentoot:+http-no-content+)
    ""))

(defun send-result (acceptor request content condition backtrace)
  "Answers REQUEST with CONTENT, or with an error page if CONDITION is not NIL.  Does
nothing if the reply has begun.  A refusal of the request's content keeps its status, also where it
was signalled again by a later read."
  (when condition
    (if (and (typep condition 'protocol-error)
             ;; And it does not belong to another request.
             (eq :error (client-side (exchange-protocol *exchange*)))
             (not (headers-sent-p)))
        (settle-refusal condition)
        (report-error acceptor request condition backtrace)))
  (unless (headers-sent-p)
    (handler-case
        (with-debugger
          (setf content (or content (settle-options (current-head))))
          (send-content acceptor request (hunchentoot:return-code*)
                        (or content
                            (hunchentoot:acceptor-status-message
                             acceptor (hunchentoot:return-code*)))))
      (error (condition)
        (report-error acceptor request condition nil)))))

(defun report-error (acceptor request condition backtrace)
  "Logs CONDITION with BACKTRACE.  Sends the error page, or cuts a reply that has begun."
  (log-handler-error condition backtrace)
  (when (typep condition 'invalid-header)
    (drop-header (invalid-header-name condition)))
  (if (headers-sent-p)
      (note-event *exchange* :reply-cut)  ; so that the client sees that the rest is missing
      (let ((status hunchentoot:+http-internal-server-error+))
        (send-content acceptor request status
                      (hunchentoot:acceptor-status-message
                       acceptor status
                       :error (message-text "~A" (list condition) #'condition-text)
                       :backtrace (princ-to-string backtrace))))))

(defun send-content (acceptor request status content)
  "Sends the reply with STATUS and CONTENT, a string or octets, or NIL for none."
  (if (or hunchentoot:*header-stream* (not (typep content '(or string octets))))
      (start-output status content)
      (send-whole-reply acceptor request status content)))

;;; The head of the reply

(defun check-transfer-encoding ()
  "Signals INVALID-HEADER when the program has set Transfer-Encoding on a reply whose length is
known: it would be a second framing (RFC 9112, section 6.1)."
  (let ((coding (hunchentoot:header-out :transfer-encoding)))
    (when coding
      (drop-header :transfer-encoding) ; or the error page would have it too
      (error 'invalid-header :name :transfer-encoding :value coding))))

(defun kept-p (acceptor)
  "True when ACCEPTOR and the program are willing to keep the connection of the current request."
  (and (hunchentoot:acceptor-persistent-connections-p acceptor)
       (not (says-close-p (hunchentoot:header-out :connection)))))

(defgeneric settle-headers
    (reply coding server connection keep-alive content-type content-length)
  (:documentation "Sets the headers SERVER, CONNECTION, KEEP-ALIVE, CONTENT-TYPE and CONTENT-LENGTH
of REPLY where they are not NIL.  A program's Server stays.  CODING is the transfer coding, NIL for
none, or :ANY for one that the program may have set.  Signals INVALID-HEADER, see
CHECK-TRANSFER-ENCODING.")
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
        ;; Set by the program, or by a failed attempt.  The encoder appends the current one.
        (when (entry :date)
          (setf headers (remove :date headers :key #'car))))
      (setf (slot-value reply 'hunchentoot:headers-out) headers))))

;;; The content

(defstruct (content-kind (:include opaque))
  "How a string with CONTENT-TYPE, as the program set it, and EXTERNAL-FORMAT is sent."
  (content-type nil :read-only t)
  (external-format nil :read-only t)
  (header nil :read-only t)             ; the Content-Type that is sent
  (encoding nil :read-only t))          ; as ENCODE-STRING calls it, or NIL

(defvar *content-kinds* '()
  "The content kinds of the last replies, at most sixteen, since not all content types are literals,
and others must not fill the memory.")

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
  "Prepares CONTENT, a string or octets, for sending.  Returns octets and NIL, or a string and its
encoding for ENCODE-STRING; the number of octets; and the Content-Type, or NIL to leave that as it
is."
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
  "The reason phrase for STATUS of Hunchentoot or of the program, where it is not the usual one;
else NIL, so that the ready-made status line can be used."
  (let ((reason (hunchentoot:reason-phrase status))
        (usual (reason-phrase status)))
    (unless (or (equal reason usual)
                ;; Hunchentoot does not know all statuses that we know.
                (and usual (equal reason (hunchentoot:reason-phrase -1))))
      reason)))

(defun encode-with-cookies (reply status cookies)
  (encode-head reply status (hunchentoot:headers-out*)
               :cookies cookies
               :second (current-second)
               :reason (own-reason status)))

(defun cookie-attributes (name cookie)
  "What the acceptor adds to COOKIE, called NAME: attributes, a string, if it is the session's; else
NIL."
  (let ((acceptor hunchentoot:*acceptor*))
    (when (and (typep acceptor 'parallel-acceptor)
               (string= name (hunchentoot:session-cookie-name acceptor)))
      (or (session-cookie-attributes acceptor)
          (if (and (hunchentoot:acceptor-ssl-p acceptor) (not (hunchentoot:cookie-secure cookie)))
              "; Secure; SameSite=Lax"
              "; SameSite=Lax")))))

(defun cookie-texts ()
  (loop for (name . cookie) in (hunchentoot:cookies-out*)
        collect (format nil "~A~@[~A~]" (cookie-text cookie) (cookie-attributes name cookie))))

(defun unfolded (value)
  "VALUE, of a header, on one line.  Hunchentoot sends the text after a newline as a second line
that continues the first, which servers must not send any more (RFC 9112, section 5.2).  It means
the same as white space."
  (if (and (stringp value) (find #\Newline value))
      (cl-ppcre:regex-replace-all "\\r?\\n" value (string #\Tab))
      value))

(defun encode-reply-head (reply status)
  (handler-case (encode-with-cookies reply status (cookie-texts))
    (invalid-header ()
      (loop for header in (hunchentoot:headers-out*)
            do (setf (cdr header) (unfolded (cdr header))))
      (encode-with-cookies reply status (mapcar #'unfolded (cookie-texts))))))

(defun send-whole-reply (acceptor request status content)
  "Sends the reply with STATUS and CONTENT, a string or octets, at once."
  (multiple-value-bind (content encoding length content-type) (settle-content content)
    (flet ((append-it (reply)
             (append-content reply content encoding length)))
      (declare (dynamic-extent #'append-it))
      (send-reply-with acceptor request status content-type length #'append-it))))

(defun settle-head (acceptor status framed-p said content-type)
  "Sets the headers of the reply with STATUS.  FRAMED-P is true if the client
will know where the content ends.  SAID is the second value of FRAMING-OF-STREAM.  CONTENT-TYPE is
the header, or NIL to leave that as it is.  Returns the protocol event that sending the head will
be."
  (unless (body-allowed-p status)
    (mapc #'drop-header '(:content-length :transfer-encoding)))
  (let ((event (reply-event *exchange* status (and framed-p (kept-p acceptor)))))
    (multiple-value-bind (connection keep-alive)
        (connection-headers *exchange* event
                            (seconds-for (exchange-application *exchange*) :idle))
      (settle-headers hunchentoot:*reply*
                      (case said (:chunked "chunked") ((nil) :any))
                      (server-name-of acceptor) connection keep-alive
                      (and (null (exchange-upgrade *exchange*)) content-type)
                      (and (integerp said) (body-allowed-p status) said)))
    event))

(defun begin-reply (acceptor status event)
  "Records that the head of the reply with STATUS is about to be sent, and notes EVENT."
  (note-event *exchange* event)
  (note-headers-sent)
  (when (persists-p (exchange-protocol *exchange*))
    (keep-connection))
  (hunchentoot:acceptor-log-access acceptor :return-code status))

(defun send-reply-with (acceptor request status content-type length append)
  "Sends the reply with STATUS and LENGTH octets of content.  CONTENT-TYPE is as in SETTLE-HEAD.
APPEND is a function of an OUTPUT: it appends the content to that, or returns the content, which is
sent after it."
  (let ((event (settle-head acceptor status t length content-type)))
    (with-reply (reply)
      (encode-reply-head reply status)  ; may signal INVALID-HEADER
      (let ((body (and (content-wanted-p (hunchentoot:request-method request) status)
                       (funcall append reply))))
        (begin-reply acceptor status event)
        (send-reply (http-io (current-http-connection)) reply body)
        (note-event *exchange* :reply-end)))))

(defun append-content (reply content encoding length)
  "Appends CONTENT, LENGTH octets or a string with that many octets in ENCODING, to REPLY.  Returns
the octets instead where it is better to send them by themselves."
  (cond (encoding (encode-string reply content encoding length) nil)
        ((encode-body reply content) nil)
        (t content)))
