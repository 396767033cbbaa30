(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; What a descriptor stream receives.

(defun note-received (stream count room)
  "What COUNT, which RECEIVE-OCTETS has returned for STREAM when there was ROOM for so many octets,
says: :SOME, :NONE or :END.  Signals DESCRIPTOR-BROKEN."
  (setf (stream-drained-p stream) (< count room))
  (cond ((plusp count) :some)
        ((zerop count) :end)
        ((would-block-p count) :none)
        (t (error 'descriptor-broken :stream stream :number (- count)))))

(defun fill-input (stream)
  "Receives what is there for STREAM.  Returns :SOME when there is input to be read, :NONE when
nothing has come, :END when nothing will.  Does not block.  Signals DESCRIPTOR-BROKEN."
  (cond ((< (stream-start stream) (stream-end stream)) :some)
        ((null (stream-descriptor stream)) :end)
        (t
         (let* ((buffer (or (stream-input stream)
                            (setf (stream-input stream) (take-buffer :input))))
                (count (receive-octets (stream-descriptor stream) buffer 0 (length buffer)))
                (outcome (note-received stream count (length buffer))))
           (when (eq :some outcome)
             (setf (stream-start stream) 0
                   (stream-end stream) count))
           outcome))))

(defun fill-more-input (stream)
  "Like FILL-INPUT, but receives more than STREAM has already."
  (if (= (stream-start stream) (stream-end stream))
      (fill-input stream)
      (let* ((buffer (make-room-for-input stream))
             (end (stream-end stream))
             (count (receive-octets (stream-descriptor stream) buffer end (length buffer)))
             (outcome (note-received stream count (- (length buffer) end))))
        (when (eq :some outcome)
          (setf (stream-end stream) (+ end count)))
        outcome)))

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

(defun copy-input (stream sequence start end)
  "Copies what STREAM has buffered to SEQUENCE from START, up to END; returns how many octets."
  (let ((count (min (- end start) (- (stream-end stream) (stream-start stream)))))
    (replace sequence (the octets (stream-input stream))
             :start1 start :start2 (stream-start stream)
             :end2 (+ (stream-start stream) count))
    (incf (stream-start stream) count)
    count))

(defun receive-directly (stream octets start end)
  "Receives octets for STREAM, which has none buffered, to OCTETS from START, up to END; waits for
the first.  Returns how many, 0 at the end."
  (loop
    (let ((count (receive-octets (stream-descriptor stream) octets start end)))
      (unless (eq :none (note-received stream count (- end start)))
        (return count))
      (send-output stream)
      (await-peer stream :input))))

(defmethod trivial-gray-streams:stream-read-sequence
    ((stream descriptor-stream) sequence start end &key)
  (loop with position = start
        while (< position end)
        do (let ((count (cond ((< (stream-start stream) (stream-end stream))
                               (copy-input stream sequence position end))
                              ;; Where much is wanted, past the buffer.
                              ((and (typep sequence 'octets)
                                    (stream-descriptor stream)
                                    (>= (- end position) +input-size+))
                               (receive-directly stream sequence position end))
                              ((await-input-of stream)
                               (copy-input stream sequence position end))
                              (t 0))))
             (when (zerop count)
               (return position))
             (incf position count))
        finally (return position)))

(defmethod trivial-gray-streams:stream-listen ((stream descriptor-stream))
  (eq :some (fill-input stream)))

(defmethod trivial-gray-streams:stream-clear-input ((stream descriptor-stream))
  (setf (stream-start stream) (stream-end stream))
  nil)
