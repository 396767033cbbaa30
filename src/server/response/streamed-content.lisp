(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; A reply stream: a handler writes the content of its reply to it, after the head.
;;;;
;;;;   framing     the content                                 octets that are written
;;;;   :CHUNKED    ends with the last chunk                    become chunks
;;;;   a number    has so many octets more                     are sent unchanged; more are an error
;;;;   :PLAIN      ends with the connection, or is of another  are sent unchanged
;;;;               protocol
;;;;   :NONE       does not exist                              are dropped
;;;;   NIL         has ended                                   are dropped
;;;;
;;;; Chunks are composed in the output buffer of the connection.  Each is complete at any time, so
;;;; that a read of content, which sends the output first, may come between two writes.  Writes
;;;; without a flush between them share one chunk, as long as the buffer has room.

(defclass reply-stream (descriptor-stream)
  ((inner :initarg :inner :reader reply-stream-inner
          :documentation "The stream of the connection.")
   (framing :initarg :framing :accessor reply-stream-framing)
   ;; The bounds of the last chunk in the output buffer.  If that ends elsewhere, it was sent.
   (chunk-start :initform 0 :accessor chunk-start)
   (chunk-end :initform 0 :accessor chunk-end))
  (:documentation "A stream for the octets of the content of one reply."))

(defun framing-of-stream (method status length chunked-p)
  "The framing of streamed content for a reply with STATUS to a request by METHOD: :CHUNKED, :PLAIN,
:NONE or a number of octets; and what the head says of it: a number of octets, :CHUNKED, or NIL for
nothing.  LENGTH is the number of octets, or NIL if unknown; then CHUNKED-P says whether chunks are
allowed (RFC 9112, section 6)."
  (let ((said (and (body-allowed-p status)
                   (or length (and chunked-p :chunked)))))
    (values (cond ((eql 101 status) :plain)
                  ((not (content-wanted-p method status)) :none)
                  (t (or said :plain)))
            said)))

(defun framed (octets framing)
  "OCTETS, which must not change any more, in the form that FRAMING, of a REPLY-STREAM, requires."
  (if (eq :chunked framing) (chunk-of octets) octets))

(defun write-chunked (stream octets start end)
  "Writes OCTETS from START to END to STREAM in chunks."
  (let ((io (stream-io stream))
        (digits 4))                     ; enough for a whole buffer
    (check-range octets start end)
    (loop while (< start end)
          do (let* ((buffer (output-buffer io))
                    (fill (io-fill io))
                    (grows-p (and (plusp fill) (= fill (the index (chunk-end stream)))))
                    (first (if grows-p (chunk-start stream) fill))
                    (position (if grows-p (- fill 2) (+ fill digits 2)))
                    (count (min (- end start) (- (length buffer) position 2))))
               (declare (type index fill first position) (type fixnum count))
               (cond ((plusp count)
                      (replace buffer octets :start1 position :start2 start :end2 (+ start count))
                      (setf (io-fill io) (frame-chunk buffer first digits (+ position count))
                            (chunk-start stream) first
                            (chunk-end stream) (io-fill io))
                      (incf start count))
                     (t (empty-output io)))))))

(defmethod trivial-gray-streams:stream-write-sequence
    ((stream reply-stream) sequence start end &key)
  (let ((io (stream-io stream))
        (framing (reply-stream-framing stream)))
    (cond ((member framing '(nil :none)))
          ((not (typep sequence 'octets))
           (write-sequence (coerce (subseq sequence start end) 'octets) stream))
          ((eq :chunked framing)
           (write-chunked stream sequence start end))
          ((eq :plain framing)
           (write-with-backpressure io sequence start end))
          (t                            ; as far as the announced length goes
           (let ((count (min framing (- end start))))
             (whole-or-broken (io)
               (write-with-backpressure io sequence start (+ start count))
               (setf (reply-stream-framing stream) (- framing count)))
             (when (< (+ start count) end)
               (error 'content-too-long :stream (io-stream io)))))))
  sequence)

(defmethod trivial-gray-streams:stream-finish-output ((stream reply-stream))
  "Sends as much of the output of STREAM as the client takes now."
  (when (reply-stream-framing stream)
    (push-output (stream-io stream)))
  nil)

;;; The end

(defun end-reply (stream)
  "Ends the content of STREAM, a REPLY-STREAM, if it has not ended yet.  Octets that the peer does
not take now are queued.  True when the content has its announced length."
  (let ((io (stream-io stream))
        (framing (shiftf (reply-stream-framing stream) nil)))
    (when (and framing (io-open-p io))
      (when (eq :chunked framing)
        (whole-or-broken (io)
          (write-with-backpressure io *last-chunk* 0 (length *last-chunk*))))
      (push-output io))
    (not (typep framing '(integer 1)))))

(defmethod close ((stream reply-stream) &key abort)
  (unless abort
    (end-reply stream))
  (setf (reply-stream-framing stream) nil)
  (close (reply-stream-inner stream) :abort abort))
