(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; The stream to which a handler writes the content of its reply, after the head.
;;;;
;;;;   framing     the content                                 what is written
;;;;   :CHUNKED    ends with the last chunk                    becomes chunks
;;;;   a number    has so many octets more                     leaves as it is; more is an error
;;;;   :PLAIN      ends with the connection, or is of another  leaves as it is
;;;;               protocol
;;;;   :NONE       there is none                               is dropped
;;;;   NIL         has ended                                   is the business of the stream beneath
;;;;
;;;; Chunks are made where they leave from, in the buffer of the buffered connection, and are whole
;;;; at any time: so who reads on, and sends first what was written, need not know of them.  What is
;;;; written without being flushed becomes one chunk, as long as the buffer has room.

(defstruct (reply-content (:include opaque) (:constructor make-reply-content (io framing))
                          (:copier nil))
  "The content of one reply, as far as it was written."
  (io nil :type io :read-only t)
  (framing :plain :type (or (member :chunked :plain :none nil) content-size))
  ;; The last chunk in the buffer of the buffered connection: where it begins, how many octets it
  ;; has, and where it ends; unless the buffer ends there, too, it has left.
  (chunk-start 0 :type index)
  (chunk-size 0 :type index)
  (chunk-end 0 :type index))

(defclass reply-stream (trivial-gray-streams:fundamental-binary-input-stream
                        trivial-gray-streams:fundamental-binary-output-stream
                        trivial-gray-streams:trivial-gray-stream-mixin)
  ((content :initarg :content :reader reply-stream-content)
   (inner :initarg :inner :reader reply-stream-inner
          :documentation "The stream of the connection, from which everybody reads."))
  (:documentation "Octets of the content of one reply."))

(setf (documentation 'reply-stream-inner 'function)
      "The stream of octets behind REPLY-STREAM, from which a program may go on to read.")

(defun make-reply-stream (io inner framing)
  "A stream for the content of a reply over IO, whose head was written, on the stream INNER.
FRAMING is :CHUNKED, :PLAIN, :NONE or the number of octets that the content will have."
  (make-instance 'reply-stream :content (make-reply-content io framing) :inner inner))

(define-condition content-too-long (stream-error)
  ()
  (:report "More was written than the Content-Length of the reply has announced.")
  (:documentation "A handler has written more than it has announced; what was announced is sent."))

;;; Framing

(defun framing-of-stream (method status length chunked-p)
  "How the content is framed that is written piece by piece for a reply with STATUS to a request by
METHOD: as MAKE-REPLY-STREAM has it; and what the head says of it, a number of octets, :CHUNKED, or
NIL for nothing.  LENGTH is the number of octets, or NIL where nobody knows; CHUNKED-P says whether
it may come in chunks then
(RFC 9112, section 6)."
  (let ((said (and (body-allowed-p status)
                   (or length (and chunked-p :chunked)))))
    (values (cond ((eql 101 status) :plain)
                  ((not (content-wanted-p method status)) :none)
                  (t (or said :plain)))
            said)))

;;; Chunks

(declaim (inline last-chunk))
(defun last-chunk (content)
  "Where the chunk with which the buffer of CONTENT ends begins, and its size; 0 when it is still to
begin."
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
  "How many octets more, at least one, fit into the last chunk of CONTENT, after room was made for
them."
  (let ((room (room-in-chunk content)))
    (cond ((plusp room) room)
          (t
           (empty-output (reply-content-io content))
           (room-in-chunk content)))))

(defun lengthen-last-chunk (content count)
  "Makes the last chunk of CONTENT, or a new one, longer by COUNT octets, for which there is room.
Returns the buffer, and where in it the caller is to put these."
  (let* ((io (reply-content-io content))
         (buffer (io-output io)))
    (multiple-value-bind (start size) (last-chunk content)
      (multiple-value-bind (position end) (lengthen-chunk buffer start size count)
        (setf (reply-content-chunk-start content) start
              (reply-content-chunk-size content) (+ size count)
              (reply-content-chunk-end content) end
              (io-fill io) end)
        (values buffer position)))))

(defun write-small-chunks (content octets start end)
  (loop while (< start end)
        do (let ((count (min (- end start) (await-room-in-chunk content))))
             (uninterruptibly
               (multiple-value-bind (buffer position) (lengthen-last-chunk content count)
                 (replace buffer octets :start1 position :start2 start :end2 (+ start count))))
             (incf start count))))

(defun write-octet-in-chunk (content octet)
  (await-room-in-chunk content)
  (uninterruptibly
    (multiple-value-bind (buffer position) (lengthen-last-chunk content 1)
      (setf (aref buffer position) octet))))

(defun write-encoded (io output)
  "Writes the octets of OUTPUT, which are of no use in part, to IO; what its peer does not take now
is kept."
  (whole-or-broken (io)
    (write-with-backpressure io (output-octets output) 0 (output-fill output))))

(defun write-large-chunk (content octets start end)
  "Writes OCTETS from START to END as one chunk."
  (let ((io (reply-content-io content)))
    (setf (reply-content-chunk-size content) 0) ; there is none that could be lengthened
    (with-reply (line)
      (encode-chunk-start line (- end start))
      (whole-or-broken (io)
        (write-encoded io line)
        (write-with-backpressure io octets start end)
        (encode-chunk-end (reset-output line))
        (write-encoded io line)))))

(defun write-chunked (content octets start end)
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
  ;; What was written may have left, and the head may still be in the buffer.
  nil)

;;; The end

(defun note-sent-beside (stream shared-queue)
  "Notes that the content of STREAM, a REPLY-STREAM, was sent to its buffered connection from
SHARED-QUEUE, as much of it as was put in."
  (when (shared-queue-announced shared-queue)
    (setf (reply-content-framing (reply-stream-content stream)) (shared-queue-announced shared-queue))))

(defun framed (octets framing)
  "OCTETS, which nobody changes any more, as they leave under FRAMING, that of a REPLY-STREAM."
  (if (eq :chunked framing) (chunk-of octets) octets))

(defun end-reply (stream)
  "Ends the content that was written to STREAM, a REPLY-STREAM, if it has not ended yet; what the
peer does not take now is queued.  True when it is whole: none is missing of what the head has
announced."
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
      (leave-output-to-engine io))
    (not (typep framing '(integer 1)))))

(defmethod close ((stream reply-stream) &key abort)
  (unless abort
    (end-reply stream))
  (setf (reply-content-framing (reply-stream-content stream)) nil)
  (close (reply-stream-inner stream) :abort abort))

;;; What is not of the reply

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
