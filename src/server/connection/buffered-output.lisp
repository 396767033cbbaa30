(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; The output of a buffered connection.

(defun break-off-io (io)
  "Ends the connection of IO at once.  Later reads and writes fail, and do not wait for the peer."
  (close (io-stream io) :abort t))

(defmacro whole-or-broken ((io) &body body)
  "Evaluates BODY, which writes something to IO that is of no use in part.  A non-local exit out of
BODY ends the connection."
  `(unless-returned (progn ,@body)
     (break-off-io ,io)))

(defmacro sending-wholly ((io) &body body)
  "Evaluates BODY, which sends octets of IO and records how many the peer has taken.  Between the
two steps, an interrupt (by a time limit of the handler, for example) could make octets be sent
twice or never.  So BODY is uninterruptible.  Where the transport of IO waits for the peer, a
non-local exit ends the connection instead.  A program that has the descriptor, which blocks, takes
care of that itself."
  (let ((it (gensym "IT")))
    `(flet ((,it () ,@body))
       (declare (dynamic-extent #',it))
       (cond ((io-waits-p ,io) (whole-or-broken (,io) (,it)))
             ((eq :lent (io-owner ,io)) (,it))
             (t (uninterruptibly (,it)))))))

(declaim (inline send))
(defun send (io octets start end)
  "Like SEND-OCTETS, to the descriptor or transport of IO."
  (if (io-transport io)
      (transport-send (io-transport io) octets start end)
      (send-octets (open-descriptor io) octets start end)))

(defconstant +gathered-octets+ (* 16 1024)
  "A part of at least this many octets is written to a transport without a copy: a TLS record has at
most so many (RFC 8446, section 5.1).")

(defun send-repeatedly (transport octets end)
  "Writes OCTETS up to END to TRANSPORT, record by record, as far as it takes them now.  Returns the
same as TRANSPORT-SEND."
  (loop with sent = 0
        for count = (transport-send transport octets sent end)
        do (cond ((plusp count) (incf sent count))
                 (t (return (if (plusp sent) sent count))))
        until (= sent end)
        finally (return sent)))

(defun send-gathered (transport parts)
  "Writes PARTS to TRANSPORT as TRANSPORT-SEND-PARTS does.  Gathers small parts, and octets of a
file, in a buffer: otherwise each would be a TLS record and a system call."
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
  "Sends as much of the queue of IO as the peer takes now.  Does not block.  If MORE-P, the system
may hold the octets until SEND-HELD-OCTETS, since others follow soon.  Signals DESCRIPTOR-BROKEN."
  (sending-wholly (io)
    (let* ((queue (io-queue io))
           (failure (if (io-open-p io)
                        (nth-value 1 (flush-queue queue (io-descriptor io) more-p))
                        +ebadf+)))
      (when failure
        (clear-queue queue)
        (fail-as-broken io failure)))))

(defun send-unsent (io)
  "Sends the whole queue of IO; waits for the peer."
  (loop while (io-unsent io)
        do (await-peer io :output)
           (flush-io io)))

(defun flushed-p (io stream)
  "True when no octets that were written to STREAM, the stream of IO or one made of that, still wait
in a buffer.  Octets in the queue may wait: the engine sends them."
  (and (zerop (io-fill io))
       (or (eq stream (io-stream io))
           (io-unsent io))))

(defun send-output (io)
  "Sends all octets that were written to IO, and to the Lisp stream beside it; waits for the peer."
  (when (io-unsent io)
    (send-unsent io))
  (when (io-lent io)
    (flush-lent io))
  (when (plusp (io-fill io))
    (send-buffer io)
    (send-unsent io)))
