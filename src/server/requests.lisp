(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; Request heads off a wire, without waiting for the peer.

(defun take-parser (limits)
  "A parser of request heads under LIMITS that has read nothing."
  (let ((parser (and *kit* (shiftf (kit-parser *kit*) nil))))
    (if parser
        (reset-parser parser limits)
        (make-parser limits))))

(defun return-parser (parser)
  (when *kit*
    (setf (kit-parser *kit*) parser)))

(defun read-head (wire parser)
  "Reads on in WIRE with PARSER.  Returns the head of a request; :NONE when not all of it has
come, to be called again with the same PARSER; :END when it will not come.  Does not block.
Signals PROTOCOL-ERROR and DESCRIPTOR-BROKEN."
  (drop-head wire)                      ; if it was read ahead so far
  (loop
    (when (< (wire-start wire) (wire-end wire))
      (multiple-value-bind (head position)
          (parse-head parser (wire-input wire) (wire-start wire) (wire-end wire))
        (setf (wire-start wire) position)
        (when head
          (return head))))
    (let ((more (fill-more-input wire)))
      (unless (eq more :some)
        (return more)))))

(defun read-head-ahead (wire parser)
  "Like READ-HEAD, but leaves the octets of the head in WIRE, to be read by whoever comes first, or
dropped by DROP-HEAD.  With the same WIRE, PARSER must be the same until then."
  (loop
    (let ((from (+ (wire-start wire) (wire-kept wire))))
      (when (< from (wire-end wire))
        (multiple-value-bind (head position)
            (parse-head parser (wire-input wire) from (wire-end wire))
          (setf (wire-kept wire) (- position (wire-start wire)))
          (when head
            (return head)))))
    (let ((more (fill-more-input wire)))
      (unless (eq more :some)
        (return more)))))

(defun drop-head (wire)
  "Drops the head that READ-HEAD-AHEAD has returned."
  (incf (wire-start wire) (shiftf (wire-kept wire) 0)))

(defun input-left-p (wire)
  "True when WIRE has received octets that nobody has read."
  (< (wire-start wire) (wire-end wire)))

(defun begin-anew (wire)
  "Lets what READ-HEAD-AHEAD has parsed be parsed anew."
  (setf (wire-kept wire) 0))

;;; Content of known length

(defclass content-stream (content)
  ((remaining :initarg :remaining :accessor content-remaining
              :documentation "How many octets of the content were not read."))
  (:documentation "The content of one request whose length is known: ends where it ends.  Where
the connection ends before, reading signals END-OF-FILE (RFC 9112, section 8): a part must not
be taken for the whole."))

(defvar *no-content* (make-instance 'content-stream :source nil :remaining 0)
  "The content of every request that has none.")

(defun make-content-stream (stream size turn-down invite)
  "The next SIZE octets of STREAM as a stream of their own.  TURN-DOWN is called with the
PROTOCOL-ERROR when they do not come in time.  INVITE, a function or NIL, is called when they are
wanted."
  (if (zerop size)
      *no-content*
      (make-instance 'content-stream :source stream :remaining size
                                     :turn-down turn-down :invite invite)))

(defun content-left-p (content)
  "True when CONTENT, of known length, was not read to its end.  Signals END-OF-FILE when the rest was
refused."
  (and (plusp (content-remaining content))
       (or (not (content-refused-p content))
           (error 'end-of-file :stream content))))

(defmethod content-size ((content content-stream))
  (content-remaining content))

(defmethod content-wire ((content content-stream))
  (stream-wire (content-source content)))

(defmethod trivial-gray-streams:stream-read-byte ((stream content-stream))
  (if (content-left-p stream)
      (let ((octet (if (plusp (spooled-octets stream))
                       (read-spooled-octet stream)
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
    (if (or (= start stop) (not (content-left-p stream)))
        start
        (let ((position (read-spooled stream sequence start stop)))
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
       (not (content-refused-p stream))
       (or (plusp (spooled-octets stream))
           (progn (invite-content stream)
                  (listen (content-source stream))))))

(defmethod drop-spooled :before ((content content-stream))
  (decf (content-remaining content) (spooled-octets content)))

(defmethod drop-content ((content content-stream) limit)
  (drop-spooled content)
  (and (<= (content-remaining content) limit)
       (loop until (zerop (content-remaining content))
             do (let ((count (reading-content (content)
                               (drop-input (stream-wire (content-source content))
                                           (content-remaining content)))))
                  (when (zerop count)
                    (error 'end-of-file :stream content))
                  (decf (content-remaining content) count))
             finally (return t))))
