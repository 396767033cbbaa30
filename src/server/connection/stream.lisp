(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; A wire as a stream of octets, for everybody who wants one.

(defgeneric stream-wire (stream)
  (:documentation "The wire whose octets STREAM carries; NIL where it is none of ours."))

(defclass descriptor-stream (trivial-gray-streams:fundamental-binary-input-stream
                             trivial-gray-streams:fundamental-binary-output-stream
                             trivial-gray-streams:trivial-gray-stream-mixin)
  ((wire :initarg :wire :reader stream-wire))
  (:documentation "Octets in and out of a non-blocking descriptor."))

(defmethod stream-wire (stream)
  "NIL: any other stream has no wire."
  (declare (ignore stream))
  nil)

(defun make-descriptor-stream (descriptor &optional (queue (make-send-queue)))
  "A stream of octets on the open, non-blocking DESCRIPTOR, whose connection has QUEUE, a
SEND-QUEUE."
  (let ((wire (make-wire descriptor nil queue)))
    (setf (wire-stream wire) (make-instance 'descriptor-stream :wire wire))))

(defun queue-of-transport (transport)
  "The send queue of a wire that TRANSPORT carries: that of the wire beneath, save where TRANSPORT
waits, and the wire beneath sends meanwhile."
  (let* ((base (transport-base transport))
         (queue (if (and base (not (transport-waits-p transport)))
                    (wire-queue base)
                    (make-send-queue))))
    (setf (send-queue-sender queue) (lambda (parts) (transport-send-parts transport parts)))
    queue))

(defun make-transport-wire (transport)
  "A wire that TRANSPORT carries, with its stream of octets."
  (let ((wire (make-wire nil transport (queue-of-transport transport))))
    (setf (wire-stream wire) (make-instance 'descriptor-stream :wire wire))
    wire))

(defmethod limit-waits ((stream descriptor-stream) seconds)
  (let* ((wire (stream-wire stream))
         (milliseconds (or (as-milliseconds seconds) -1)))
    (setf (wire-milliseconds wire) milliseconds)
    (unless (and (wire-connection wire) (eq :engine (wire-owner wire))) ; see LINK-TO-SOCKET
      (limit-taking (wire-queue wire) seconds))
    (when (wire-lent wire)
      (setf (lisp-stream-milliseconds (wire-lent wire)) milliseconds))))

(defmethod stream-element-type ((stream descriptor-stream))
  '(unsigned-byte 8))

(defmethod close ((stream descriptor-stream) &key abort)
  (let ((wire (stream-wire stream)))
    (forget-closed-lent wire)
    ;; Where sending fails, that may have closed it.
    (with-acquired (open-p (wire-open-p wire) (when (wire-open-p wire) (end-wire wire abort)))
      (when open-p
        (unless abort (send-output wire))
        t))))

(defun end-wire (wire abort)
  "Closes what carries WIRE; if ABORT, what it has not sent is dropped."
  (let ((transport (wire-transport wire)))
    (cond (transport
           (drop-descriptor wire)
           (transport-end transport abort))
          (t
           (end-descriptor wire)))))

(defun end-descriptor (wire)
  "Closes the descriptor of WIRE where that is the stream's to close; the engine's is shut down."
  (let ((descriptor (wire-descriptor wire)))
    (drop-descriptor wire)
    (ecase (wire-owner wire)
      (:engine (shut-descriptor descriptor :io))
      (:stream (close-descriptor descriptor))
      ((:closing :lent)))
    (close-lent wire)))

(defmethod open-stream-p ((stream descriptor-stream))
  (let ((wire (stream-wire stream)))
    (forget-closed-lent wire)
    (wire-open-p wire)))

;;; Input

(defmethod trivial-gray-streams:stream-read-byte ((stream descriptor-stream))
  (let ((wire (stream-wire stream)))
    (if (or (< (wire-start wire) (wire-end wire))
            (await-input-of wire))
        (prog1 (aref (wire-input wire) (wire-start wire))
          (incf (wire-start wire)))
        :eof)))

(defmethod trivial-gray-streams:stream-read-sequence
    ((stream descriptor-stream) sequence start end &key)
  (loop with wire = (stream-wire stream)
        with position = start
        while (< position end)
        do (let ((count (cond ((< (wire-start wire) (wire-end wire))
                               (copy-input wire sequence position end))
                              ;; Where much is wanted, past the buffer.
                              ((and (typep sequence 'octets)
                                    (wire-open-p wire)
                                    (or (>= (- end position) +input-size+)
                                        (wire-waits-p wire)))
                               (receive-directly wire sequence position end))
                              ((await-input-of wire (min (- end position) +input-size+))
                               (copy-input wire sequence position end))
                              (t 0))))
             (when (zerop count)
               (return position))
             (incf position count))
        finally (return position)))

(defmethod trivial-gray-streams:stream-listen ((stream descriptor-stream))
  (eq :some (fill-input (stream-wire stream))))

(defmethod trivial-gray-streams:stream-clear-input ((stream descriptor-stream))
  (let ((wire (stream-wire stream)))
    (setf (wire-start wire) (wire-end wire))
    nil))

;;; Output

(defmethod trivial-gray-streams:stream-write-byte ((stream descriptor-stream) octet)
  (let ((wire (stream-wire stream)))
    (setf (aref (output-room wire) (wire-fill wire)) octet)
    (incf (wire-fill wire))
    octet))

(defmethod trivial-gray-streams:stream-write-sequence
    ((stream descriptor-stream) sequence start end &key)
  (write-keeping (stream-wire stream) sequence start end)
  sequence)

(defmethod trivial-gray-streams:stream-force-output ((stream descriptor-stream))
  (send-output (stream-wire stream)))

(defmethod trivial-gray-streams:stream-finish-output ((stream descriptor-stream))
  (send-output (stream-wire stream)))

(defmethod trivial-gray-streams:stream-clear-output ((stream descriptor-stream))
  (setf (wire-fill (stream-wire stream)) 0)
  nil)
