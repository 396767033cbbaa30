(in-package #:hunchentoot-recycling-taskmaster)

;;;; Replies that a handler writes itself: HUNCHENTOOT:SEND-HEADERS sends the head, and returns a
;;;; stream for the content.
;;;;
;;;; SEND-HEADERS calls Hunchentoot's function START-OUTPUT, which we wrap.  Where our own code has
;;;; read the request, and no stream of the program is in between, the head is made as for a whole
;;;; reply (reply.lisp), and the stream is a REPLY-STREAM.  Otherwise, and where headers are traced,
;;;; Hunchentoot's code runs.

(defun start-output-here (hunchentoots status &rest content)
  "Begins a reply with STATUS and CONTENT, a list of one or no element.  Calls HUNCHENTOOTS, a
function of the same arguments, where our own code does not make the reply."
  (declare (dynamic-extent content))
  (when (current-head)
    (begin-limited-reply *exchange*))
  (cond ((and (current-head) (headers-sent-p))
         nil)                           ; as Hunchentoot does, but without a change
        ((and (null content) (ours-to-stream-p))
         (start-streaming hunchentoot:*acceptor* hunchentoot:*request* status))
        (t
         (when (and (typep hunchentoot:*acceptor* 'parallel-acceptor)
                    (not (headers-sent-p))
                    (or content (hunchentoot:content-length*)))
           (check-transfer-encoding))
         (when (current-head)
           (setf (exchange-status *exchange*) status))
         (apply hunchentoots status content))))

(wrap-start-of-output 'start-output-here)

(defun ours-to-stream-p ()
  (and (ours-to-send-p)
       (bare-p (current-stream) (http-stream (current-http-connection)))))

(defun current-framing ()
  "The framing of the current reply if its handler writes the content itself: the values of
FRAMING-OF-STREAM.  Signals INVALID-HEADER for an impossible Content-Length."
  (let ((length (hunchentoot:content-length*)))
    (unless (typep length '(or null content-size))
      (error 'invalid-header :name :content-length :value length))
    (framing-of-stream (hunchentoot:request-method*) (hunchentoot:return-code*) length
                       (and (hunchentoot:acceptor-output-chunking-p hunchentoot:*acceptor*)
                            (eq :http/1.1 (hunchentoot:server-protocol*))))))

(defun encode-streamed-head (reply status)
  ;; The error page for a header that cannot be sent has no transfer coding.
  (handler-bind ((invalid-header (lambda (condition)
                                   (declare (ignore condition))
                                   (drop-header :transfer-encoding))))
    (encode-reply-head reply status)))

(defun start-streaming (acceptor request status)
  "Sends the head of the reply with STATUS to REQUEST and returns the stream for the
content.  Leaves the handler by a throw if the method is HEAD."
  (multiple-value-bind (framing said) (current-framing)
    (let ((io (http-io (current-http-connection)))
          (event (settle-head acceptor status (not (eq :plain framing)) said nil)))
      (with-reply (reply)
        (encode-streamed-head reply status)
        (whole-or-broken (io)
          (begin-reply acceptor status event)
          (write-encoded io reply)))
      (setf (current-stream) (make-reply-stream io (current-stream) framing))
      (when (eql status hunchentoot:+http-switching-protocols+)
        (let-program-talk-on request))
      (cond ((eq :head (hunchentoot:request-method request))
             (end-of-request))
            ;; At once, as Hunchentoot does, since the handler may take long.
            ((eq :chunked framing)
             (push-output io)))
      (current-stream))))

;;; The content stream of a request that asks for another protocol.  Clack's handler for
;;; Hunchentoot, for example, has programs write the 101 there themselves.

(defclass upgrade-stream (trivial-gray-streams:fundamental-binary-input-stream
                          trivial-gray-streams:fundamental-binary-output-stream
                          trivial-gray-streams:trivial-gray-stream-mixin)
  ((opened :initform nil :accessor opened-stream :documentation "The connection's stream, or NIL."))
  (:documentation "The content of a request without content, until its handler writes to it; from
then on the stream of the connection, which speaks another protocol."))

(defun open-upgrade-stream (stream)
  "The connection's stream behind STREAM, which the handler writes to."
  (or (opened-stream stream)
      (progn (begin-limited-reply *exchange*)
             (note-event *exchange* :switch)
             (note-headers-sent)
             (setf (opened-stream stream) (stream-for-program *exchange*)))))

(defmethod stream-element-type ((stream upgrade-stream))
  '(unsigned-byte 8))

(defmethod trivial-gray-streams:stream-write-byte ((stream upgrade-stream) octet)
  (write-byte octet (open-upgrade-stream stream)))

(defmethod trivial-gray-streams:stream-write-sequence
    ((stream upgrade-stream) sequence start end &key)
  (write-sequence sequence (open-upgrade-stream stream) :start start :end end))

(defmethod trivial-gray-streams:stream-force-output ((stream upgrade-stream))
  (when (opened-stream stream)
    (force-output (opened-stream stream))))

(defmethod trivial-gray-streams:stream-finish-output ((stream upgrade-stream))
  (when (opened-stream stream)
    (finish-output (opened-stream stream))))

(defmethod trivial-gray-streams:stream-read-byte ((stream upgrade-stream))
  (if (opened-stream stream)
      (read-byte (opened-stream stream) nil :eof)
      :eof))

(defmethod trivial-gray-streams:stream-read-sequence
    ((stream upgrade-stream) sequence start end &key)
  (if (opened-stream stream)
      (read-sequence sequence (opened-stream stream) :start start :end end)
      start))

(defmethod trivial-gray-streams:stream-listen ((stream upgrade-stream))
  (and (opened-stream stream) (listen (opened-stream stream))))
