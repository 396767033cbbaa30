(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; The output of a buffered connection, and its stream of octets.  What a handler writes fills a
;;;; buffer.  A full buffer goes to the send queue of the connection, as far as the socket does not
;;;; take it at once:
;;;;
;;;;   the queue has                  the handler
;;;;   at most the high-water mark    goes on
;;;;   more, or the heap no room      waits until the client has taken some, see AWAIT-PEER
;;;;
;;;; After the reply a worker sends the rest.  Where none would, since the program has a Lisp stream
;;;; beside ours (see below) or the whole connection, each write waits for the client.

(defparameter *high-water-mark* (* 256 1024)
  "How many octets, an integer from 0, of a streamed reply are queued for a client that does not
take them.  Beyond that, the handler waits for the client, for at most the write timeout of the
acceptor.  Each slow client may take so much of the heap, while no more than five eighths of the
heap are in use.")

(defmacro whole-or-broken ((io) &body body)
  "Evaluates BODY, which writes something to IO that is of no use in part.  A non-local exit out of
BODY ends the connection."
  `(unless-returned (progn ,@body)
     (break-off-io ,io)))

(defun break-off-io (io)
  "Ends the connection of IO at once.  Later reads and writes fail, and do not wait for the peer."
  (close (io-stream io) :abort t))

(defun check-sent (io failure)
  "Signals DESCRIPTOR-BROKEN if FAILURE, of a write to IO, is an error number and not NIL."
  (when failure
    (fail-as-broken io)))

(defun flush-io (io)
  "Sends as much of the queue of IO as the peer takes now.  Signals DESCRIPTOR-BROKEN."
  (check-sent io (flush-queue (io-queue io))))

(defun engine-sends-p (io)
  "True when the engine sends what is unsent of IO."
  (let ((base (io-base io)))
    (and (eq :engine (io-owner base))
         (null (io-lent base)))))

(defun push-buffer (io)
  "Writes what is in the output buffer of IO to the queue."
  (let ((end (shiftf (io-fill io) 0)))  ; if this fails, nothing is sent twice
    (check-sent io (write-to-queue (io-queue io) (io-output io) 0 end))))

(defun send-output (io)
  "Sends all octets that were written to IO, and to the Lisp stream beside it; waits for the peer."
  (flet ((send-unsent ()
           (loop while (io-unsent io)
                 do (await-peer io :output)
                    (flush-io io))))
    (when (io-lent io)
      (send-unsent)
      (unless (lent-open-p io)
        (fail-as-broken io))
      (finish-output (io-lent io)))
    (when (plusp (io-fill io))
      (push-buffer io))
    (send-unsent)))

(defun push-output (io)
  "Sends as much of the queue and the output buffer of IO as the peer takes now.  Waits only if the
engine would not send the rest."
  (cond ((not (engine-sends-p io)) (send-output io))
        ((plusp (io-fill io)) (push-buffer io))))

(defun empty-output (io)
  "Empties the output buffer of IO.  Waits for its peer while too much is queued: all slow clients
together could fill the heap."
  (push-output io)
  (loop for unsent = (send-queue-size (io-queue io))
        while (or (> unsent *high-water-mark*)
                  (and (plusp unsent)
                       (not (make-room-in-heap unsent))))
        do (await-peer io :output)
           (flush-io io)))

(defun flushed-p (io stream)
  "True when no octets that were written to STREAM, the stream of IO or one made of that, still wait
in a buffer.  Octets in the queue may wait: the engine sends them."
  (and (zerop (io-fill io))
       (or (eq stream (io-stream io))
           (io-unsent io))))

(defun output-buffer (io)
  "The output buffer of IO, which may be full."
  (or (io-output io)
      (setf (io-output io) (take-buffer))))

(defun write-with-backpressure (io sequence start end)
  "Writes SEQUENCE, of octets, from START to END to IO.  Octets that the peer does not take now are
queued, up to the high-water mark."
  (loop while (< start end)
        do (let ((buffer (output-buffer io)))
             (when (= (io-fill io) (length buffer))
               (empty-output io))
             (let* ((fill (io-fill io))
                    (next (min end (+ start (- (length buffer) fill)))))
               (replace buffer sequence :start1 fill :start2 start :end2 next)
               (setf (io-fill io) (+ fill (- next start))
                     start next)))))

;;; What sends in place of the descriptor: TLS, which takes a record at a time, or a stream

(defconstant +gathered-octets+ (* 16 1024)
  "How many octets TLS sends as one record (RFC 8446, section 5.1).")

(defun send-parts-by (send parts)
  "Sends PARTS, a list (see PART) of which the first has octets, as far as they are taken now, by
SEND, a function of octets, a start and an end.  Gathers them, since each would be a TLS record and
a system call.  Returns what SEND-OCTETS does."
  (let ((buffer (take-buffer))
        (fill 0))
    (loop for part in parts
          while (< fill +gathered-octets+)
          do (let* ((position (part-position part))
                    (next (min +gathered-octets+ (+ fill (- (part-end part) position)))))
               (cond ((part-octets part)
                      (replace buffer (the octets (part-octets part))
                               :start1 fill :end1 next :start2 position))
                     ((not (read-file-octets (part-file part) position buffer fill next))
                      (return)))
               (setf fill next)))
    (prog1 (if (plusp fill) (funcall send buffer 0 fill) 0) ; 0 if a file ends too early
      (return-buffer buffer))))

(defun begin-tls (io context)
  "Makes IO, of a descriptor, carry TLS by CONTEXT, a TLS-CONTEXT.  The handshake is not begun."
  (let ((session (make-tls-session context (io-descriptor io))))
    (setf (io-tls io) session
          (io-source io) nil            ; a program may have asked for the stream before
          (send-queue-sender (io-queue io))
          (lambda (parts)
            (send-parts-by (lambda (octets start end) (send-tls session octets start end))
                           parts)))))

;;; The stream

(defclass descriptor-stream (trivial-gray-streams:fundamental-binary-input-stream
                             trivial-gray-streams:fundamental-binary-output-stream
                             trivial-gray-streams:trivial-gray-stream-mixin)
  ((io :initarg :io :reader stream-io))
  (:documentation "The octets of a buffered connection, in both directions."))

(defmethod stream-io (stream)
  "NIL: any other stream has no buffered connection."
  (declare (ignore stream))
  nil)

(defun make-io-stream (descriptor queue &optional source beneath)
  "A stream of octets, with its buffered connection: on DESCRIPTOR, which is open and non-blocking,
with QUEUE, a SEND-QUEUE; or on SOURCE, a stream, which is perhaps made of that of BENEATH."
  (let ((io (make-io descriptor queue nil beneath)))
    (when source
      (carry-by io source))
    (setf (io-stream io) (make-instance 'descriptor-stream :io io))))

(defun carry-by (io source)
  "Makes the stream SOURCE carry the octets of IO in both directions, in place of a descriptor."
  (let ((queue (make-send-queue)))
    (flet ((send (octets start end)
             (or-broken (source)
               (write-stream-octets source octets start end)
               (- end start))))
      (setf (send-queue-sender queue) (lambda (parts) (send-parts-by #'send parts))
            (io-descriptor io) nil
            (io-source io) source
            (io-queue io) queue))))

(defun socket-io (socket)
  "The buffered connection of SOCKET; NIL where it is none of ours."
  (stream-io (socket-octet-stream socket)))

(defun connection-usocket (connection)
  "The socket of CONNECTION, made at the first call."
  (or (connection-socket connection)
      (let ((descriptor (connection-descriptor connection)))
        (setf (connection-socket connection)
              (make-instance 'descriptor-usocket
                             :descriptor descriptor
                             :octet-stream (make-io-stream descriptor
                                                           (connection-queue connection))
                             :peer (connection-peer connection))))))

(defmethod limit-waits ((stream descriptor-stream) seconds)
  (setf (io-milliseconds (stream-io stream)) (or (as-milliseconds seconds) -1)))

(defmethod stream-element-type ((stream descriptor-stream))
  '(unsigned-byte 8))

(defmethod open-stream-p ((stream descriptor-stream))
  (let ((io (stream-io stream)))
    (and (io-open-p io)
         (or (null (io-lent io)) (lent-open-p io)))))

(defmethod close ((stream descriptor-stream) &key abort)
  "Closes what carries STREAM; only shuts the descriptor down where the engine closes it."
  (let ((io (stream-io stream)))
    ;; If sending fails, it may have closed the stream already.
    (when (io-open-p io)
      (unwind-protect (when (and (not abort) (open-stream-p stream)) (send-output io))
        (let ((source (io-source io)) (descriptor (io-descriptor io)))
          (drop-descriptor io)
          (end-tls io)
          (when source
            (close source :abort abort))
          (when descriptor
            (if (eq :engine (io-owner io))
                (shut-descriptor descriptor :io)
                (close-descriptor descriptor))
            (close-lent io))))
      t)))

(defun end-tls (io)
  "Ends the TLS session of IO, if it has one that has not ended."
  (when (io-tls io)
    (end-tls-session (io-tls io))))

(defmethod trivial-gray-streams:stream-read-byte ((stream descriptor-stream))
  (let ((io (stream-io stream)))
    (if (or (< (io-start io) (io-end io))
            (await-input-of io))
        (prog1 (aref (io-input io) (io-start io))
          (incf (io-start io)))
        :eof)))

(defmethod trivial-gray-streams:stream-read-sequence
    ((stream descriptor-stream) sequence start end &key)
  (loop with io = (stream-io stream)
        with position = start
        while (and (< position end)
                   (await-input-of io (min (- end position) +buffer-size+)))
        do (let ((count (min (- end position) (- (io-end io) (io-start io)))))
             (replace sequence (io-input io)
                      :start1 position :start2 (io-start io) :end2 (+ (io-start io) count))
             (incf (io-start io) count)
             (incf position count))
        finally (return position)))

(defmethod trivial-gray-streams:stream-listen ((stream descriptor-stream))
  (eq :some (fill-input (stream-io stream))))

(defmethod trivial-gray-streams:stream-write-byte ((stream descriptor-stream) octet)
  (check-type octet octet)
  (let ((octets (make-octets 1)))
    (setf (aref octets 0) octet)
    (write-sequence octets stream)
    octet))

(defmethod trivial-gray-streams:stream-write-sequence
    ((stream descriptor-stream) sequence start end &key)
  (write-with-backpressure (stream-io stream) sequence start end)
  sequence)

(defmethod trivial-gray-streams:stream-force-output ((stream descriptor-stream))
  (finish-output stream))

(defmethod trivial-gray-streams:stream-finish-output ((stream descriptor-stream))
  (send-output (stream-io stream)))

;;; The Lisp's own stream beside it
;;;
;;; Programs and libraries do things with the stream of a socket that only the streams of the Lisp
;;; support: they set time limits, ask for the descriptor, read characters.  So a program that asks
;;; for the stream gets one of those, LENT, with a duplicate of the descriptor.
;;;
;;; - From then on LENT is read in place of the descriptor; it gets the octets that were received
;;;   before.  Over TLS it has only the time limits.
;;; - Octets written to LENT are sent before octets written to the buffered connection later.
;;; - LENT has the time limit for both.
;;; - If a program closes LENT, the connection ends with the request.  When the connection is given
;;;   away, LENT carries it, and the engine closes its own descriptor.

(defmethod slot-unbound (class (socket descriptor-usocket) (slot (eql 'usocket::socket)))
  (declare (ignore class))
  (let ((io (socket-io socket)))
    ;; A closed descriptor's number may belong to another connection by now.
    (unless (io-descriptor io)
      (error 'usocket:bad-file-descriptor-error :socket socket))
    (setf (io-lent io) (lend-stream socket (io-descriptor io))
          (lisp-stream-milliseconds (io-lent io)) (io-milliseconds io))
    (slot-value socket slot)))

(defmethod usocket:socket-stream ((socket descriptor-usocket))
  (usocket:socket socket)               ; makes the stream if necessary
  (let ((io (socket-io socket)))
    (when (and (io-descriptor io) (lent-open-p io))
      (send-output io)
      (unless (io-tls io)
        (when (< (io-start io) (io-end io))
          (put-read-ahead (io-lent io) (io-input io) (io-start io) (io-end io)))
        (setf (io-start io) (io-end io)
              (io-source io) (io-lent io))))
    (io-lent io)))

(defun lent-open-p (io)
  "True when there is a stream beside IO, and it is open."
  (and (io-lent io)
       (open-stream-p (io-lent io))))

(defun close-lent (io)
  "Closes the stream beside IO, if there is one.  Unflushed output is lost."
  (when (io-lent io)
    (close (io-lent io) :abort t)))
