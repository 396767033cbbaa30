(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; Content whose length is not known beforehand.
;;;;
;;;; Where it is not acceptable, a function that the storey above gave is called with the
;;;; PROTOCOL-ERROR.  It may answer and leave by a throw; if it returns, the error is signalled to
;;;; whoever reads.  From then on there is no more content.

(defclass content-of-unknown-length (trivial-gray-streams:fundamental-binary-input-stream
                                     trivial-gray-streams:trivial-gray-stream-mixin)
  ((source :initarg :source :reader content-source)
   (turn-down :initarg :turn-down :reader content-turn-down
              :documentation "A function of a PROTOCOL-ERROR.")
   (refused-p :initform nil :accessor content-refused-p)))

(defmethod stream-element-type ((stream content-of-unknown-length))
  '(unsigned-byte 8))

(defun refuse-content (content refusal)
  "Ends CONTENT because of REFUSAL, a PROTOCOL-ERROR."
  (setf (content-refused-p content) t)
  (funcall (content-turn-down content) refusal)
  (error refusal))

;;; Chunks on a descriptor
;;;
;;; Invariant: READY is how many of the next octets of the source are content that the decoder has
;;; passed.

(defclass chunked-content (content-of-unknown-length)
  ((decoder :initarg :decoder :reader content-decoder)
   (ready :initform 0 :accessor content-ready))
  (:documentation "The content of one request that comes in chunks (RFC 9112, section 7.1).  Where
the connection ends before, reading signals END-OF-FILE."))

(defun make-chunked-content (wire limits turn-down)
  "The content that comes in chunks on WIRE, under LIMITS.  TURN-DOWN is called with the
PROTOCOL-ERROR when it is not acceptable."
  (make-instance 'chunked-content :source wire :turn-down turn-down
                                  :decoder (make-body-decoder :chunked limits)))

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
          ((await-input-of (content-source content)) (decode-more content))
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
  (loop until (or (plusp (content-ready stream)) (content-over-p stream))
        while (eq :some (fill-input (content-source stream)))
        do (decode-more stream))
  (plusp (content-ready stream)))

(defun read-all-content (content)
  "The octets that are left of CONTENT, in a vector of their own."
  (loop with octets = (make-octets 8192)
        with fill = 0
        for position = (read-sequence octets content :start fill)
        when (< position (length octets))
          do (return (subseq octets 0 position))
        do (setf fill position
                 octets (replace (make-octets (* 2 (length octets))) octets))))

(defmethod drop-content ((content chunked-content) limit)
  (let ((octets (make-octets 4096)))
    (handler-case
        (loop repeat (ceiling limit (length octets))
              until (content-over-p content)
              do (read-sequence octets content))
      (protocol-error () nil))          ; CONTENT remembers it
    (and (content-over-p content) (not (content-refused-p content)))))

;;; Chunks that another stream decodes

(defclass counted-content (content-of-unknown-length)
  ((room :initarg :room :accessor content-room
         :documentation "How many octets may still come."))
  (:documentation "What another stream reads until its end, up to a limit."))

(defun make-counted-content (stream limits turn-down)
  "The content that STREAM reads until its end, under LIMITS, of which that on the octets of content
alone holds, and is not NIL.  TURN-DOWN is called with the PROTOCOL-ERROR when there are more."
  (make-instance 'counted-content :source stream :turn-down turn-down
                                  :room (limits-body-octets limits)))

(defun count-content (content count)
  "Counts further COUNT octets of CONTENT."
  (when (minusp (decf (content-room content) count))
    (refuse-content content (make-refusal :body-too-large))))

(defmethod trivial-gray-streams:stream-read-byte ((stream counted-content))
  (let ((octet (if (content-refused-p stream)
                   :eof
                   (read-byte (content-source stream) nil :eof))))
    (unless (eq octet :eof)
      (count-content stream 1))
    octet))

(defmethod trivial-gray-streams:stream-read-sequence
    ((stream counted-content) sequence start end &key)
  (if (content-refused-p stream)
      start
      (let ((position (read-sequence sequence (content-source stream) :start start :end end)))
        (count-content stream (- position start))
        position)))

(defmethod trivial-gray-streams:stream-listen ((stream counted-content))
  (and (not (content-refused-p stream))
       (listen (content-source stream))))
