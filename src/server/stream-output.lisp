(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; What a descriptor stream sends.

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
