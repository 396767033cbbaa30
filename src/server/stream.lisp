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

;;; Input

(defun fill-input (stream)
  "Receives what is there for STREAM.  Returns :SOME when there is input to be read, :NONE when
nothing has come, :END when nothing will.  Does not block.  Signals DESCRIPTOR-BROKEN."
  (cond ((< (stream-start stream) (stream-end stream)) :some)
        ((null (stream-descriptor stream)) :end)
        (t
         (let* ((buffer (or (stream-input stream)
                            (setf (stream-input stream) (take-buffer :input))))
                (count (receive-octets (stream-descriptor stream) buffer 0 (length buffer))))
           (setf (stream-drained-p stream) (< count (length buffer)))
           (cond ((plusp count)
                  (setf (stream-start stream) 0
                        (stream-end stream) count)
                  :some)
                 ((zerop count) :end)
                 ((would-block-p count) :none)
                 (t (error 'descriptor-broken :stream stream :number (- count))))))))

(defun fill-more-input (stream)
  "Like FILL-INPUT, but receives more than STREAM has already."
  (let ((start (stream-start stream)) (end (stream-end stream)))
    (cond ((= start end) (fill-input stream))
          (t
           (let ((buffer (make-room-for-input stream)))
             (let* ((end (stream-end stream))
                    (count (receive-octets (stream-descriptor stream) buffer end
                                           (length buffer))))
               (setf (stream-drained-p stream) (< count (- (length buffer) end)))
               (cond ((plusp count)
                      (setf (stream-end stream) (+ end count))
                      :some)
                     ((zerop count) :end)
                     ((would-block-p count) :none)
                     (t (error 'descriptor-broken :stream stream :number (- count))))))))))

(defun make-room-for-input (stream)
  "The buffer of STREAM, after it has room behind its input: moved, or larger."
  (let* ((buffer (the octets (stream-input stream)))
         (start (stream-start stream))
         (end (stream-end stream)))
    (cond ((< end (length buffer)) buffer)
          (t
           (let ((target (if (plusp start) buffer (make-octets (* 2 (length buffer))))))
             (replace target buffer :start2 start :end2 end)
             (setf (stream-start stream) 0
                   (stream-end stream) (- end start)
                   (stream-input stream) target))))))

(defun await-input-of (stream)
  "Waits until STREAM has input; NIL at its end.  What was written and not sent is sent first:
the peer may be waiting for it."
  (loop
    (ecase (fill-input stream)
      (:some (return t))
      (:end (return nil))
      (:none
       (send-output stream)
       (await-peer stream :input)))))

(defun stream-all-read-p (stream)
  "True when STREAM has handed out all that had come when it was last filled."
  (and (stream-drained-p stream)
       (= (stream-start stream) (stream-end stream))))

(defun input-waiting-p (stream)
  "True when STREAM has input, or its end, that the poller will not tell of."
  (or (< (stream-start stream) (stream-end stream))
      (and (not (stream-drained-p stream))
           (not (eq :none (fill-input stream))))))

(defmethod trivial-gray-streams:stream-read-byte ((stream descriptor-stream))
  (if (or (< (stream-start stream) (stream-end stream))
          (await-input-of stream))
      (prog1 (aref (the octets (stream-input stream)) (stream-start stream))
        (incf (stream-start stream)))
      :eof))

(defmethod trivial-gray-streams:stream-read-sequence
    ((stream descriptor-stream) sequence start end &key)
  (loop with position = start
        while (and (< position end)
                   (or (< (stream-start stream) (stream-end stream))
                       (await-input-of stream)))
        do (let ((count (min (- end position) (- (stream-end stream) (stream-start stream)))))
             (replace sequence (the octets (stream-input stream))
                      :start1 position :start2 (stream-start stream)
                      :end2 (+ (stream-start stream) count))
             (incf position count)
             (incf (stream-start stream) count))
        finally (return position)))

(defmethod trivial-gray-streams:stream-listen ((stream descriptor-stream))
  (eq :some (fill-input stream)))

(defmethod trivial-gray-streams:stream-clear-input ((stream descriptor-stream))
  (setf (stream-start stream) (stream-end stream))
  nil)

;;; Output

(defun send-all (stream octets start end)
  "Sends OCTETS from START to END, waiting for the peer of STREAM where it is slow."
  (loop while (< start end)
        do (let ((count (send-octets (stream-descriptor stream) octets start end)))
             (cond ((>= count 0) (incf start count))
                   ((would-block-p count) (await-peer stream :output))
                   (t (error 'descriptor-broken :stream stream :number (- count)))))))

(defun drop-left (stream)
  (drop-parts (shiftf (stream-left stream) '())))

(defun send-parts-now (stream parts)
  "Sends what the descriptor of STREAM takes now of PARTS; what it does not take is LEFT.  Does
not block.  Signals DESCRIPTOR-BROKEN."
  (multiple-value-bind (left sent-p error) (send-parts (stream-descriptor stream) parts)
    (declare (ignore sent-p))
    (setf (stream-left stream) left)
    (when error
      (drop-left stream)
      (error 'descriptor-broken :stream stream :number error))))

(defun send-left (stream)
  "Sends what is LEFT of STREAM, waiting for its peer."
  (loop while (stream-left stream)
        do (await-peer stream :output)
           (send-parts-now stream (stream-left stream))))

(defun take-left (stream)
  "What is LEFT of STREAM, a list of parts, which is the caller's to send now.  The poller may
tell the caller of input until then, and not tell again."
  (setf (stream-drained-p stream) nil)
  (shiftf (stream-left stream) '()))

(defun left-to-engine-p (stream)
  "True when all that is to be sent to STREAM is LEFT, which the engine will take over."
  (and (typep stream 'descriptor-stream)
       (stream-left stream)
       (zerop (stream-fill stream))))

(defun send-output (stream)
  "Sends what was written to STREAM."
  (send-left stream)
  (let ((fill (stream-fill stream)))
    (when (plusp fill)
      (setf (stream-fill stream) 0)     ; not to be sent twice when this fails
      (send-all stream (stream-output stream) 0 fill))))

(defun output-room (stream)
  "The buffer for output of STREAM, which has room for an octet."
  (let ((buffer (or (stream-output stream)
                    (setf (stream-output stream) (take-buffer :output)))))
    (when (= (stream-fill stream) (length (the octets buffer)))
      (send-output stream))
    buffer))

(defmethod trivial-gray-streams:stream-write-byte ((stream descriptor-stream) octet)
  (setf (aref (the octets (output-room stream)) (stream-fill stream)) octet)
  (incf (stream-fill stream))
  octet)

(defmethod trivial-gray-streams:stream-write-sequence
    ((stream descriptor-stream) sequence start end &key)
  (cond ((and (typep sequence 'octets) (> (- end start) +output-size+))
         ;; Large vectors are not copied.
         (send-output stream)
         (send-all stream sequence start end))
        (t
         (loop while (< start end)
               do (let* ((buffer (output-room stream))
                         (count (min (- end start)
                                     (- (length (the octets buffer)) (stream-fill stream)))))
                    (replace (the octets buffer) sequence
                             :start1 (stream-fill stream)
                             :start2 start :end2 (+ start count))
                    (incf start count)
                    (incf (stream-fill stream) count)))))
  sequence)

(defmethod trivial-gray-streams:stream-force-output ((stream descriptor-stream))
  (send-output stream))

(defmethod trivial-gray-streams:stream-finish-output ((stream descriptor-stream))
  (send-output stream))

(defmethod trivial-gray-streams:stream-clear-output ((stream descriptor-stream))
  (setf (stream-fill stream) 0)
  nil)

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
