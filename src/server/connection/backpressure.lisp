(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; What the peer of a buffered connection does not take of a reply that a handler streams is kept,
;;;; up to a high-water mark, so that the handler goes on.
;;;;
;;;;   what was written          and                               then
;;;;   fills the buffer, or      the peer takes it                 it leaves
;;;;   was flushed               the peer takes no more now        the rest is queued, or stays there
;;;;   fills the buffer          more than the mark is queued, or  the worker waits, see AWAIT-TAKER
;;;;                             the heap has no room
;;;;   all of the reply          some of it is queued              the engine sends that
;;;;
;;;; Who has a descriptor of its own that nobody would send from, or a stream of the Lisp's own
;;;; beside the buffered connection, waits as everywhere else.

(defparameter *high-water-mark* (* 256 1024)
  "How many octets, an integer from 0, of a reply that a handler streams are kept for a client that
does not take them; beyond that the handler waits for the client, for the write timeout of the
acceptor at most.  Each slow client may take so much of the heap, while no more than three quarters
of that are in use.")

(defun give-up-taker (io)
  "Signals STREAM-TIMEOUT for IO, whose peer has taken too long.  A connection of the engine is
broken: nobody waits for that peer again."
  (when (eq :engine (io-owner io))
    (break-off-io io))
  (error 'stream-timeout :stream (io-stream io)))

(defun await-taker (io)
  "Waits until the descriptor beneath IO has room for more octets.  If its peer is too slow (see
the engine's slow-readers.lisp), it is given up; see GIVE-UP-TAKER."
  (let* ((base (io-base io))
         (queue (io-queue base))
         (limit (send-queue-milliseconds queue))
         (now (milliseconds)))
    (when (io-lent base)
      (let ((limit (lent-milliseconds base)))
        (setf (send-queue-milliseconds queue) (if (minusp limit) nil limit))))
    (unwind-protect
         (loop
           (look-at-taker queue (open-descriptor base) now)
           (when (taker-given-up-p queue now)
             (give-up-taker base))
           (let ((room-p (await-descriptor (open-descriptor base) :output
                                           :until (next-look-at-taker queue now))))
             (setf now (milliseconds))
             (when room-p
               (return (look-at-taker queue (open-descriptor base) now)))))
      (setf (send-queue-milliseconds queue) limit)
      (end-wait queue))))

;;; Keeping

(defun engine-sends-p (io)
  "True when the engine sends what is unsent of IO."
  (let ((base (io-base io)))
    (and (eq :engine (io-owner base))
         (null (io-lent base)))))

(defun send-now (io octets start end)
  "Sends what the peer of IO, whose queue is empty, takes now of OCTETS from START to END.
Returns where the rest begins.  Signals DESCRIPTOR-BROKEN."
  (let ((count (send io octets start end)))
    (cond ((>= count 0) (+ start count))
          ((would-block-p count) start)
          (t (fail-as-broken io (- count))))))

(defun keep (io octets start end)
  "Adds a copy of OCTETS from START to END to the queue of IO."
  (when (< start end)
    (enqueue (io-queue io) (list (make-octets-part (subseq octets start end))))))

(defun queue-buffered (io)
  "Moves what was written to IO to its queue."
  (uninterruptibly
    (keep io (io-output io) 0 (shiftf (io-fill io) 0))))

(defun send-buffer (io)
  "Sends what the peer of IO, whose queue is empty, takes now of what was written; queues the
rest."
  (sending-wholly (io)
    (let* ((octets (io-output io))
           (end (shiftf (io-fill io) 0)))     ; not to be sent twice when this fails
      (keep io octets (send-now io octets 0 end) end))))

(defun push-output (io)
  "Sends what the peer of IO takes now of what is queued and of what was written.  Waits only
where nobody else would send the rest."
  (cond ((not (engine-sends-p io))
         (send-output io))
        (t
         (when (io-unsent io)
           (flush-io io))
         (when (and (null (io-unsent io)) (plusp (io-fill io)))
           (send-buffer io)))))

(defun too-much-unsent-p (io)
  "True when more than *HIGH-WATER-MARK* octets are in the queue of IO, or any while the heap
has no room: all slow clients together could fill it."
  (let ((unsent (queued-octets (io-queue io))))
    (or (> unsent *high-water-mark*)
        (and (plusp unsent)
             (not (make-room-in-heap unsent))))))

(defun empty-output (io)
  "Empties the buffer of IO.  Waits for its peer while too much is queued."
  (push-output io)
  (queue-buffered io)
  (loop while (too-much-unsent-p io)
        do (await-peer io :output)
           (flush-io io)))

(defun leave-output-to-engine (io)
  "At the end of a reply: sends what the peer of IO takes now of what was written, and queues
the rest."
  (push-output io)
  (queue-buffered io))

;;; Writing

(defun output-buffer (io)
  "The buffer for output of IO, which may be full."
  (or (io-output io)
      (setf (io-output io) (take-buffer :output))))

(defun output-room (io)
  "The buffer for output of IO, which has room for an octet."
  (let ((buffer (output-buffer io)))
    (when (= (io-fill io) (length buffer))
      (empty-output io))
    buffer))

(defun put-in-buffer (io sequence start end)
  "Writes what fits of SEQUENCE from START to END, at least one octet, to the buffer of IO;
returns where the rest begins."
  (let* ((buffer (output-room io))
         (fill (io-fill io))
         (next (min end (+ start (- (length buffer) fill)))))
    (replace buffer sequence :start1 fill :start2 start :end2 next)
    (setf (io-fill io) (+ fill (- next start)))
    next))

(defun large-p (io sequence start end)
  "True when SEQUENCE from START to END is better sent to IO as it is."
  (and (typep sequence 'octets)
       (>= (- end start) +output-size+)
       (zerop (io-fill io))
       (null (io-unsent io))
       (engine-sends-p io)))

(defun write-with-backpressure (io sequence start end)
  "Writes SEQUENCE, of octets, from START to END to IO; what the peer does not take now is kept,
up to the high-water mark."
  (loop
    (when (large-p io sequence start end)
      ;; The range is a program's, and what follows checks nothing.
      (check-range sequence start end)
      (setf start (send-now io sequence start end)))
    (unless (< start end)
      (return))
    (setf start (put-in-buffer io sequence start end))))
