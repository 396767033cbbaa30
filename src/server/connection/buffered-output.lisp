(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; The output of a buffered connection.

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
  (let ((count (if (io-transport io)
                   (transport-send (io-transport io) octets start end)
                   (send-octets (open-descriptor io) octets start end))))
    (when (plusp count)
      (incf (send-queue-sent (io-queue io)) count))
    count))

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

(defun send-now (io octets start end)
  "Sends as many OCTETS from START to END as the peer of IO, whose queue is empty, takes now.
Returns the position where the rest begins.  Signals DESCRIPTOR-BROKEN."
  (let ((count (send io octets start end)))
    (cond ((>= count 0) (+ start count))
          ((would-block-p count) start)
          (t (fail-as-broken io (- count))))))

(defun enqueue-copy (io octets start end)
  "Adds a copy of OCTETS from START to END to the queue of IO."
  (when (< start end)
    (enqueue (io-queue io) (list (make-octets-part (subseq octets start end))))))

(defun send-buffer (io)
  "Sends as much of the output buffer of IO, whose queue is empty, as the peer takes now.  Queues
the rest."
  (sending-wholly (io)
    (let* ((octets (io-output io))
           (end (shiftf (io-fill io) 0)))     ; if this fails, nothing is sent twice
      (enqueue-copy io octets (send-now io octets 0 end) end))))

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
