(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; Content that comes in chunks.

;;; Chunks on a descriptor
;;;
;;; Invariant: READY is how many of the next octets of the source are content that the decoder has
;;; passed.

(defclass chunked-content (content)
  ((decoder :initarg :decoder :reader content-decoder)
   (ready :initform 0 :accessor content-ready))
  (:documentation "The content of one request that comes in chunks (RFC 9112, section 7.1).  Where
the connection ends before, reading signals END-OF-FILE."))

(defun make-chunked-content (wire limits turn-down invite)
  "The content that comes in chunks on WIRE, under LIMITS.  TURN-DOWN is called with the
PROTOCOL-ERROR when it is not acceptable.  INVITE, a function or NIL, is called when it is wanted."
  (make-instance 'chunked-content :source wire :turn-down turn-down :invite invite
                                  :decoder (make-body-decoder :chunked limits)))

(defmethod content-size ((content chunked-content))
  nil)

(defun content-over-p (content)
  (or (content-refused-p content)
      (and (zerop (content-ready content))
           (body-done-p (content-decoder content)))))

(defun decode-more (content)
  "Lets the decoder of CONTENT, of which nothing is ready, look at what its source has."
  (let ((source (content-source content)))
    (handler-case (decode-body (content-decoder content) (wire-input source)
                               (wire-start source) (wire-end source))
      (protocol-error (refusal)
        (refuse-content content refusal))
      (:no-error (start end position)
        (setf (content-ready content) (- end start)
              (wire-start source) (if (< start end) start position))))))

(defun await-content (content)
  "Waits until CONTENT has an octet ready; NIL when it is over."
  (loop
    (cond ((plusp (content-ready content)) (return t))
          ((content-over-p content) (return nil))
          ((reading-content (content)
             (await-input-of (content-source content)))
           (decode-more content))
          (t (error 'end-of-file :stream content)))))

(defmethod trivial-gray-streams:stream-read-byte ((stream chunked-content))
  (if (await-content stream)
      (let ((source (content-source stream)))
        (decf (content-ready stream))
        (prog1 (aref (wire-input source) (wire-start source))
          (incf (wire-start source))))
      :eof))

(defmethod trivial-gray-streams:stream-read-sequence
    ((stream chunked-content) sequence start end &key)
  (loop with source = (content-source stream)
        with position = start
        while (and (< position end) (await-content stream))
        do (let ((count (min (- end position) (content-ready stream))))
             (replace sequence (wire-input source)
                      :start1 position :start2 (wire-start source)
                      :end2 (+ (wire-start source) count))
             (decf (content-ready stream) count)
             (incf (wire-start source) count)
             (incf position count))
        finally (return position)))

(defmethod trivial-gray-streams:stream-listen ((stream chunked-content))
  (invite-content stream)
  (loop until (or (plusp (content-ready stream)) (content-over-p stream))
        while (eq :some (fill-input (content-source stream)))
        do (decode-more stream))
  (plusp (content-ready stream)))

(defmethod drop-content ((content chunked-content) limit)
  (loop with octets = (make-octets 4096)
        repeat (ceiling limit (length octets))
        until (content-over-p content)
        do (read-sequence octets content))
  (and (content-over-p content) (not (content-refused-p content))))

;;; Content that another stream reads, and perhaps decodes

(defclass counted-content (content)
  ((room :initarg :room :accessor content-room
         :documentation "How many octets may still come, or NIL for no limit.")
   (size :initarg :size :accessor content-size
         :documentation "How many octets will come, or NIL: until the other stream ends."))
  (:documentation "What another stream reads: so many octets, or until its end, up to a limit.  The
end is asked for once: there are streams that would wait for more, the next time."))

(defun make-counted-content (stream size limits turn-down)
  "The content that STREAM reads, SIZE octets or, if that is NIL, until its end, under LIMITS, of
which that on the octets of content holds.  TURN-DOWN is called with the PROTOCOL-ERROR when there
are more.  Where STREAM ends before SIZE octets, so does the content."
  (make-instance 'counted-content :source stream :size size :turn-down turn-down
                                  :room (limits-body-octets limits)))

(defun count-content (content count)
  "Counts further COUNT octets of CONTENT."
  (when (content-size content)
    (decf (content-size content) count))
  (when (and (content-room content)
             (minusp (decf (content-room content) count)))
    (refuse-content content :body-too-large)))

(defun counted-over-p (content)
  (or (content-refused-p content)
      (eql 0 (content-size content))))

(defmethod trivial-gray-streams:stream-read-byte ((stream counted-content))
  (let ((octet (if (counted-over-p stream)
                   :eof
                   (reading-content (stream)
                     (read-byte (content-source stream) nil :eof)))))
    (if (eq octet :eof)
        (setf (content-size stream) 0)
        (count-content stream 1))
    octet))

(defmethod trivial-gray-streams:stream-read-sequence
    ((stream counted-content) sequence start end &key)
  (if (counted-over-p stream)
      start
      (let* ((size (content-size stream))
             (stop (if size (min end (+ start size)) end))
             (position (reading-content (stream)
                         (read-sequence sequence (content-source stream)
                                        :start start :end stop))))
        (when (< position stop)
          (setf (content-size stream) (- position start)))
        (count-content stream (- position start))
        position)))

(defmethod trivial-gray-streams:stream-listen ((stream counted-content))
  (and (not (counted-over-p stream))
       (listen (content-source stream))))

(defmethod drop-content ((content counted-content) limit)
  (let ((octets (make-octets 4096))
        (size (content-size content)))
    (and (or (null size) (<= size limit))
         (loop repeat (ceiling limit (length octets))
               for end = (read-sequence octets content)
               when (< end (length octets))
                 do (return (not (content-refused-p content)))
               finally (return (eql 0 (content-size content)))))))
