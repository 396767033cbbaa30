(in-package #:hunchentoot-recycling-taskmaster)

;;;; Replies that a handler writes itself: HUNCHENTOOT:SEND-HEADERS sends the head, and returns a
;;;; stream for the content.
;;;;
;;;; SEND-HEADERS calls a function of Hunchentoot's own, START-OUTPUT, which is wrapped.  Where our
;;;; own code has read the request, and would write to the connection as it is, the head is made as
;;;; that of a whole reply (reply.lisp), and the stream is a REPLY-STREAM.  Everybody else, and who
;;;; traces headers, gets Hunchentoot's.

(defun start-output-here (hunchentoots status &rest content)
  "Begins a reply with STATUS, and with CONTENT, a list of one or none; by HUNCHENTOOTS, a function
of these, where that is not ours to do."
  (declare (dynamic-extent content))
  (cond ((and (current-head) (headers-sent-p))
         nil)                           ; as Hunchentoot says it, but nothing is changed
        ((and (null content) (ours-to-stream-p))
         (start-streaming hunchentoot:*acceptor* hunchentoot:*request* (current-head) status))
        (t
         (when (and (typep hunchentoot:*acceptor* 'parallel-acceptor)
                    (not (headers-sent-p))
                    (or content (hunchentoot:content-length*)))
           (check-transfer-encoding))
         (apply hunchentoots status content))))

(wrap-start-of-output 'start-output-here)

(defun ours-to-stream-p ()
  (and (ours-to-send-p)
       (bare-p (current-stream) (http-stream (current-http-connection)))))

(defun current-framing ()
  "How the content of the current reply is framed if its handler writes that itself; values as
FRAMING-OF-STREAM has them.  Signals INVALID-HEADER for a Content-Length that nothing has."
  (let ((length (hunchentoot:content-length*)))
    (unless (typep length '(or null content-size))
      (error 'invalid-header :name :content-length :value length))
    (framing-of-stream (hunchentoot:request-method*) (hunchentoot:return-code*) length
                       (and (hunchentoot:acceptor-output-chunking-p hunchentoot:*acceptor*)
                            (eq :http/1.1 (hunchentoot:server-protocol*))))))

(defun encode-streamed-head (reply status)
  ;; The page that tells of a header that cannot be sent has no coding.
  (handler-bind ((invalid-header (lambda (condition)
                                   (declare (ignore condition))
                                   (drop-header :transfer-encoding))))
    (encode-reply-head reply status)))

(defun start-streaming (acceptor request head status)
  "Sends the head of the reply with STATUS to REQUEST, with HEAD; returns the stream for its
content.  Does not return where there can be none because of the request's method."
  (multiple-value-bind (framing said) (current-framing)
    (let ((io (http-io (current-http-connection)))
          (event (settle-head acceptor request head status (not (eq :plain framing)) said nil)))
      (with-reply (reply)
        (encode-streamed-head reply status)
        (whole-or-broken (io)
          (begin-reply acceptor status event)
          (take-before-streaming request)
          (write-encoded io reply)))
      (setf (current-stream) (make-reply-stream io (current-stream) framing))
      (when (eql status hunchentoot:+http-switching-protocols+)
        (let-program-talk-on request))
      (cond ((eq :head (hunchentoot:request-method request))
             (end-of-request))
            ;; As Hunchentoot does it: the handler may take its time.
            ((eq :chunked framing)
             (push-output io)))
      (current-stream))))

(defun take-before-streaming (request)
  "Takes the content of REQUEST that nobody has asked for, as Hunchentoot does before it sends a
head; what the limits allow is kept for the handler."
  (let ((content (own-content request)))
    (when (and content
               (not (content-shared-p content))
               (not (content-asked-for-p request)))
      (take-unasked request content (limits-raw-octets (content-limits content))))))
