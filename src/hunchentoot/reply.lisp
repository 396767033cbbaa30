(in-package #:hunchentoot-recycling-taskmaster)

;;;; From what a handler returns, or writes, to the octets of the reply.  The code here takes the
;;;; same decisions as Hunchentoot's START-OUTPUT and SEND-RESPONSE, in the same order.

(defun send-result (acceptor request content condition backtrace)
  "Answers REQUEST with CONTENT, or with an error page if CONDITION is not NIL.  Does
nothing if the reply has begun.  A refusal of the request's content has a status of its own."
  (cond ((null condition))
        ((and (typep condition 'protocol-error) (not *headers-sent*))
         (let ((status (protocol-error-status condition)))
           (count-as status (acceptor-taskmaster acceptor))
           (setf (exchange-kept-p *exchange*) nil
                 (hunchentoot:return-code*) status)
           (when (eql status hunchentoot:+http-service-unavailable+)
             (setf (hunchentoot:header-out :retry-after) *retry-seconds*))))
        (t
         (report-error acceptor request condition backtrace)))
  (unless *headers-sent*
    (handler-case
        (with-debugger
          ;; A request of the server itself, or its root, for which no handler was found.
          (when (and (null content)
                     (eql (hunchentoot:return-code*) hunchentoot:+http-not-found+)
                     (options-of-server-p (current-head)))
            (setf (hunchentoot:return-code*) hunchentoot:+http-no-content+
                  content ""))
          (send-content acceptor request (hunchentoot:return-code*)
                        (or content
                            (hunchentoot:acceptor-status-message
                             acceptor (hunchentoot:return-code*)))))
      (error (condition)
        (report-error acceptor request condition nil)))))

(defun report-error (acceptor request condition backtrace)
  "Logs CONDITION with BACKTRACE.  Sends the error page, or cuts a reply that has begun."
  (log-handler-error condition backtrace)
  (flet ((send-page (&aux (status hunchentoot:+http-internal-server-error+))
           (drop-header :content-encoding) ; of what is not sent
           (send-content acceptor request status
                         (hunchentoot:acceptor-status-message
                          acceptor status
                          :error (message-text "~A" (list condition) #'condition-text)
                          :backtrace (princ-to-string backtrace)))))
    (if *headers-sent*
        (note-event *exchange* :reply-cut) ; so that the client sees that the rest is missing
        (handler-case (send-page)
          (invalid-header ()            ; of those that the handler has set
            (setf (slot-value hunchentoot:*reply* 'hunchentoot:headers-out) '()
                  (hunchentoot:cookies-out*) '())
            (send-page))))))

;;; Content

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
  (dolist (kind *content-kinds*)
    (when (and (eq (content-kind-content-type kind) content-type)
               (eq (content-kind-external-format kind) external-format))
      (return-from content-kind kind)))
  (let* ((header (maybe-add-charset-to-content-type-header content-type external-format))
         (kind (make-content-kind
                :content-type content-type
                :external-format external-format
                :header (and header (coerce header 'text)) ; as each reply needs it
                :encoding (and (eq :lf (flexi-streams:external-format-eol-style external-format))
                               (case (flexi-streams:external-format-name external-format)
                                 (:utf-8 :utf-8)
                                 (:iso-8859-1 :latin-1)))))
         (others *content-kinds*))
    (set-published *content-kinds* (cons kind (subseq others 0 (min 15 (length others)))))
    kind))

(defun send-content (acceptor request status content)
  "Sends the reply with STATUS and CONTENT, a string, a sequence of octets, or NIL."
  (let* ((content (if (and (hunchentoot:session request) (stringp content))
                      (rewrite-urls content)
                      content))
         (kind (and (stringp content)
                    (content-kind (hunchentoot:content-type*)
                                  (hunchentoot:reply-external-format*))))
         (encoding (and kind (content-kind-encoding kind)))
         (length (and encoding (encoded-length content encoding)))
         (body (cond (length content)
                     (kind
                      (coerce (flexi-streams:string-to-octets
                               content :external-format (content-kind-external-format kind))
                              'octets))
                     ;; No sequence is refused in Hunchentoot's words.
                     (content (coerce (the sequence content) 'octets)))))
    (flet ((append-it (reply)
             (cond (length (encode-string reply body encoding length) nil)
                   ((or (null body) (encode-body reply body)) nil)
                   (t body))))          ; it is better to send it by itself
      (declare (dynamic-extent #'append-it))
      (send-reply-with acceptor request status (and kind (content-kind-header kind))
                       (or length (and body (length body))) #'append-it))))

(defun send-reply-with (acceptor request status content-type length append &optional file-p)
  "Sends the reply with STATUS and LENGTH octets of content, or, with NIL, without content: then the
connection ends, unless none is expected.  CONTENT-TYPE is as in ENCODE-REPLY-HEAD.  APPEND is a
function of an OUTPUT: it appends the content to that, or returns the content, which is sent after
it.  FILE-P is true for that of a file."
  (let* ((wanted-p (content-wanted-p (hunchentoot:request-method request) status))
         (framed-p (or length (not wanted-p) (eql 0 (hunchentoot:content-length*)))))
    (multiple-value-bind (coding varied-p)
        (coding-of-reply-here status (or length 0) (or content-type (hunchentoot:content-type*))
                              :file-p file-p)
      (multiple-value-bind (length append coding) (code-content coding wanted-p length append)
        (with-reply (reply)
          (when varied-p
            (tell-coding status coding))
          (encode-reply-head reply acceptor status framed-p length content-type)
          (let ((body (and wanted-p (funcall append reply))))
            (begin-reply acceptor status)
            (send-reply (http-io (exchange-http *exchange*)) reply body)
            (note-event *exchange* :reply-end)))))))

(defun coding-of-reply-here (status length content-type
                             &key file-p (reply hunchentoot:*reply*) (exchange *exchange*))
  "The values of CODING-OF-REPLY for REPLY, to EXCHANGE."
  (and (application-compression (exchange-application exchange))
       (coding-of-reply exchange status length content-type
                        (hunchentoot:header-out :content-encoding reply)
                        (hunchentoot:header-out :cache-control reply)
                        file-p)))

(defun tell-coding (status coding)
  "Sets the headers of the reply with STATUS, whose CODING, or NIL, depends on the client."
  (let ((tag (hunchentoot:header-out :etag)))
    (when tag
      (setf (hunchentoot:header-out :etag) (tag-to-send *exchange* status tag coding))))
  (pushnew '(:vary . "Accept-Encoding") (slot-value hunchentoot:*reply* 'hunchentoot:headers-out)
           :test #'equal)
  (when coding
    (drop-header :content-length)
    (setf (hunchentoot:header-out :content-encoding) (coding-name coding))))

;;; The head

(defun drop-header (name)
  "Removes the header NAME from the reply."
  (setf (slot-value hunchentoot:*reply* 'hunchentoot:headers-out)
        (remove name (hunchentoot:headers-out*) :key #'car)))

(defun cookie-texts (cookies)
  "The values of Set-Cookie for COOKIES, an alist of names and cookies."
  (loop with acceptor = hunchentoot:*acceptor*
        for (name . cookie) in cookies
        collect (format nil "~A~@[~A~]" (stringify-cookie cookie)
                        (cond ((string/= name (hunchentoot:session-cookie-name acceptor)) nil)
                              ((session-cookie-attributes acceptor))
                              ((and (hunchentoot:acceptor-ssl-p acceptor)
                                    (not (hunchentoot:cookie-secure cookie)))
                               "; Secure; SameSite=Lax")
                              (t "; SameSite=Lax")))))

(defun encode-reply-head (output acceptor status framed-p said content-type)
  "Sets the headers of the reply with STATUS, and appends its head to OUTPUT.  FRAMED-P is true if
the client will know where the content ends.  SAID is the second value of FRAMING-OF-STREAM.
CONTENT-TYPE is the header, or NIL to leave that as it is.  Signals INVALID-HEADER."
  (unless (body-allowed-p status)
    (setf said nil)
    (mapc #'drop-header '(:content-length :transfer-encoding)))
  (let ((reply hunchentoot:*reply*))
    (multiple-value-bind (connection keep-alive)
        (settle-reply-connection
         *exchange* status
         (and framed-p (hunchentoot:acceptor-persistent-connections-p acceptor))
         (hunchentoot:header-out :connection))
      ;; As (SETF HEADER-OUT) does it, but all at once.
      (let ((headers (slot-value reply 'hunchentoot:headers-out)))
        (macrolet ((entry (name)
                     `(assoc ,name headers :test #'eq))
                   (put (name value)
                     `(let ((entry (entry ,name)))
                        (if entry
                            (setf (cdr entry) ,value)
                            (push (cons ,name ,value) headers)))))
          (when (and (not (eq :chunked said)) (cdr (entry :transfer-encoding)))
            ;; The program has set it, and there are no chunks (RFC 9112, section 6.1).
            (error 'invalid-header :name :transfer-encoding
                                   :value (cdr (entry :transfer-encoding))))
          (when (eq :chunked said)
            (put :transfer-encoding "chunked"))
          (when connection
            (let ((entry (entry :connection)))
              (cond ((null entry) (push (cons :connection connection) headers))
                    ;; A program that set it to NIL wants no "Close".
                    ((and keep-alive (null (cdr entry))) (setf (cdr entry) connection)))))
          (when keep-alive
            (put :keep-alive keep-alive))
          (unless (entry :server)
            (push (cons :server (slot-value acceptor 'server-name)) headers))
          (when (and content-type (null (exchange-upgrade *exchange*)))
            (put :content-type content-type)
            (setf (slot-value reply 'hunchentoot:content-type) content-type))
          (when (integerp said)
            (put :content-length said)
            (setf (slot-value reply 'hunchentoot:content-length) said))
          ;; Set by the program, or by a failed attempt.  The encoder appends the current one.
          (when (entry :date)
            (setf headers (remove :date headers :key #'car))))
        (setf (slot-value reply 'hunchentoot:headers-out) headers))))
  (encode-head output status (hunchentoot:headers-out*)
               :cookies (and (hunchentoot:cookies-out*) (cookie-texts (hunchentoot:cookies-out*)))
               :second (get-universal-time))
  (when hunchentoot:*header-stream*
    (write-string (latin-1-text (output-octets output) 0 (output-fill output))
                  hunchentoot:*header-stream*)))

(defun begin-reply (acceptor status)
  "Records that the head of the reply with STATUS is about to be sent."
  (note-event *exchange* :reply)
  (setf *headers-sent* t)
  (when (exchange-kept-p *exchange*)
    (setf *finish-processing-socket* nil))
  (hunchentoot:acceptor-log-access acceptor :return-code status))

;;; Replies that a handler writes itself: HUNCHENTOOT:SEND-HEADERS sends the head, and returns a
;;; stream for the content.  It calls Hunchentoot's function START-OUTPUT, which we wrap.  Where our
;;; own code has read the request, the head is made as for a whole reply, and the stream is a
;;; REPLY-STREAM.

(defun start-output-here (hunchentoots status &rest content)
  "Begins a reply with STATUS, whose content its handler writes.  Calls HUNCHENTOOTS, a function of
STATUS and CONTENT, a list of one or no element, where our own code has not read the request."
  (declare (dynamic-extent content))
  (if (null (current-head))
      (apply hunchentoots status content)
      (progn (begin-limited-reply *exchange*)
             (unless *headers-sent*
               (multiple-value-bind (coding varied-p)
                   (and (null (hunchentoot:content-length*))
                        (coding-of-reply-here status nil (hunchentoot:content-type*)))
                 (when varied-p
                   (tell-coding status coding))
                 (unless-returned (start-streaming hunchentoot:*acceptor* hunchentoot:*request*
                                                   status coding)
                   (when coding         ; the program may try again
                     (drop-header :content-encoding))))))))

(defmethod reply-begun-p ((taskmaster recycling-taskmaster) exchange)
  "True outside of handlers, too, and when Hunchentoot's own code has begun the reply."
  (or *headers-sent*
      (null (current-request))
      (call-next-method)))

(defun framing-for (request status length)
  "The values of FRAMING-OF-STREAM for a reply to REQUEST with STATUS and LENGTH.  Signals
INVALID-HEADER for an impossible length."
  (unless (typep length '(or null content-size))
    (error 'invalid-header :name :content-length :value length))
  (framing-of-stream (hunchentoot:request-method request) status length
                     (and (hunchentoot:acceptor-output-chunking-p
                           (hunchentoot:request-acceptor request))
                          (eq :http/1.1 (hunchentoot:server-protocol request)))))

(defun start-streaming (acceptor request status coding)
  "Sends the head of the reply with STATUS to REQUEST and returns the stream for the content, which
puts it in CODING, unless that is NIL.  Leaves the handler by a throw if the method is HEAD."
  (multiple-value-bind (framing said)
      (framing-for request status (hunchentoot:content-length*))
    (let ((io (http-io (exchange-http *exchange*))))
      (with-reply (reply)
        (encode-reply-head reply acceptor status (not (eq :plain framing)) said nil)
        (whole-or-broken (io)
          (begin-reply acceptor status)
          (write-with-backpressure io (output-octets reply) 0 (output-fill reply))))
      (if (eql status hunchentoot:+http-switching-protocols+)
          (let-program-talk-on request)
          (setf *hunchentoot-stream*
                (make-instance 'reply-stream :io io :framing framing :inner *hunchentoot-stream*
                                             :compressor (and coding
                                                              (not (eq :none framing))
                                                              (compressor-of-worker coding)))))
      (cond ((eq :head (hunchentoot:request-method request))
             (throw 'request-processed nil))
            ;; At once, as Hunchentoot does, since the handler may take long.
            ((eq :chunked framing)
             (push-output io)))
      *hunchentoot-stream*)))

;;; Connections that speak another protocol

(defun stream-for-program (exchange)
  "The stream in which a program may speak another protocol with the client of EXCHANGE."
  (lift-handler-limit exchange)
  (let ((http (exchange-http exchange)))
    (setf (io-talked-on-p (http-io http)) t)
    (if (and (eq (http-io http) (http-base http)) (not (io-tls-handle (http-io http))))
        (usocket:socket-stream (connection-usocket (exchange-connection exchange)))
        (http-stream http))))

(defun let-program-talk-on (request)
  "Makes the connection's stream the content stream of REQUEST, if that has no content of ours.
Libraries for other protocols look for the stream there."
  (unless (own-content request)
    (setf (slot-value request 'content-stream) (stream-for-program *exchange*))))

(defmethod hunchentoot:detach-socket :after ((acceptor parallel-acceptor))
  "Lets a handler that will switch protocols pass the stream on."
  (let ((head (current-head)))
    (when (and head (head-upgrade head))
      (let-program-talk-on hunchentoot:*request*))))
