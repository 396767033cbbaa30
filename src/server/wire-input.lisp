(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; What a wire receives.

(declaim (inline receive))
(defun receive (wire octets start end)
  "Like RECEIVE-OCTETS, from the descriptor of WIRE."
  (if (wire-lent wire)
      (receive-beside-lent wire octets start end)
      (receive-octets (open-descriptor wire) octets start end)))

(defun note-received (wire count room)
  "What COUNT, which RECEIVE-OCTETS has returned for WIRE when there was ROOM for so many octets,
says: :SOME, :NONE or :END.  Signals DESCRIPTOR-BROKEN."
  (setf (wire-drained-p wire) (and (< count room)
                                   (null (wire-lent wire)))) ; which may have been read meanwhile
  (cond ((plusp count) :some)
        ((zerop count) :end)
        ((would-block-p count) :none)
        (t (fail-as-broken wire (- count)))))

(defun fill-input (wire)
  "Receives what is there for WIRE.  Returns :SOME when there is input to be read, :NONE when
nothing has come, :END when nothing will.  Does not block.  Signals DESCRIPTOR-BROKEN."
  (cond ((< (wire-start wire) (wire-end wire)) :some)
        ((null (wire-descriptor wire)) :end)
        (t
         (let* ((buffer (or (wire-input wire)
                            (setf (wire-input wire) (take-buffer :input))))
                (count (receive wire buffer 0 (length buffer)))
                (outcome (note-received wire count (length buffer))))
           (when (eq :some outcome)
             (setf (wire-start wire) 0
                   (wire-end wire) count))
           outcome))))

(defun fill-more-input (wire)
  "Like FILL-INPUT, but receives more than WIRE has already."
  (if (= (wire-start wire) (wire-end wire))
      (fill-input wire)
      (let* ((buffer (make-room-for-input wire))
             (end (wire-end wire))
             (count (receive wire buffer end (length buffer)))
             (outcome (note-received wire count (- (length buffer) end))))
        (when (eq :some outcome)
          (setf (wire-end wire) (+ end count)))
        outcome)))

(defun make-room-for-input (wire)
  "The buffer of WIRE, after it has room behind its input: moved, or larger."
  (let* ((buffer (wire-input wire))
         (start (wire-start wire))
         (end (wire-end wire)))
    (cond ((< end (length buffer)) buffer)
          (t
           (let ((target (if (plusp start) buffer (make-octets (* 2 (length buffer))))))
             (replace target buffer :start2 start :end2 end)
             (setf (wire-start wire) 0
                   (wire-end wire) (- end start)
                   (wire-input wire) target))))))

(defun await-input-of (wire)
  "Waits until WIRE has input; NIL at its end.  What was written and not sent is sent first:
the peer may be waiting for it."
  (loop
    (ecase (fill-input wire)
      (:some (return t))
      (:end (return nil))
      (:none
       (send-output wire)
       (await-peer wire :input)))))

(defun wire-all-read-p (wire)
  "True when WIRE has handed out all that had come when it was last filled."
  (and (wire-drained-p wire)
       (= (wire-start wire) (wire-end wire))))

(defun input-waiting-p (wire)
  "True when WIRE has input, or its end, that the poller will not tell of."
  (or (< (wire-start wire) (wire-end wire))
      (and (not (wire-drained-p wire))
           (not (eq :none (fill-input wire))))))

(defun copy-input (wire sequence start end)
  "Copies what WIRE has buffered to SEQUENCE from START, up to END; returns how many octets."
  (let ((count (min (- end start) (- (wire-end wire) (wire-start wire)))))
    (replace sequence (wire-input wire)
             :start1 start :start2 (wire-start wire)
             :end2 (+ (wire-start wire) count))
    (incf (wire-start wire) count)
    count))

(defmacro await-octets ((wire room) call)
  "Evaluates CALL, which receives at most ROOM octets from the descriptor of WIRE and returns what
RECEIVE-OCTETS does, until there are any.  Returns how many, 0 at the end."
  `(loop
     (let ((count ,call))
       (unless (eq :none (note-received ,wire count ,room))
         (return count))
       (send-output ,wire)
       (await-peer ,wire :input))))

(defun receive-directly (wire octets start end)
  "Receives octets for WIRE, which has none buffered, to OCTETS from START, up to END; waits for
the first.  Returns how many, 0 at the end."
  ;; The range is a program's, and what follows checks nothing.
  (check-range octets start end)
  (await-octets (wire (- end start))
    (receive wire octets start end)))

(defun drop-input (wire count)
  "Drops some of what WIRE has or receives, at most COUNT octets; waits for the first.  Returns how
many, 0 at the end."
  (let ((buffered (min count (- (wire-end wire) (wire-start wire))))
        (room (min count +most-dropped+)))
    (cond ((plusp buffered)
           (incf (wire-start wire) buffered)
           buffered)
          ((wire-lent wire)
           (if (await-input-of wire) (drop-input wire count) 0))
          ((wire-descriptor wire)
           (await-octets (wire room)
             (drop-octets (open-descriptor wire) room)))
          (t 0))))
