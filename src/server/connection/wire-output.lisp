(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; What a wire sends.

(defun break-off-wire (wire)
  "Ends the connection of WIRE at once: nothing more is read or sent, and nobody waits for its peer
again."
  (close (wire-stream wire) :abort t))

(defmacro whole-or-broken ((wire) &body body)
  "Evaluates BODY, which writes to WIRE what is of no use in part: who leaves it amid that, ends the
connection."
  `(unless-returned (progn ,@body)
     (break-off-wire ,wire)))

(defmacro sending-wholly ((wire) &body body)
  "Evaluates BODY, which sends to WIRE what its peer takes now, and notes how much that was.  A
handler may leave it at any moment, by a time limit of its own, and write on: between the two,
octets would be sent twice or never.  So nobody is interrupted there; or, where what carries WIRE
waits for the peer, who leaves ends the connection.  A program that has the descriptor, which
blocks, sees to that itself."
  (let ((it (gensym "IT")))
    `(flet ((,it () ,@body))
       (declare (dynamic-extent #',it))
       (cond ((wire-waits-p ,wire) (whole-or-broken (,wire) (,it)))
             ((eq :lent (wire-owner ,wire)) (,it))
             (t (uninterruptibly (,it)))))))

(declaim (inline send))
(defun send (wire octets start end)
  "Like SEND-OCTETS, to what carries WIRE."
  (if (wire-transport wire)
      (transport-send (wire-transport wire) octets start end)
      (send-octets (open-descriptor wire) octets start end)))

(defconstant +gathered-octets+ (* 16 1024)
  "From how many octets on a part is written to a transport as it is: a TLS record has as many at most (RFC
8446, section 5.1).")

(defun send-repeatedly (transport octets end)
  "Writes what TRANSPORT takes now of OCTETS up to END, record by record.  Returns what TRANSPORT-SEND does."
  (loop with sent = 0
        for count = (transport-send transport octets sent end)
        do (cond ((plusp count) (incf sent count))
                 (t (return (if (plusp sent) sent count))))
        until (= sent end)
        finally (return sent)))

(defun send-gathered (transport parts)
  "Writes what TRANSPORT takes now of PARTS, as TRANSPORT-SEND-PARTS does: what is in several parts, or in a
file, by way of a buffer, or each would be a record of TLS, and a call of the system."
  (let ((part (first parts)))
    (if (and (octets-part-p part)
             (or (null (rest parts))
                 (>= (- (part-end part) (part-position part)) +gathered-octets+)))
        (transport-send transport (octets-part-octets part) (part-position part) (part-end part))
        (let* ((buffer (take-buffer :output))
               (count (gather-octets parts buffer (length buffer))))
          (prog1 (if (plusp count) (send-repeatedly transport buffer count) 0)
            (return-buffer :output buffer))))))

(defun flush-wire (wire &optional more-p)
  "Sends what the peer of WIRE takes now of its queue.  Does not block.  If MORE-P, the system may
hold that, for others that follow soon, until SEND-HELD-OCTETS.  Signals DESCRIPTOR-BROKEN."
  (sending-wholly (wire)
    (let* ((queue (wire-queue wire))
           (failure (if (wire-open-p wire)
                        (nth-value 1 (flush-queue queue (wire-descriptor wire) more-p))
                        +ebadf+)))
      (when failure
        (clear-queue queue)
        (fail-as-broken wire failure)))))

(defun send-unsent (wire)
  "Sends what WIRE has in its queue, waiting for its peer."
  (loop while (wire-unsent wire)
        do (await-peer wire :output)
           (flush-wire wire)))

(defun flushed-p (wire stream)
  "True when nothing that was written to STREAM, which is WIRE's or was made of that, waits to be
sent, save what is in its queue, which the engine will send."
  (and (zerop (wire-fill wire))
       (or (eq stream (wire-stream wire))
           (wire-unsent wire))))

(defun send-output (wire)
  "Sends what was written to WIRE, and to the stream beside it, waiting for the peer."
  (when (wire-unsent wire)
    (send-unsent wire))
  (when (wire-lent wire)
    (flush-lent wire))
  (when (plusp (wire-fill wire))
    (send-buffer wire)
    (send-unsent wire)))
