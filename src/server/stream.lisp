(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; A stream of octets on a non-blocking descriptor.
;;;;
;;;; It has buffers only while it is in use: they belong to the worker, who lends them for a
;;;; request.  Invariants:
;;;; - INPUT is NIL, or its octets from START to END were received and not read.
;;;; - OUTPUT is NIL, or its octets from 0 to FILL were written and not sent.
;;;; - LEFT is a list of parts (see the engine's output.lisp) of a reply that was given whole, and
;;;;   not sent because the descriptor took no more.  They leave before what OUTPUT has.  At the end of
;;;;   the request the engine takes them over; only who writes or waits before that waits for them.
;;;; - DRAINED-P is true only if the last time the descriptor was read, less came than could
;;;;   have, so that the poller will tell of what comes next.

(defconstant +input-size+ (* 16 1024))
(defconstant +output-size+ (* 32 1024))

(defun take-buffer (kind)
  "A buffer of KIND, :INPUT or :OUTPUT."
  (or (and *kit*
           (ecase kind
             (:input (pop (kit-inputs *kit*)))
             (:output (pop (kit-outputs *kit*)))))
      (make-octets (ecase kind
                     (:input +input-size+)
                     (:output +output-size+)))))

(defun return-buffer (kind buffer)
  "Keeps BUFFER for the next stream that wants one of KIND; NIL."
  (when *kit*
    (ecase kind
      ;; One that had to grow for a long head is not kept.
      (:input (when (= (length (the octets buffer)) +input-size+)
                (push buffer (kit-inputs *kit*))))
      (:output (push buffer (kit-outputs *kit*)))))
  nil)

(define-condition stream-timeout (stream-error)
  ()
  (:report (lambda (condition stream)
             (format stream "The peer of ~A took too long." (stream-error-stream condition))))
  (:documentation "Reading or writing took longer than it may."))

(define-condition descriptor-broken (stream-error)
  ((number :initarg :number :reader broken-number))
  (:report (lambda (condition stream)
             (format stream "~A is broken: error number ~D."
                     (stream-error-stream condition) (broken-number condition))))
  (:documentation "The connection was reset, or the like."))

(defclass descriptor-stream (trivial-gray-streams:fundamental-binary-input-stream
                             trivial-gray-streams:fundamental-binary-output-stream
                             trivial-gray-streams:trivial-gray-stream-mixin)
  ((descriptor :initarg :descriptor :accessor stream-descriptor
               :documentation "NIL when it was closed.")
   (own-p :initform nil :accessor stream-own-p
          :documentation "True when the descriptor is the stream's to close; else CLOSE only
ends it, and the engine, which watches it, closes it.")
   (milliseconds :initform -1 :accessor stream-milliseconds
                 :documentation "How long one wait may take; -1 for no limit.")
   (input :initform nil :accessor stream-input)
   (start :initform 0 :accessor stream-start)
   (end :initform 0 :accessor stream-end)
   (drained-p :initform nil :accessor stream-drained-p)
   (left :initform '() :accessor stream-left)
   (output :initform nil :accessor stream-output)
   (fill :initform 0 :accessor stream-fill))
  (:documentation "Octets in and out of a non-blocking descriptor."))

(defun make-descriptor-stream (descriptor)
  "A stream of octets on the open, non-blocking DESCRIPTOR."
  (make-instance 'descriptor-stream :descriptor descriptor))

(defmethod limit-waits ((stream descriptor-stream) seconds)
  (setf (stream-milliseconds stream) (if seconds (ceiling (* 1000 seconds)) -1)))

(defmethod stream-element-type ((stream descriptor-stream))
  '(unsigned-byte 8))

(defun await-peer (stream direction)
  (unless (await-descriptor (stream-descriptor stream) direction (stream-milliseconds stream))
    (error 'stream-timeout :stream stream)))

;;; Between requests, and at the end

(defun lend-no-buffers (stream)
  "Gives the buffers of STREAM that hold nothing back to the worker."
  (when (and (stream-input stream) (= (stream-start stream) (stream-end stream)))
    (setf (stream-input stream) (return-buffer :input (stream-input stream))
          (stream-start stream) 0
          (stream-end stream) 0))
  (when (and (stream-output stream) (zerop (stream-fill stream)))
    (setf (stream-output stream) (return-buffer :output (stream-output stream)))))

(defun hand-descriptor-over (stream)
  "Makes the descriptor of STREAM the stream's own, to be closed with it, after what is LEFT was
sent.  NIL when STREAM was closed already."
  (send-left stream)
  (setf (stream-own-p stream) t)
  (and (stream-descriptor stream) t))

(defun drop-descriptor (stream)
  "Makes STREAM one that is closed; its descriptor is somebody else's to close."
  (drop-left stream)
  (setf (stream-descriptor stream) nil
        (stream-start stream) (stream-end stream)
        (stream-fill stream) 0)
  (lend-no-buffers stream))

(defmethod close ((stream descriptor-stream) &key abort)
  (let ((descriptor (stream-descriptor stream)))
    (when descriptor
      (unwind-protect
           (unless abort (send-output stream))
        (drop-descriptor stream)
        (if (stream-own-p stream)
            (close-descriptor descriptor)
            (shut-descriptor descriptor :io)))
      t)))

(defmethod open-stream-p ((stream descriptor-stream))
  (and (stream-descriptor stream) t))
