(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; Content in chunks.

;;; Reading chunks off a buffered connection
;;;
;;; Invariant: the next READY octets of the source are content, and the decoder has passed them.

(defclass chunked-content (content)
  ((decoder :initarg :decoder :reader content-decoder)
   (ready :initform 0 :accessor content-ready))
  (:documentation "The content of one request in chunks (RFC 9112, section 7.1).  If the connection
ends before the last chunk, reading signals END-OF-FILE."))

(defun make-chunked-content (io limits turn-down invite)
  "The content in chunks on IO, under LIMITS.  TURN-DOWN is called with the PROTOCOL-ERROR when it
is not acceptable.  INVITE, a function or NIL, is called before the first read."
  (make-instance 'chunked-content :source io :turn-down turn-down :invite invite
                                  :decoder (make-body-decoder :chunked limits)))

(defmethod content-size ((content chunked-content))
  nil)

(defmethod all-received-p ((content chunked-content))
  (and (zerop (content-ready content))
       (body-done-p (content-decoder content))))

(defmethod content-at-hand ((content chunked-content))
  (+ (prefetched-octets content) (content-ready content)))

(defun content-over-p (content)
  "True when CONTENT has failed, or all of it was read."
  (or (content-failure content)
      (and (zerop (content-ready content))
           (body-done-p (content-decoder content)))))

(defun find-content (content)
  "Lets the decoder of CONTENT, which has no octets ready, look at the input of its source.  Signals
PROTOCOL-ERROR."
  (let ((source (content-source content)))
    (multiple-value-bind (start end position)
        (decode-body (content-decoder content) (io-input source)
                     (io-start source) (io-end source))
      (setf (content-ready content) (- end start)
            (io-start source) (if (< start end) start position)))))

(defun decode-more (content)
  "Like FIND-CONTENT, but refuses CONTENT that is not acceptable."
  (handler-case (find-content content)
    (protocol-error (refusal)
      (refuse-content content refusal))))

(defun await-content (content)
  "Waits until CONTENT has an octet ready; NIL when it has ended."
  (loop
    (cond ((plusp (content-ready content)) (return t))
          ((content-over-p content) (return nil))
          ((reading-content (content)
             (await-input-of (content-source content) (body-octets-due (content-decoder content))))
           (decode-more content))
          (t (error 'end-of-file :stream content)))))

(defmethod trivial-gray-streams:stream-read-byte ((stream chunked-content))
  (cond ((plusp (prefetched-octets stream))
         (read-prefetched-octet stream))
        ((await-content stream)
         (let ((source (content-source stream)))
           (decf (content-ready stream))
           (prog1 (aref (io-input source) (io-start source))
             (incf (io-start source)))))
        (t :eof)))

(defun read-chunks (content sequence start end)
  "Reads octets of CONTENT to SEQUENCE from START, up to END.  Returns the position after the last
one."
  (loop with source = (content-source content)
        with position = (read-prefetched content sequence start end)
        while (and (< position end) (await-content content))
        do (let ((count (min (- end position) (content-ready content))))
             (replace sequence (io-input source)
                      :start1 position :start2 (io-start source)
                      :end2 (+ (io-start source) count))
             (decf (content-ready content) count)
             (incf (io-start source) count)
             (incf position count))
        finally (return position)))

(defmethod trivial-gray-streams:stream-read-sequence
    ((stream chunked-content) sequence start end &key)
  (read-chunks stream sequence start end))

(defmethod trivial-gray-streams:stream-listen ((stream chunked-content))
  (invite-content stream)
  (loop until (or (plusp (prefetched-octets stream)) (plusp (content-ready stream))
                  (content-over-p stream) (content-refusal stream))
        while (eq :some (fill-input (content-source stream)))
        do (decode-more stream))
  (or (plusp (prefetched-octets stream))
      (plusp (content-ready stream))))

(defmethod drop-content ((content chunked-content) limit)
  (drop-prefetched content)
  (loop with octets = (make-octets 4096)
        repeat (ceiling limit (length octets))
        until (content-over-p content)
        do (read-chunks content octets 0 (length octets)))
  (and (content-over-p content) (null (content-failure content))))
