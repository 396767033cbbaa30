(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; Waits for the peer of a buffered connection, for its input and until it takes output.

(defun wait-limit (io)
  "The limit of one wait for input of IO, in milliseconds; -1 for no limit."
  (if (io-lent io) (lent-milliseconds io) (io-milliseconds io)))

(defun await-peer (io direction)
  "Waits until the descriptor of IO is ready in DIRECTION, :INPUT or :OUTPUT.  Signals
STREAM-TIMEOUT when that takes too long, or when too many workers wait and this peer is the slowest.
Each wait has the whole limit."
  (flet ((wait ()
           (cond ((and (eq :output direction) (io-waits-p io)) (await-sender (io-queue io)))
                 ((eq :output direction) (await-taker io))
                 ((io-pace io) (await-input-at-pace io))
                 (t (await-input-within io (wait-limit (io-base io)))))))
    (declare (dynamic-extent #'wait))
    (await-among-others io direction #'wait)))

(defun await-among-others (io direction wait)
  "Calls WAIT, a function that waits for the peer of IO in DIRECTION, unless too many workers wait
for faster peers; see WAIT-FOR-CLIENT.  No such limit applies to a program that has taken the
connection."
  (let ((base (io-base io)))
    (if (or (io-talked-on-p io) (not (eq :engine (io-owner base))))
        (funcall wait)
        (let ((began (milliseconds)))
          (multiple-value-bind (taken waited) (peer-progress (io-queue base))
            (unless (wait-for-client (io-connection base) direction (+ taken (io-received io))
                                     waited wait)
              (if (eq :output direction)
                  (give-up-taker base)
                  (error 'stream-timeout :stream (io-stream base)))))
          (note-worker-wait (io-queue base) (- (milliseconds) began))))))

(defun await-input-within (io limit)
  "Waits until the descriptor beneath IO is ready for reading IO.  Signals STREAM-TIMEOUT after
LIMIT milliseconds; a negative LIMIT means none."
  (let ((base (io-base io))
        (transport (io-transport io)))
    (unless (await-descriptor (open-descriptor base)
                              (if transport (transport-awaits transport) :input)
                              :until (unless (minusp limit) (+ (milliseconds) limit)))
      (error 'stream-timeout :stream (io-stream base)))))

;;; Output

(defun give-up-taker (io)
  "Signals STREAM-TIMEOUT for IO, whose peer has taken too long.  If the engine owns the descriptor,
the connection is broken off first, so that no later wait for this peer is possible."
  (when (eq :engine (io-owner io))
    (break-off-io io))
  (error 'stream-timeout :stream (io-stream io)))

(defun await-sender (queue)
  "Waits while another thread is in the sender of QUEUE, which waits for the peer."
  (wait-until (lambda () (not (send-queue-sending-p queue)))
              (bt:make-condition-variable) (send-queue-lock queue) nil 1/100))

(defun await-taker (io)
  "Waits until the descriptor beneath IO has room for more octets.  If the peer is too slow (see
slow-readers.lisp of the engine), calls GIVE-UP-TAKER."
  (let* ((base (io-base io))
         (queue (io-queue base))
         (limit (send-queue-milliseconds queue)))
    (when (io-lent base)
      (let ((limit (lent-milliseconds base)))
        (setf (send-queue-milliseconds queue) (if (minusp limit) nil limit))))
    (unwind-protect
         (loop for now = (milliseconds)
               when (taker-given-up-p queue now)
                 do (give-up-taker base)
               until (await-descriptor (open-descriptor base) :output
                                       :until (next-look-at-taker queue now)))
      (setf (send-queue-milliseconds queue) limit))))

;;; The least rate
;;;
;;; Only time spent waiting for the peer counts: the reading handler may be slow, too.

(defstruct (pace (:include opaque) (:constructor make-pace (rate left received)) (:copier nil))
  "The least rate of input of a buffered connection: RATE octets a second.  When RECEIVED octets had
come, LEFT milliseconds of waiting were left.  Each RATE further octets add a second."
  (rate nil :type (integer 1) :read-only t)
  (left 0 :type fixnum)
  (received 0 :type fixnum))

(defun pace-io (io rate grace)
  "Limits the waits for input of IO from now on: to GRACE seconds in all, plus the time that the
octets received since take at RATE octets a second.  With RATE NIL there is no such limit."
  (setf (io-pace io)
        (and rate (make-pace rate (* 1000 grace) (io-received io)))))

(defun begin-request-on (io)
  "Notes that a new request begins on IO: the progress of its client is counted from 0."
  (reset-taking (io-queue (io-base io)))
  (let ((pace (io-pace io)))            ; of content that has begun to come
    (when pace
      (decf (pace-received pace) (io-received io))))
  (setf (io-received io) 0))

(defun pace-limit (io)
  "How many milliseconds the worker may still wait for input of IO, which has a pace."
  (let ((pace (io-pace io)))
    (max 0 (+ (pace-left pace)
              (floor (* 1000 (- (io-received io) (pace-received pace))) (pace-rate pace))))))

(defun await-input-at-pace (io)
  "Like AWAIT-PEER for input of IO, which has a pace."
  (let* ((base (io-base io))
         (limit (wait-limit base))
         (most (pace-limit io))
         (began (milliseconds)))
    (await-input-within io (if (minusp limit) most (min limit most)))
    (decf (pace-left (io-pace io)) (- (milliseconds) began))))
