(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; Replies to a stream.

(defun current-second ()
  "The universal time, which the Date of a reply tells."
  (get-universal-time))

(defmacro with-reply ((reply) &body body)
  "Evaluates BODY with REPLY bound to an empty OUTPUT that belongs to the worker."
  `(let ((,reply (reset-output (if *kit* (kit-reply *kit*) (make-output)))))
     ,@body))

(defgeneric send-reply (stream reply)
  (:documentation "Sends REPLY, an OUTPUT, to STREAM; to a DESCRIPTOR-STREAM by SEND-REPLY-ON.")
  (:method (stream reply)
    (write-sequence (output-octets reply) stream :end (output-fill reply))
    (finish-output stream))
  (:method ((stream descriptor-stream) reply)
    (send-reply-on (stream-wire stream) reply nil)))

(defun send-reply-on (wire reply body)
  "Sends REPLY, an OUTPUT, and then BODY, octets, a PART or NIL, to WIRE, without waiting: what
its descriptor does not take is LEFT to the engine, so that nobody may change BODY afterwards; the
octets of REPLY are given away then."
  (send-output wire)                    ; what was written to it before
  (sending-wholly (wire)
    (let* ((fill (output-fill reply))
           (sent (if body
                     0
                     (max 0 (send wire (output-octets reply) 0 fill)))))
      (unless (= sent fill)             ; as it is with almost every reply
        (send-parts-now wire
                        (cons (make-octets-part (output-octets reply) sent fill)
                              (typecase body
                                (null '())
                                (part (list body))
                                (t (list (make-octets-part body))))))
        (when (wire-left wire)
          (give-octets-away reply))))))

(defun encode-refusal (reply refusal)
  "Appends the answer with the status and the reason of REFUSAL to REPLY."
  (let ((text (protocol-error-reason refusal)))
    (encode-head reply (protocol-error-status refusal)
                 `((:connection . "close")
                   (:content-type . "text/plain; charset=us-ascii")
                   (:content-length . ,(length text)))
                 :second (current-second))
    (encode-string reply text :latin-1)))

(defun send-refusal (stream refusal)
  "Answers STREAM with the status and the reason of REFUSAL, a PROTOCOL-ERROR."
  (with-reply (reply)
    (encode-refusal reply refusal)
    (send-reply stream reply)))

(defun send-refusal-at-once (wire refusal)
  "Like SEND-REFUSAL, but waits for nobody: what the descriptor of WIRE does not take now is not
sent.  True when some of it was."
  (with-reply (reply)
    (encode-refusal reply refusal)
    (plusp (send wire (output-octets reply) 0 (output-fill reply)))))

(defun send-continue (stream)
  "Tells the peer of STREAM to send the content that it held back (RFC 9110, section 10.1.1)."
  (with-reply (reply)
    (encode-continue reply)
    (send-reply stream reply)))
