(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; Backpressure: octets of a streamed reply that the client does not take wait in the send queue
;;;; of the buffered connection, up to a high-water mark.  Meanwhile the handler goes on.
;;;;
;;;;   output                    condition                         action
;;;;   fills the buffer, or      the socket accepts it             it is sent
;;;;   was flushed               the socket accepts no more now    the rest is queued, or stays in
;;;;                                                               the buffer
;;;;   fills the buffer          more than the mark is queued, or  the worker waits, see AWAIT-PEER
;;;;                             the heap has no room
;;;;   is all of the reply       some of it is queued              the engine sends that
;;;;
;;;; The engine sends from the queue only while it owns the descriptor and no Lisp stream was lent
;;;; (see lending.lisp).  Otherwise each write waits until the socket has accepted its octets.

(defparameter *high-water-mark* (* 256 1024)
  "How many octets, an integer from 0, of a streamed reply are queued for a client that does not
take them.  Beyond that, the handler waits for the client, for at most the write timeout of the
acceptor.  Each slow client may take so much of the heap, while no more than three quarters of the
heap are in use.")

;;; Queueing

(defun engine-sends-p (io)
  "True when the engine sends what is unsent of IO."
  (let ((base (io-base io)))
    (and (eq :engine (io-owner base))
         (null (io-lent base)))))

(defun queue-buffered (io)
  "Moves the octets in the output buffer of IO to its queue."
  (uninterruptibly
    (enqueue-copy io (io-output io) 0 (shiftf (io-fill io) 0))))

(defun push-output (io)
  "Sends as much of the queue and the output buffer of IO as the peer takes now.  Waits only if the
engine would not send the rest."
  (cond ((not (engine-sends-p io))
         (send-output io))
        (t
         (when (io-unsent io)
           (flush-io io))
         (when (and (null (io-unsent io)) (plusp (io-fill io)))
           (send-buffer io)))))

(defun too-much-unsent-p (io)
  "True when more than *HIGH-WATER-MARK* octets are in the queue of IO, or any while the heap has no
room: all slow clients together could fill the heap."
  (let ((unsent (queued-octets (io-queue io))))
    (or (> unsent *high-water-mark*)
        (and (plusp unsent)
             (not (make-room-in-heap unsent))))))

(defun empty-output (io)
  "Empties the output buffer of IO.  Waits for its peer while too much is queued."
  (push-output io)
  (queue-buffered io)
  (loop while (too-much-unsent-p io)
        do (await-peer io :output)
           (flush-io io)))

(defun leave-output-to-engine (io)
  "Ends the output of a reply on IO: sends as much as the peer takes now, and queues the rest."
  (push-output io)
  (queue-buffered io))

;;; Writing

(defun output-buffer (io)
  "The output buffer of IO, which may be full."
  (or (io-output io)
      (setf (io-output io) (take-buffer :output))))

(defun output-room (io)
  "The output buffer of IO, with room for at least one octet."
  (let ((buffer (output-buffer io)))
    (when (= (io-fill io) (length buffer))
      (empty-output io))
    buffer))

(defun put-in-buffer (io sequence start end)
  "Copies octets of SEQUENCE from START to END, at least one, to the output buffer of IO, as far as
there is room.  Returns the position where the rest begins."
  (let* ((buffer (output-room io))
         (fill (io-fill io))
         (next (min end (+ start (- (length buffer) fill)))))
    (replace buffer sequence :start1 fill :start2 start :end2 next)
    (setf (io-fill io) (+ fill (- next start)))
    next))

(defun large-p (io sequence start end)
  "True when it is cheaper to send SEQUENCE from START to END to IO without a copy to its buffer."
  (and (typep sequence 'octets)
       (>= (- end start) +output-size+)
       (zerop (io-fill io))
       (null (io-unsent io))
       (engine-sends-p io)))

(defun write-with-backpressure (io sequence start end)
  "Writes SEQUENCE, of octets, from START to END to IO.  Octets that the peer does not take now are
queued, up to the high-water mark."
  (loop
    (when (large-p io sequence start end)
      ;; The caller is a program, and SEND-NOW does not check the range.
      (check-range sequence start end)
      (setf start (send-now io sequence start end)))
    (unless (< start end)
      (return))
    (setf start (put-in-buffer io sequence start end))))
