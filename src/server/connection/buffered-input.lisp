(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; The input of a buffered connection.

(declaim (inline receive))
(defun receive (io octets start end wanted)
  "Like RECEIVE-OCTETS, from the descriptor or transport of IO.  WANTED is as in TRANSPORT-RECEIVE."
  (cond ((io-transport io)
         (transport-receive (io-transport io) octets start end wanted))
        ((io-lent io)
         (receive-beside-lent io octets start end))
        (t
         (receive-octets (open-descriptor io) octets start end))))

(defun note-received (io count room)
  "Records that RECEIVE-OCTETS has returned COUNT for IO, when there was ROOM for so many octets.
Returns :SOME, :NONE or :END.  Signals DESCRIPTOR-BROKEN."
  (setf (io-drained-p io) (cond ((io-transport io) (transport-drained-p (io-transport io) count))
                                ((io-lent io) nil)         ; the Lisp stream may have taken some
                                (t (< count room))))
  (cond ((plusp count)
         (incf (io-received io) count)
         :some)
        ((zerop count) :end)
        ((would-block-p count) :none)
        (t (fail-as-broken io (- count)))))

(defun fill-input (io)
  "Receives octets for IO unless it has some.  Returns :SOME when there is input, :NONE when nothing
has come, :END when nothing will come.  Does not block.  Signals DESCRIPTOR-BROKEN."
  (cond ((< (io-start io) (io-end io)) :some)
        ((not (io-open-p io)) :end)
        ((and (io-waits-p io) (not (transport-ready-p (io-transport io)))) :none)
        (t (fill-empty-input io 1))))

(defun empty-input-buffer (io)
  "An input buffer of at least full size for IO, which has no input."
  (let ((buffer (io-input io)))
    (if (and buffer (>= (length (the octets buffer)) +input-size+))
        buffer
        (setf (io-input io) (take-buffer :input)))))

(defun fill-empty-input (io wanted)
  "Receives octets for IO, which has no input.  A transport that waits waits for WANTED octets.
Returns the same as FILL-INPUT."
  (let* ((buffer (empty-input-buffer io))
         (count (receive io buffer 0 (length buffer) wanted))
         (outcome (note-received io count (length buffer))))
    (when (eq :some outcome)
      (setf (io-start io) 0
            (io-end io) count))
    outcome))

(defun fill-more-input (io)
  "Receives octets for IO in addition to those that it has.  A transport that waits waits for the
next line.  Returns the same as FILL-INPUT."
  (if (= (io-start io) (io-end io))
      (if (io-open-p io)
          (fill-empty-input io nil)
          :end)
      (let* ((buffer (make-room-for-input io))
             (end (io-end io))
             (count (receive io buffer end (length buffer) nil))
             (outcome (note-received io count (- (length buffer) end))))
        (when (eq :some outcome)
          (setf (io-end io) (+ end count)))
        outcome)))

(defun make-room-for-input (io)
  "The input buffer of IO, with room behind its input: the input was moved, or the buffer replaced
by a larger one."
  (let* ((buffer (io-input io))
         (start (io-start io))
         (end (io-end io)))
    (cond ((< end (length buffer)) buffer)
          (t
           (let ((target (if (plusp start) buffer (make-octets (* 2 (length buffer))))))
             (replace target buffer :start2 start :end2 end)
             (setf (io-start io) 0
                   (io-end io) (- end start)
                   (io-input io) target))))))

(defun receive-wanted (io wanted)
  "Like FILL-INPUT; but a transport of IO that waits waits for WANTED octets."
  (cond ((< (io-start io) (io-end io)) :some)
        ((not (io-open-p io)) :end)
        (t
         (when (io-waits-p io)
           (send-output io))
         (fill-empty-input io wanted))))

(defun await-input-of (io &optional (wanted 1))
  "Waits until IO has input; returns NIL at its end.  Sends unsent output first: the peer may be
waiting for it.  Reads at most WANTED octets where another reader may go on."
  (loop
    (ecase (receive-wanted io wanted)
      (:some (return t))
      (:end (return nil))
      (:none
       (send-output io)
       (await-peer io :input)))))

(defun input-ended-p (io)
  "True when the peer of IO has closed its sending side, or is gone, even if earlier octets were not
read yet.  Does not wait."
  (let ((descriptor (io-descriptor io)))
    (and descriptor
         (await-descriptor descriptor :end :until (milliseconds)))))

(defun io-failed-p (io)
  "True when the peer has reset the connection of IO, or it has failed otherwise, so that the peer
gets nothing any more.  Does not wait."
  (let ((descriptor (io-descriptor io)))
    (and descriptor
         (await-descriptor descriptor :failure :until (milliseconds)))))

(defun io-all-read-p (io)
  "True when the readers of IO have taken all octets that had come at the last fill."
  (and (io-drained-p io)
       (= (io-start io) (io-end io))))

(defun input-waiting-p (io)
  "True when IO has input, an end or a failure that the poller will not report.  May receive octets
to find out."
  (cond ((< (io-start io) (io-end io)) t)
        ((io-waits-p io) (transport-ready-p (io-transport io)))
        ((io-drained-p io) nil)
        (t (handler-case (not (eq :none (fill-input io)))
             (descriptor-broken () t))))) ; the next read signals it again

(defun io-awaits-output-p (io)
  "True when the last read of IO got nothing because its transport has octets to send first."
  (let ((transport (io-transport io)))
    (and transport
         (not (io-drained-p io))
         (not (io-waits-p io))
         (eq :output (transport-awaits transport)))))

(defun copy-input (io sequence start end)
  "Copies buffered octets of IO to SEQUENCE from START, up to END.  Returns how many."
  (let ((count (min (- end start) (- (io-end io) (io-start io)))))
    (replace sequence (io-input io)
             :start1 start :start2 (io-start io)
             :end2 (+ (io-start io) count))
    (incf (io-start io) count)
    count))

(defmacro await-octets ((io room) call)
  "Evaluates CALL, which receives at most ROOM octets from the descriptor of IO and returns what
RECEIVE-OCTETS does, until there are any.  Returns how many, 0 at the end."
  `(loop
     (let ((count ,call))
       (unless (eq :none (note-received ,io count ,room))
         (return count))
       (send-output ,io)
       (await-peer ,io :input))))

(defun receive-directly (io octets start end)
  "Receives octets for IO, which has none buffered, to OCTETS from START, up to END.  Waits for the
first.  Returns how many, 0 at the end."
  ;; The caller is a program, and RECEIVE does not check the range.
  (check-range octets start end)
  (await-octets (io (- end start))
    (receive io octets start end (- end start))))
