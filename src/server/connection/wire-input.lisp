(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; What a wire receives.

(declaim (inline receive))
(defun receive (wire octets start end wanted)
  "Like RECEIVE-OCTETS, from what carries WIRE; see TRANSPORT-RECEIVE for WANTED."
  (cond ((wire-transport wire)
         (transport-receive (wire-transport wire) octets start end wanted))
        ((wire-lent wire)
         (receive-beside-lent wire octets start end))
        (t
         (receive-octets (open-descriptor wire) octets start end))))

(defun note-received (wire count room)
  "What COUNT, which RECEIVE-OCTETS has returned for WIRE when there was ROOM for so many octets,
says: :SOME, :NONE or :END.  Signals DESCRIPTOR-BROKEN."
  (setf (wire-drained-p wire) (cond ((wire-transport wire) (transport-drained-p (wire-transport wire) count))
                                    ((wire-lent wire) nil) ; it may have been read meanwhile
                                    (t (< count room))))
  (cond ((plusp count)
         (incf (wire-received wire) count)
         :some)
        ((zerop count) :end)
        ((would-block-p count) :none)
        (t (fail-as-broken wire (- count)))))

(defun input-of-descriptor (wire)
  "How many octets the descriptor of WIRE has that can be received without waiting; 0 where something else
carries WIRE, or may read its descriptor too."
  (if (or (null (wire-descriptor wire)) (wire-transport wire) (wire-lent wire))
      0
      (max 0 (unread-octets (wire-descriptor wire)))))

(defun fill-input (wire)
  "Receives what is there for WIRE.  Returns :SOME when there is input to be read, :NONE when
nothing has come, :END when nothing will.  Does not block.  Signals DESCRIPTOR-BROKEN."
  (cond ((< (wire-start wire) (wire-end wire)) :some)
        ((not (wire-open-p wire)) :end)
        ((and (wire-waits-p wire) (not (transport-ready-p (wire-transport wire)))) :none)
        (t (fill-empty-input wire 1))))

(defun empty-input-buffer (wire)
  "The buffer for input of WIRE, which has none; one that is large enough."
  (let ((buffer (wire-input wire)))
    (if (and buffer (>= (length (the octets buffer)) +input-size+))
        buffer
        (setf (wire-input wire) (take-buffer :input)))))

(defun fill-empty-input (wire wanted)
  "Receives what is there for WIRE, which has no input; waits for WANTED octets where its transport does.
Returns what FILL-INPUT does."
  (let* ((buffer (empty-input-buffer wire))
         (count (receive wire buffer 0 (length buffer) wanted))
         (outcome (note-received wire count (length buffer))))
    (when (eq :some outcome)
      (setf (wire-start wire) 0
            (wire-end wire) count))
    outcome))

(defun fill-more-input (wire)
  "Receives more than WIRE has already; returns what FILL-INPUT does.  Waits for the next line where its
transport does."
  (if (= (wire-start wire) (wire-end wire))
      (if (wire-open-p wire)
          (fill-empty-input wire nil)
          :end)
      (let* ((buffer (make-room-for-input wire))
             (end (wire-end wire))
             (count (receive wire buffer end (length buffer) nil))
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

(defun receive-wanted (wire wanted)
  "Like FILL-INPUT; but where the transport of WIRE waits, waits for WANTED octets."
  (cond ((< (wire-start wire) (wire-end wire)) :some)
        ((not (wire-open-p wire)) :end)
        (t
         (when (wire-waits-p wire)
           (send-output wire))
         (fill-empty-input wire wanted))))

(defun await-input-of (wire &optional (wanted 1))
  "Waits until WIRE has input; NIL at its end.  What was written and not sent is sent first:
the peer may be waiting for it.  No more than WANTED octets are read where others may read on."
  (loop
    (ecase (receive-wanted wire wanted)
      (:some (return t))
      (:end (return nil))
      (:none
       (send-output wire)
       (await-peer wire :input)))))

(defun input-ended-p (wire)
  "True when the peer of WIRE has sent its end, whether what came before was read or not, or is gone.  Does not wait."
  (let ((descriptor (wire-descriptor wire)))
    (and descriptor
         (await-descriptor descriptor :end :until (milliseconds)))))

(defun wire-failed-p (wire)
  "True when the connection of WIRE was reset by its peer, or has failed otherwise, so that nothing
reaches the peer any more.  Does not wait."
  (let ((descriptor (wire-descriptor wire)))
    (and descriptor
         (await-descriptor descriptor :failure :until (milliseconds)))))

(defun wire-all-read-p (wire)
  "True when WIRE has handed out all that had come when it was last filled."
  (and (wire-drained-p wire)
       (= (wire-start wire) (wire-end wire))))

(defun input-waiting-p (wire)
  "True when WIRE has input, or its end, also by a failure, that the poller will not tell of."
  (cond ((< (wire-start wire) (wire-end wire)) t)
        ((wire-waits-p wire) (transport-ready-p (wire-transport wire)))
        ((wire-drained-p wire) nil)
        (t (handler-case (not (eq :none (fill-input wire)))
             (descriptor-broken () t))))) ; who reads will see it

(defun wire-awaits-output-p (wire)
  "True when what carries WIRE was read in vain, because it has octets to send first."
  (let ((transport (wire-transport wire)))
    (and transport
         (not (wire-drained-p wire))
         (not (wire-waits-p wire))
         (eq :output (transport-awaits transport)))))

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
    (receive wire octets start end (- end start))))

(defun drop-input (wire count)
  "Drops some of what WIRE has or receives, at most COUNT octets; waits for the first.  Returns how
many, 0 at the end."
  (let ((buffered (min count (- (wire-end wire) (wire-start wire))))
        (room (min count +most-dropped+)))
    (cond ((plusp buffered)
           (incf (wire-start wire) buffered)
           buffered)
          ((or (wire-lent wire) (wire-transport wire))
           (if (await-input-of wire (min count +input-size+)) (drop-input wire count) 0))
          ((wire-descriptor wire)
           (await-octets (wire room)
             (drop-octets (open-descriptor wire) room)))
          (t 0))))
