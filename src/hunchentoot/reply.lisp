(in-package #:hunchentoot-recycling-taskmaster)

;;;; From what a handler returns to the octets of the reply.  What is decided here, and in
;;;; which order, is what Hunchentoot's START-OUTPUT and SEND-RESPONSE decide.

(defmethod hunchentoot:process-request ((request hunchentoot:request))
  "As Hunchentoot does it, but with replies made of octets where our own code read the head."
  (cond ((null *head*)
         (call-next-method))
        (t
         (call-as-request request (lambda () (answer hunchentoot:*acceptor* request *head*)))
         ;; Methods after this one, of WebSocket libraries, talk on with the client.
         (when (eql (hunchentoot:return-code*) hunchentoot:+http-switching-protocols+)
           (open-content-stream request (reply-stream))))))

(defun answer (acceptor request head)
  (multiple-value-bind (content condition backtrace)
      ;; Making the request may have found it bad.
      (when (eql (hunchentoot:return-code hunchentoot:*reply*) hunchentoot:+http-ok+)
        (call-handler acceptor request))
    (when condition
      (report-error acceptor request head condition backtrace))
    (unless (headers-sent-p)
      (handler-case
          (with-debugger
            (send-content acceptor request head (hunchentoot:return-code*)
                          (or content
                              (hunchentoot:acceptor-status-message
                               acceptor (hunchentoot:return-code*)))))
        (error (condition)
          (report-error acceptor request head condition nil))))))

(defun report-error (acceptor request head condition backtrace)
  "Answers with the error page for CONDITION, unless an answer has begun."
  (log-handler-error condition backtrace)
  (when (typep condition 'invalid-header)
    (drop-header (invalid-header-name condition)))
  (if (headers-sent-p)
      (setf *cut-short-p* t)
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

(defun body-allowed-p (status)
  "RFC 9110, sections 15.2, 15.3.5 and 15.4.5: these have no content."
  (not (or (<= 100 status 199) (= status 204) (= status 304))))

(defun settle-connection (acceptor request head)
  "Decides whether the connection is kept, and sets the headers that say so."
  (let ((requested (head-keep-alive-requested-p head)))
    (cond ((and (hunchentoot:acceptor-persistent-connections-p acceptor)
                (head-keep-alive-p head))
           (keep-connection)
           (let ((seconds (hunchentoot:acceptor-read-timeout acceptor)))
             (when (and seconds
                        (or requested
                            (not (eq (hunchentoot:server-protocol request) :http/1.1))))
               (unless (hunchentoot:header-out :connection)
                 (setf (hunchentoot:header-out :connection) "Keep-Alive"))
               (setf (hunchentoot:header-out :keep-alive)
                     (format nil "timeout=~D" seconds)))))
          ((not (header-set-p :connection))
           (setf (hunchentoot:header-out :connection) "Close")))))

(defun settle-server (acceptor)
  (unless (and (header-set-p :server)
               (null (hunchentoot:header-out :server)))
    (setf (hunchentoot:header-out :server)
          (or (hunchentoot:header-out :server) (server-name-of acceptor)))))

;;; The content

(defun encoding-of (external-format)
  "How ENCODE-STRING calls EXTERNAL-FORMAT; NIL where it does not know it."
  (and (eq (flexi-streams:external-format-eol-style external-format) :lf)
       (case (flexi-streams:external-format-name external-format)
         (:utf-8 :utf-8)
         (:iso-8859-1 :latin-1))))

(defvar *content-types* '()
  "An alist of lists of content type and external format, and the header made of them.")

(defun content-type-for (external-format)
  "The Content-Type of the reply, a string in EXTERNAL-FORMAT."
  (let* ((content-type (hunchentoot:content-type*))
         (known (find-if (lambda (entry)
                           (and (eq (first entry) content-type)
                                (eq (second entry) external-format)))
                         *content-types*)))
    (if known
        (third known)
        (let ((header (content-type-with-charset content-type external-format)))
          (remember-content-type content-type external-format header)
          header))))

(defun remember-content-type (content-type external-format header)
  ;; Content types are literals, most often.  Others must not fill the memory.
  (setf *content-types*
        (let ((others *content-types*))
          (cons (list content-type external-format header)
                (subseq others 0 (min 15 (length others)))))))

(defun settle-content (content)
  "What is to be sent for CONTENT, a string or octets, whose headers it sets: octets, or a string
and how ENCODE-STRING calls its encoding; and the number of octets."
  (if (stringp content)
      (let ((text (rewrite-urls content))
            (external-format (hunchentoot:reply-external-format*)))
        (setf (hunchentoot:content-type*) (content-type-for external-format))
        (let* ((encoding (encoding-of external-format))
               (length (and encoding (encoded-length text encoding))))
          (if length
              (values text encoding length)
              (settle-content (flexi-streams:string-to-octets
                               text :external-format external-format)))))
      (let ((octets (coerce content 'octets)))
        (values octets nil (length octets)))))

(defun read-what-was-not-read (head)
  "Reads the content of the request, as Hunchentoot does before it answers."
  (unless (eq (head-framing head) :none)
    (hunchentoot:raw-post-data :force-binary t)))

(defun own-reason (status)
  "Hunchentoot's phrase for STATUS, or the program's, where it is not the usual one; else NIL, and
the line for STATUS need not be made anew."
  (let ((reason (hunchentoot:reason-phrase status)))
    (unless (equal reason (reason-phrase status))
      reason)))

(defun encode-reply-head (reply status)
  (encode-head reply status (hunchentoot:headers-out*)
               :cookies (loop for (nil . cookie) in (hunchentoot:cookies-out*)
                              collect (cookie-text cookie))
               :second (current-second)
               :reason (own-reason status)))

(defun send-whole-reply (acceptor request head status content)
  "Sends the reply with STATUS and CONTENT, a string or octets, at once."
  (settle-connection acceptor request head)
  (settle-server acceptor)
  (multiple-value-bind (content encoding length) (settle-content content)
    (when (body-allowed-p status)
      (setf (hunchentoot:content-length*) length))
    (with-reply (reply)
      (encode-reply-head reply status)  ; may signal INVALID-HEADER
      (note-headers-sent)
      (hunchentoot:acceptor-log-access acceptor :return-code status)
      (read-what-was-not-read head)
      (send-reply (reply-stream) reply
                  (and (body-allowed-p status)
                       (not (eq (hunchentoot:request-method request) :head))
                       (append-content reply content encoding))))))

(defun append-content (reply content encoding)
  "Appends CONTENT, a string in ENCODING or octets, to REPLY; or returns the octets where it is
better to send them by themselves."
  (cond (encoding (encode-string reply content encoding) nil)
        ((encode-body reply content) nil)
        (t content)))
