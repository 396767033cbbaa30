(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; A buffered connection as a stream of octets.

(defgeneric stream-io (stream)
  (:documentation "The buffered connection whose octets STREAM carries; NIL where STREAM is none of
ours."))

(defclass descriptor-stream (trivial-gray-streams:fundamental-binary-input-stream
                             trivial-gray-streams:fundamental-binary-output-stream
                             trivial-gray-streams:trivial-gray-stream-mixin)
  ((io :initarg :io :reader stream-io))
  (:documentation "Octets in and out of a non-blocking descriptor."))

(defmethod stream-io (stream)
  "NIL: any other stream has no buffered connection."
  (declare (ignore stream))
  nil)

(defun make-descriptor-stream (descriptor &optional (queue (make-send-queue descriptor)))
  "A stream of octets on DESCRIPTOR, which is open and non-blocking, and whose connection has QUEUE,
a SEND-QUEUE."
  (let ((io (make-io descriptor nil queue)))
    (setf (io-stream io) (make-instance 'descriptor-stream :io io))))

(defun queue-of-transport (transport)
  "The send queue of a buffered connection that TRANSPORT carries.  It is the queue of the buffered
connection beneath; but a TRANSPORT that waits has a queue of its own, since the one beneath sends
meanwhile."
  (let* ((base (transport-base transport))
         (queue (if (and base (not (transport-waits-p transport)))
                    (io-queue base)
                    (make-send-queue))))
    (setf (send-queue-sender queue) (lambda (parts) (transport-send-parts transport parts))
          (send-queue-waits-p queue) (transport-waits-p transport))
    queue))

(defun make-transport-io (transport)
  "A buffered connection carried by TRANSPORT, with its stream of octets."
  (let ((io (make-io nil transport (queue-of-transport transport))))
    (setf (io-stream io) (make-instance 'descriptor-stream :io io))
    io))

(defmethod limit-waits ((stream descriptor-stream) seconds)
  (let* ((io (stream-io stream))
         (milliseconds (or (as-milliseconds seconds) -1)))
    (setf (io-milliseconds io) milliseconds)
    ;; See HTTP-CONNECTION-TO-SOCKET.
    (unless (and (io-connection io) (eq :engine (io-owner io)))
      (limit-taking (io-queue io) seconds))
    (when (io-lent io)
      (setf (lisp-stream-milliseconds (io-lent io)) milliseconds))))

(defmethod stream-element-type ((stream descriptor-stream))
  '(unsigned-byte 8))

(defmethod close ((stream descriptor-stream) &key abort)
  (let ((io (stream-io stream)))
    (forget-closed-lent io)
    ;; If sending fails, it may have closed the stream already.
    (when (io-open-p io)
      (unwind-protect (unless abort (send-output io))
        (when (io-open-p io) (end-io io abort)))
      t)))

(defun end-io (io abort)
  "Closes the descriptor or transport of IO.  If ABORT, unsent octets are dropped."
  (let ((transport (io-transport io)))
    (cond (transport
           (drop-descriptor io)
           (transport-end transport abort))
          (t
           (end-descriptor io)))))

(defun end-descriptor (io)
  "Closes the descriptor of IO where the stream owns it; shuts it down where the engine does."
  (let ((descriptor (io-descriptor io)))
    (drop-descriptor io)
    (ecase (io-owner io)
      (:engine (shut-descriptor descriptor :io))
      (:stream (close-descriptor descriptor))
      ((:closing :lent)))
    (close-lent io)))

(defmethod open-stream-p ((stream descriptor-stream))
  (let ((io (stream-io stream)))
    (forget-closed-lent io)
    (io-open-p io)))

;;; Input

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
        while (< position end)
        do (let ((count (cond ((< (io-start io) (io-end io))
                               (copy-input io sequence position end))
                              ;; For large reads, bypass the buffer.
                              ((and (typep sequence 'octets)
                                    (io-open-p io)
                                    (or (>= (- end position) +input-size+)
                                        (io-waits-p io)))
                               (receive-directly io sequence position end))
                              ((await-input-of io (min (- end position) +input-size+))
                               (copy-input io sequence position end))
                              (t 0))))
             (when (zerop count)
               (return position))
             (incf position count))
        finally (return position)))

(defmethod trivial-gray-streams:stream-listen ((stream descriptor-stream))
  (eq :some (fill-input (stream-io stream))))

(defmethod trivial-gray-streams:stream-clear-input ((stream descriptor-stream))
  (let ((io (stream-io stream)))
    (setf (io-start io) (io-end io))
    nil))

;;; Output

(defmethod trivial-gray-streams:stream-write-byte ((stream descriptor-stream) octet)
  (let ((io (stream-io stream)))
    (setf (aref (output-room io) (io-fill io)) octet)
    (incf (io-fill io))
    octet))

(defmethod trivial-gray-streams:stream-write-sequence
    ((stream descriptor-stream) sequence start end &key)
  (write-with-backpressure (stream-io stream) sequence start end)
  sequence)

(defmethod trivial-gray-streams:stream-force-output ((stream descriptor-stream))
  (send-output (stream-io stream)))

(defmethod trivial-gray-streams:stream-finish-output ((stream descriptor-stream))
  (send-output (stream-io stream)))

(defmethod trivial-gray-streams:stream-clear-output ((stream descriptor-stream))
  (setf (io-fill (stream-io stream)) 0)
  nil)

;;; The stream of the Lisp beside it, see lending.lisp

(defmethod octet-stream-descriptor ((stream descriptor-stream))
  (io-descriptor (stream-io stream)))

(defmethod accompany ((octet-stream descriptor-stream) stream)
  (let ((io (stream-io octet-stream)))
    (setf (lisp-stream-milliseconds stream) (io-milliseconds io)
          (io-lent io) stream)))

(defmethod hand-octets-over ((octet-stream descriptor-stream))
  (let* ((io (stream-io octet-stream))
         (start (io-start io))
         (end (io-end io)))
    (when (and (io-descriptor io) (open-stream-p (io-lent io)))
      (send-output io)
      (when (< start end)
        (put-read-ahead (io-lent io) (io-input io) start end)
        (setf (io-start io) end
              (io-kept io) 0)))))

;;; Giving the descriptor away

(defun hand-descriptor-over (io)
  "Sends the unsent octets of IO, then gives its descriptor to its stream, which closes it from now
on.  Returns NIL when the descriptor was closed already."
  (send-unsent io)
  (setf (io-owner io) :stream)
  (and (io-descriptor io) t))

(defun leave-to-lent (io)
  "Sends the unsent octets of IO, then makes the descriptor of the stream beside it that of IO,
blocking, as programs expect.  The caller closes the former descriptor."
  (send-unsent io)
  (setf (io-descriptor io) (lisp-stream-descriptor (io-lent io))
        ;; The former queue stays with the connection.
        (io-queue io) (make-send-queue (io-descriptor io))
        (io-owner io) :lent)
  (set-blocking (io-descriptor io)))
