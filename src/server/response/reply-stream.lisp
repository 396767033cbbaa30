(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; A reply stream: a handler writes the content of its reply to it, after the head.
;;;;
;;;;   framing     the content                                 octets that are written
;;;;   :CHUNKED    ends with the last chunk                    become chunks
;;;;   a number    has so many octets more                     are sent unchanged; more are an error
;;;;   :PLAIN      ends with the connection, or is of another  are sent unchanged
;;;;               protocol
;;;;   :NONE       does not exist                              are dropped
;;;;   NIL         has ended                                   go to the stream beneath
;;;;
;;;; Chunks are composed in the output buffer of the connection.  Each is complete at any time, so
;;;; that a read, which sends the output first, may come between two writes.  Writes without a flush
;;;; between them share one chunk, as long as the buffer has room.

(defstruct (reply-content (:include opaque) (:constructor make-reply-content (io framing))
                          (:copier nil))
  "The state of the content of one reply."
  (io nil :type io :read-only t)
  (framing :plain :type (or (member :chunked :plain :none nil) content-size))
  ;; The last chunk in the output buffer: where it begins, its number of octets, and where it ends.
  ;; If the buffer ends elsewhere, that chunk was sent.
  (chunk-start 0 :type index)
  (chunk-size 0 :type index)
  (chunk-end 0 :type index))

(defclass reply-stream (trivial-gray-streams:fundamental-binary-input-stream
                        trivial-gray-streams:fundamental-binary-output-stream
                        trivial-gray-streams:trivial-gray-stream-mixin)
  ((content :initarg :content :reader reply-stream-content)
   (inner :initarg :inner :reader reply-stream-inner
          :documentation "The stream of the connection, for reading."))
  (:documentation "A stream for the octets of the content of one reply."))

(defun make-reply-stream (io inner framing)
  "A stream for the content of a reply over IO, whose head was written, on the stream INNER.
FRAMING is :CHUNKED, :PLAIN, :NONE or the number of octets of the content."
  (make-instance 'reply-stream :content (make-reply-content io framing) :inner inner))

;;; Framing

(defun framing-of-stream (method status length chunked-p)
  "The framing, as for MAKE-REPLY-STREAM, of streamed content for a reply with STATUS to a request
by METHOD; and what the head says of it: a number of octets, :CHUNKED, or NIL for nothing.  LENGTH
is the number of octets, or NIL if unknown; then CHUNKED-P says whether chunks are allowed (RFC
9112, section 6)."
  (let ((said (and (body-allowed-p status)
                   (or length (and chunked-p :chunked)))))
    (values (cond ((eql 101 status) :plain)
                  ((not (content-wanted-p method status)) :none)
                  (t (or said :plain)))
            said)))

;;; Chunks

(declaim (inline last-chunk))
(defun last-chunk (content)
  "The position and the size of the chunk at the end of the output buffer of CONTENT; the size is 0
when none has begun."
  (let ((fill (io-fill (reply-content-io content))))
    (if (and (= fill (reply-content-chunk-end content))
             (plusp (reply-content-chunk-size content)))
        (values (reply-content-chunk-start content) (reply-content-chunk-size content))
        (values fill 0))))

(defun room-in-chunk (content)
  "How many octets more fit into the last chunk of CONTENT."
  (let ((buffer (output-buffer (reply-content-io content))))
    (multiple-value-bind (start size) (last-chunk content)
      (chunk-room size (- (length buffer) start)))))

(defun await-room-in-chunk (content)
  "How many octets more, at least one, fit into the last chunk of CONTENT.  Makes room if
necessary."
  (let ((room (room-in-chunk content)))
    (cond ((plusp room) room)
          (t
           (empty-output (reply-content-io content))
           (room-in-chunk content)))))

(defun lengthen-last-chunk (content count)
  "Makes the last chunk of CONTENT, or a new one, longer by COUNT octets, for which there is room.
Returns the buffer and the position for these octets."
  (let* ((io (reply-content-io content))
         (buffer (io-output io)))
    (multiple-value-bind (start size) (last-chunk content)
      (multiple-value-bind (position end) (lengthen-chunk buffer start size count)
        (setf (reply-content-chunk-start content) start
              (reply-content-chunk-size content) (+ size count)
              (reply-content-chunk-end content) end
              (io-fill io) end)
        (values buffer position)))))

(defmacro with-longer-chunk ((buffer position) (content count) &body body)
  "Evaluates BODY, which puts COUNT octets, for which there is room, at POSITION in BUFFER: the last
chunk of CONTENT has them from now on.  Without interrupts, or it might have others."
  `(uninterruptibly
     (multiple-value-bind (,buffer ,position) (lengthen-last-chunk ,content ,count)
       ,@body)))

(defun write-small-chunks (content octets start end)
  "Writes OCTETS from START to END to CONTENT as parts of chunks in the output buffer."
  (loop while (< start end)
        do (let ((count (min (- end start) (await-room-in-chunk content))))
             (with-longer-chunk (buffer position) (content count)
               (replace buffer octets :start1 position :start2 start :end2 (+ start count)))
             (incf start count))))

(defun write-octet-in-chunk (content octet)
  "Writes OCTET to CONTENT as a part of a chunk in the output buffer."
  (await-room-in-chunk content)
  (with-longer-chunk (buffer position) (content 1)
    (setf (aref buffer position) octet)))

(defun write-encoded (io output)
  "Writes the octets of OUTPUT, which are of no use in part, to IO, with backpressure."
  (whole-or-broken (io)
    (write-with-backpressure io (output-octets output) 0 (output-fill output))))

(defun write-large-chunk (content octets start end)
  "Writes OCTETS from START to END to CONTENT as one chunk."
  (let ((io (reply-content-io content)))
    (setf (reply-content-chunk-size content) 0) ; no chunk can be lengthened now
    (with-reply (line)
      (encode-chunk-start line (- end start))
      (whole-or-broken (io)
        (write-encoded io line)
        (write-with-backpressure io octets start end)
        (encode-chunk-end (reset-output line))
        (write-encoded io line)))))

(defun write-chunked (content octets start end)
  "Writes OCTETS from START to END to CONTENT in chunks."
  (check-range octets start end)
  (if (> (- end start) +output-size+)
      (write-large-chunk content octets start end)
      (write-small-chunks content octets start end)))

;;; Any content

(defun write-counted (content octets start end)
  "Writes OCTETS from START to END as far as the announced length goes."
  (let* ((rest (reply-content-framing content))
         (count (min rest (- end start)))
         (io (reply-content-io content)))
    (whole-or-broken (io)
      (write-with-backpressure io octets start (+ start count))
      (setf (reply-content-framing content) (- rest count)))
    (when (< (+ start count) end)
      (error 'content-too-long :stream (io-stream io)))))

(defun write-content (content octets start end)
  "Writes OCTETS from START to END to CONTENT, which has not ended."
  (case (reply-content-framing content)
    (:chunked (write-chunked content octets start end))
    (:plain (write-with-backpressure (reply-content-io content) octets start end))
    (:none)
    (t (write-counted content octets start end))))

(defmethod trivial-gray-streams:stream-write-sequence
    ((stream reply-stream) sequence start end &key)
  (let ((content (reply-stream-content stream)))
    (cond ((null (reply-content-framing content))
           (write-sequence sequence (reply-stream-inner stream) :start start :end end))
          ((typep sequence 'octets)
           (write-content content sequence start end))
          (t
           (let ((octets (coerce (subseq sequence start end) 'octets)))
             (write-content content octets 0 (length octets))))))
  sequence)

(defmethod trivial-gray-streams:stream-write-byte ((stream reply-stream) octet)
  (check-type octet octet)
  (let ((content (reply-stream-content stream)))
    (if (eq :chunked (reply-content-framing content))
        (write-octet-in-chunk content octet)
        (let ((octets (make-octets 1)))
          (setf (aref octets 0) octet)
          (write-sequence octets stream))))
  octet)

(defun flush-reply (stream)
  "Sends as much of the output of STREAM as the client takes now."
  (let ((content (reply-stream-content stream)))
    (if (reply-content-framing content)
        (push-output (reply-content-io content))
        (finish-output (reply-stream-inner stream))))
  nil)

(defmethod trivial-gray-streams:stream-force-output ((stream reply-stream))
  (flush-reply stream))

(defmethod trivial-gray-streams:stream-finish-output ((stream reply-stream))
  (flush-reply stream))

(defmethod trivial-gray-streams:stream-clear-output ((stream reply-stream))
  ;; Octets may have been sent already, and the head may still be in the buffer.
  nil)

;;; The end

(defun note-sent-beside (stream shared-queue)
  "Notes that content of STREAM, a REPLY-STREAM, was sent from SHARED-QUEUE: sets the rest of the
announced length."
  (when (shared-queue-announced shared-queue)
    (setf (reply-content-framing (reply-stream-content stream))
          (shared-queue-announced shared-queue))))

(defun framed (octets framing)
  "OCTETS, which must not change any more, in the form that FRAMING, of a REPLY-STREAM, requires."
  (if (eq :chunked framing) (chunk-of octets) octets))

(defun end-reply (stream)
  "Ends the content of STREAM, a REPLY-STREAM, if it has not ended yet.  Octets that the peer does
not take now are queued.  True when the content has its announced length."
  (let* ((content (reply-stream-content stream))
         (io (reply-content-io content))
         (framing (reply-content-framing content)))
    (whole-or-broken (io)
      (setf (reply-content-framing content) nil)
      (when (and (eq :chunked framing) (io-open-p io))
        (with-reply (end)
          (encode-last-chunk end)
          (write-encoded io end))))
    (when (and framing (io-open-p io))
      (push-output io))
    (not (typep framing '(integer 1)))))

(defmethod close ((stream reply-stream) &key abort)
  (unless abort
    (end-reply stream))
  (setf (reply-content-framing (reply-stream-content stream)) nil)
  (close (reply-stream-inner stream) :abort abort))

;;; The other methods of a stream

(defmethod stream-element-type ((stream reply-stream))
  '(unsigned-byte 8))

(defmethod open-stream-p ((stream reply-stream))
  (open-stream-p (reply-stream-inner stream)))

(defmethod trivial-gray-streams:stream-read-byte ((stream reply-stream))
  (read-byte (reply-stream-inner stream) nil :eof))

(defmethod trivial-gray-streams:stream-read-sequence ((stream reply-stream) sequence start end &key)
  (read-sequence sequence (reply-stream-inner stream) :start start :end end))

(defmethod trivial-gray-streams:stream-listen ((stream reply-stream))
  (listen (reply-stream-inner stream)))

(defmethod trivial-gray-streams:stream-clear-input ((stream reply-stream))
  (clear-input (reply-stream-inner stream)))
