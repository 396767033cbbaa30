(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; What the peer of a wire does not take of a reply that a handler streams is kept, up to a high-water
;;;; mark, so that the handler goes on.
;;;;
;;;;   what was written          and                               then
;;;;   fills the buffer, or      the peer takes it                 it leaves
;;;;   was flushed               the peer takes no more now        the rest is queued, or stays there
;;;;   fills the buffer          more than the mark is queued, or  the worker waits, see AWAIT-TAKER
;;;;                             the heap has no room
;;;;   all of the reply          some of it is queued              the engine sends that
;;;;
;;;; Who has a descriptor of its own that nobody would send from, or a stream of the Lisp's own beside the
;;;; wire, waits as everywhere else.

(defparameter *high-water-mark* (* 256 1024)
  "How many octets, an integer from 0, of a reply that a handler streams are kept for a client that does
not take them; beyond that the handler waits for the client, for the write timeout of the acceptor at
most.  Each slow client may take so much of the heap, while no more than three quarters of that are in use.")

(defun give-up-taker (wire)
  "Signals STREAM-TIMEOUT for WIRE, whose peer has taken too long.  A connection of the engine is broken:
nobody waits for that peer again."
  (when (eq :engine (wire-owner wire))
    (break-off-wire wire))
  (error 'stream-timeout :stream (wire-stream wire)))

(defun await-taker (wire)
  "Waits until the descriptor beneath WIRE has room for more octets.  If its peer is too slow (see
the engine's slow-readers.lisp), it is given up; see GIVE-UP-TAKER."
  (let* ((base (wire-base wire))
         (queue (wire-queue base))
         (limit (send-queue-milliseconds queue))
         (now (milliseconds)))
    (when (wire-lent base)
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

(defun engine-sends-p (wire)
  "True when the engine sends what is unsent of WIRE."
  (let ((base (wire-base wire)))
    (and (eq :engine (wire-owner base))
         (null (wire-lent base)))))

(defun send-now (wire octets start end)
  "Sends what the peer of WIRE, whose queue is empty, takes now of OCTETS from START to END.
Returns where the rest begins.  Signals DESCRIPTOR-BROKEN."
  (let ((count (send wire octets start end)))
    (cond ((>= count 0) (+ start count))
          ((would-block-p count) start)
          (t (fail-as-broken wire (- count))))))

(defun keep (wire octets start end)
  "Adds a copy of OCTETS from START to END to the queue of WIRE."
  (when (< start end)
    (enqueue (wire-queue wire) (list (make-octets-part (subseq octets start end))))))

(defun keep-buffered (wire)
  "Moves what was written to WIRE to its queue."
  (uninterruptibly
    (keep wire (wire-output wire) 0 (shiftf (wire-fill wire) 0))))

(defun send-buffer (wire)
  "Sends what the peer of WIRE, whose queue is empty, takes now of what was written; queues the
rest."
  (sending-wholly (wire)
    (let* ((octets (wire-output wire))
           (end (shiftf (wire-fill wire) 0))) ; not to be sent twice when this fails
      (keep wire octets (send-now wire octets 0 end) end))))

(defun push-output (wire)
  "Sends what the peer of WIRE takes now of what is queued and of what was written.  Waits only
where nobody else would send the rest."
  (cond ((not (engine-sends-p wire))
         (send-output wire))
        (t
         (when (wire-unsent wire)
           (flush-wire wire))
         (when (and (null (wire-unsent wire)) (plusp (wire-fill wire)))
           (send-buffer wire)))))

(defun too-much-unsent-p (wire)
  "True when more than *HIGH-WATER-MARK* octets are in the queue of WIRE, or any while the heap
has no room: all slow clients together could fill it."
  (let ((unsent (queued-octets (wire-queue wire))))
    (or (> unsent *high-water-mark*)
        (and (plusp unsent)
             (not (make-room-in-heap unsent))))))

(defun empty-output (wire)
  "Empties the buffer of WIRE.  Waits for its peer while too much is queued."
  (push-output wire)
  (keep-buffered wire)
  (loop while (too-much-unsent-p wire)
        do (await-peer wire :output)
           (flush-wire wire)))

(defun leave-output-to-engine (wire)
  "At the end of a reply: sends what the peer of WIRE takes now of what was written, and queues
the rest."
  (push-output wire)
  (keep-buffered wire))

;;; Writing

(defun output-buffer (wire)
  "The buffer for output of WIRE, which may be full."
  (or (wire-output wire)
      (setf (wire-output wire) (take-buffer :output))))

(defun output-room (wire)
  "The buffer for output of WIRE, which has room for an octet."
  (let ((buffer (output-buffer wire)))
    (when (= (wire-fill wire) (length buffer))
      (empty-output wire))
    buffer))

(defun put-in-buffer (wire sequence start end)
  "Writes what fits of SEQUENCE from START to END, at least one octet, to the buffer of WIRE;
returns where the rest begins."
  (let* ((buffer (output-room wire))
         (fill (wire-fill wire))
         (next (min end (+ start (- (length buffer) fill)))))
    (replace buffer sequence :start1 fill :start2 start :end2 next)
    (setf (wire-fill wire) (+ fill (- next start)))
    next))

(defun large-p (wire sequence start end)
  "True when SEQUENCE from START to END is better sent to WIRE as it is."
  (and (typep sequence 'octets)
       (>= (- end start) +output-size+)
       (zerop (wire-fill wire))
       (null (wire-unsent wire))
       (engine-sends-p wire)))

(defun write-keeping (wire sequence start end)
  "Writes SEQUENCE, of octets, from START to END to WIRE; what the peer does not take now is kept,
up to the high-water mark."
  (loop
    (when (large-p wire sequence start end)
      ;; The range is a program's, and what follows checks nothing.
      (check-range sequence start end)
      (setf start (send-now wire sequence start end)))
    (unless (< start end)
      (return))
    (setf start (put-in-buffer wire sequence start end))))
