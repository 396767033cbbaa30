(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; What a buffered connection sends.

(defun break-off-io (io)
  "Ends the connection of IO at once: nothing more is read or sent, and nobody waits for its peer
again."
  (close (io-stream io) :abort t))

(defmacro whole-or-broken ((io) &body body)
  "Evaluates BODY, which writes to IO what is of no use in part: who leaves it amid that, ends the
connection."
  `(unless-returned (progn ,@body)
     (break-off-io ,io)))

(defmacro sending-wholly ((io) &body body)
  "Evaluates BODY, which sends to IO what its peer takes now, and notes how much that was.  A
handler may leave it at any moment, by a time limit of its own, and write on: between the two,
octets would be sent twice or never.  So nobody is interrupted there; or, where what carries IO
waits for the peer, who leaves ends the connection.  A program that has the descriptor, which
blocks, sees to that itself."
  (let ((it (gensym "IT")))
    `(flet ((,it () ,@body))
       (declare (dynamic-extent #',it))
       (cond ((io-waits-p ,io) (whole-or-broken (,io) (,it)))
             ((eq :lent (io-owner ,io)) (,it))
             (t (uninterruptibly (,it)))))))

(declaim (inline send))
(defun send (io octets start end)
  "Like SEND-OCTETS, to what carries IO."
  (if (io-transport io)
      (transport-send (io-transport io) octets start end)
      (send-octets (open-descriptor io) octets start end)))

(defconstant +gathered-octets+ (* 16 1024)
  "From how many octets on a part is written to a transport as it is: a TLS record has as many at
most (RFC 8446, section 5.1).")

(defun send-repeatedly (transport octets end)
  "Writes what TRANSPORT takes now of OCTETS up to END, record by record.  Returns what
TRANSPORT-SEND does."
  (loop with sent = 0
        for count = (transport-send transport octets sent end)
        do (cond ((plusp count) (incf sent count))
                 (t (return (if (plusp sent) sent count))))
        until (= sent end)
        finally (return sent)))

(defun send-gathered (transport parts)
  "Writes what TRANSPORT takes now of PARTS, as TRANSPORT-SEND-PARTS does: what is in several parts,
or in a file, by way of a buffer, or each would be a record of TLS, and a call of the system."
  (let ((part (first parts)))
    (if (and (octets-part-p part)
             (or (null (rest parts))
                 (>= (- (part-end part) (part-position part)) +gathered-octets+)))
        (transport-send transport (octets-part-octets part) (part-position part) (part-end part))
        (let* ((buffer (take-buffer :output))
               (count (gather-octets parts buffer (length buffer))))
          (prog1 (if (plusp count) (send-repeatedly transport buffer count) 0)
            (return-buffer :output buffer))))))

(defun flush-io (io &optional more-p)
  "Sends what the peer of IO takes now of its queue.  Does not block.  If MORE-P, the system may
hold that, for others that follow soon, until SEND-HELD-OCTETS.  Signals DESCRIPTOR-BROKEN."
  (sending-wholly (io)
    (let* ((queue (io-queue io))
           (failure (if (io-open-p io)
                        (nth-value 1 (flush-queue queue (io-descriptor io) more-p))
                        +ebadf+)))
      (when failure
        (clear-queue queue)
        (fail-as-broken io failure)))))

(defun send-unsent (io)
  "Sends what IO has in its queue, waiting for its peer."
  (loop while (io-unsent io)
        do (await-peer io :output)
           (flush-io io)))

(defun flushed-p (io stream)
  "True when nothing that was written to STREAM, which is IO's or was made of that, waits to be
sent, save what is in its queue, which the engine will send."
  (and (zerop (io-fill io))
       (or (eq stream (io-stream io))
           (io-unsent io))))

(defun send-output (io)
  "Sends what was written to IO, and to the stream beside it, waiting for the peer."
  (when (io-unsent io)
    (send-unsent io))
  (when (io-lent io)
    (flush-lent io))
  (when (plusp (io-fill io))
    (send-buffer io)
    (send-unsent io)))
