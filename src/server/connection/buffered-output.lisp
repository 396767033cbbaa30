(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; The output of a buffered connection.  What a handler writes fills a buffer.  A full buffer goes
;;;; to the send queue of the connection, as far as the socket does not take it at once:
;;;;
;;;;   the queue has                  the handler
;;;;   at most the high-water mark    goes on
;;;;   more, or the heap no room      waits until the client has taken some, see AWAIT-PEER
;;;;
;;;; After the reply a worker sends the rest.  Where none would, since the program has a Lisp stream
;;;; beside ours (see lending.lisp) or the whole connection, each write waits for the client.

(defparameter *high-water-mark* (* 256 1024)
  "How many octets, an integer from 0, of a streamed reply are queued for a client that does not
take them.  Beyond that, the handler waits for the client, for at most the write timeout of the
acceptor.  Each slow client may take so much of the heap, while no more than five eighths of the
heap are in use.")

(defmacro whole-or-broken ((io) &body body)
  "Evaluates BODY, which writes something to IO that is of no use in part.  A non-local exit out of
BODY ends the connection."
  `(unless-returned (progn ,@body)
     (break-off-io ,io)))

(defun check-sent (io failure)
  "Signals DESCRIPTOR-BROKEN if FAILURE, of a write to IO, is an error number and not NIL."
  (when failure
    (fail-as-broken io failure)))

(defun flush-io (io)
  "Sends as much of the queue of IO as the peer takes now.  Signals DESCRIPTOR-BROKEN."
  (check-sent io (flush-queue (io-queue io))))

(defun send-unsent (io)
  "Sends the whole queue of IO; waits for the peer."
  (loop while (io-unsent io)
        do (await-peer io :output)
           (flush-io io)))

(defun engine-sends-p (io)
  "True when the engine sends what is unsent of IO."
  (let ((base (io-base io)))
    (and (eq :engine (io-owner base))
         (null (io-lent base)))))

(defun push-buffer (io)
  "Writes what is in the output buffer of IO to the queue."
  (let ((end (shiftf (io-fill io) 0)))  ; if this fails, nothing is sent twice
    (when (plusp end)
      (check-sent io (write-to-queue (io-queue io) (io-output io) 0 end t)))))

(defun send-output (io)
  "Sends all octets that were written to IO, and to the Lisp stream beside it; waits for the peer."
  (send-unsent io)
  (when (io-lent io)
    (flush-lent io))
  (push-buffer io)
  (send-unsent io))

(defun push-output (io)
  "Sends as much of the queue and the output buffer of IO as the peer takes now.  Waits only if the
engine would not send the rest."
  (if (engine-sends-p io)
      (push-buffer io)
      (send-output io)))

(defun flushed-p (io stream)
  "True when no octets that were written to STREAM, the stream of IO or one made of that, still wait
in a buffer.  Octets in the queue may wait: the engine sends them."
  (and (zerop (io-fill io))
       (or (eq stream (io-stream io))
           (io-unsent io))))

(defun too-much-unsent-p (io)
  "True when more than *HIGH-WATER-MARK* octets are in the queue of IO, or any while the heap has no
room: all slow clients together could fill the heap."
  (let ((unsent (send-queue-size (io-queue io))))
    (or (> unsent *high-water-mark*)
        (and (plusp unsent)
             (not (make-room-in-heap unsent))))))

(defun empty-output (io)
  "Empties the output buffer of IO.  Waits for its peer while too much is queued."
  (push-output io)
  (loop while (too-much-unsent-p io)
        do (await-peer io :output)
           (flush-io io)))

;;; Writing

(defconstant +slice-octets+ (* 256 1024)
  "A long vector is written by slices of so many octets, so that few of them are ever copied.")

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

(defun write-with-backpressure (io sequence start end)
  "Writes SEQUENCE, of octets, from START to END to IO.  Octets that the peer does not take now are
queued, up to the high-water mark."
  (loop while (< start end)
        do (if (and (typep sequence 'octets)
                    (zerop (io-fill io))
                    (>= (- end start) +output-size+)
                    (engine-sends-p io))
               ;; Without a copy, as far as the socket takes it.
               (let ((next (min end (+ start +slice-octets+))))
                 (check-range sequence start end) ; the caller is a program
                 (check-sent io (write-to-queue (io-queue io) sequence start next t))
                 (setf start next)
                 (empty-output io))
               (let* ((buffer (output-room io))
                      (fill (io-fill io))
                      (next (min end (+ start (- (length buffer) fill)))))
                 (replace buffer sequence :start1 fill :start2 start :end2 next)
                 (setf (io-fill io) (+ fill (- next start))
                       start next)))))
