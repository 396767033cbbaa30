(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; Content of known length.

(defclass content-stream (content)
  ((remaining :initarg :remaining :accessor content-remaining
              :documentation "How many octets of the content were not read."))
  (:documentation "The content of one request with a known length.  If the connection ends before it
has come, reading signals END-OF-FILE (RFC 9112, section 8): a part must not be taken for the
whole."))

(defclass no-content (content-stream)
  ()
  (:default-initargs :source nil :remaining 0)
  (:documentation "The shared content of all requests without content.  No use of it by one request
affects another."))

(defmethod close ((stream no-content) &key abort)
  (declare (ignore abort))
  t)

(defmethod (setf content-failure) (condition (content no-content))
  condition)

(defmethod (setf content-lost-p) (lost-p (content no-content))
  lost-p)

(defvar *no-content* (make-instance 'no-content)
  "The content of every request without content.")

(defun make-content-stream (stream size turn-down invite)
  "The next SIZE octets of STREAM as content.  TURN-DOWN is called with the PROTOCOL-ERROR when they
do not come in time.  INVITE, a function or NIL, is called before the first read."
  (if (zerop size)
      *no-content*
      (make-instance 'content-stream :source stream :remaining size
                                     :turn-down turn-down :invite invite)))

(defmethod note-all-read ((content content-stream))
  (setf (content-remaining content) 0))

(defmethod content-size ((content content-stream))
  (content-remaining content))

(defmethod all-received-p ((content content-stream))
  (<= (content-remaining content) (prefetched-octets content)))

(defmethod content-at-hand ((content content-stream))
  (min (content-remaining content)
       (+ (prefetched-octets content) (buffered-octets content))))

(defmethod content-io ((content content-stream))
  (stream-io (content-source content)))

(defmethod trivial-gray-streams:stream-read-byte ((stream content-stream))
  (if (plusp (content-remaining stream))
      (let ((octet (if (plusp (prefetched-octets stream))
                       (read-prefetched-octet stream)
                       (reading-content (stream)
                         (read-byte (content-source stream) nil :eof)))))
        (when (eq octet :eof)
          (error 'end-of-file :stream stream))
        (decf (content-remaining stream))
        octet)
      :eof))

(defmethod trivial-gray-streams:stream-read-sequence
    ((stream content-stream) sequence start end &key)
  (let ((stop (min end (+ start (content-remaining stream)))))
    (if (= start stop)
        start
        (let ((position (read-prefetched stream sequence start stop)))
          (when (< position stop)
            (setf position (reading-content (stream)
                             (read-sequence sequence (content-source stream)
                                            :start position :end stop))))
          (decf (content-remaining stream) (- position start))
          (when (< position stop)
            (error 'end-of-file :stream stream))
          position))))

(defmethod trivial-gray-streams:stream-listen ((stream content-stream))
  (and (plusp (content-remaining stream))
       (or (plusp (prefetched-octets stream))
           (progn (invite-content stream)
                  (listen (content-source stream))))))

(defmethod drop-prefetched :before ((content content-stream))
  (decf (content-remaining content) (prefetched-octets content)))

(defmethod drop-content ((content content-stream) limit)
  (drop-prefetched content)
  (and (<= (content-remaining content) limit)
       (loop until (zerop (content-remaining content))
             do (let ((count (reading-content (content)
                               (drop-input (stream-io (content-source content))
                                           (content-remaining content)))))
                  (when (zerop count)
                    (error 'end-of-file :stream content))
                  (decf (content-remaining content) count))
             finally (return t))))
