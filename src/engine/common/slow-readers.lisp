(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; The one rule for peers that take octets slowly.  A peer is given up when it has taken
;;;;
;;;;   nothing                        for the time in which it has to take some
;;;;   less than the least rate       since a wait for it began, beyond a time of grace
;;;;
;;;;   while                          the peer is looked at by
;;;;   a handler writes               the worker that waits for room: the server's AWAIT-TAKER
;;;;   only the output is left        the sentinel at the deadline, and the owner that sends on
;;;;
;;;; Only waits count, and the octets taken during them: a handler may be slow as well.
;;;;
;;;; A peer may take octets long before the socket takes more of ours: the kernel waits until a
;;;; third of its buffer, which may have megabytes, is free.  So the engine asks the kernel how many
;;;; of its octets are unsent.  Octets that are on their way when a wait begins arrive at once, but
;;;; the peer has not taken them yet; so the engine asks often.

(defconstant +looks+ 16
  "The number of looks at a peer within the time in which it has to take octets.")

(defun limit-taking (queue seconds &optional rate (grace 0))
  "From now on gives up the peer of QUEUE, a SEND-QUEUE, if it takes nothing for SECONDS, a real;
or, once waits for it have lasted GRACE seconds, an integer, if it takes fewer than RATE octets a
second, an integer.  Either is NIL for no limit."
  (setf (send-queue-limits queue)
        (taking-limits (as-milliseconds seconds) rate (* 1000 grace))))

(defun send-queue-milliseconds (queue)
  "In how many milliseconds the peer of QUEUE, a SEND-QUEUE, has to take some octets, an integer;
NIL for no limit."
  (taking-limits-milliseconds (send-queue-limits queue)))

(defun (setf send-queue-milliseconds) (milliseconds queue)
  (let ((limits (send-queue-limits queue)))
    (unless (eql milliseconds (taking-limits-milliseconds limits))
      (setf (send-queue-limits queue)
            (taking-limits milliseconds (taking-limits-rate limits) (taking-limits-grace limits))))
    milliseconds))

(defun copy-limits (queue to)
  "Makes the limits of QUEUE, a SEND-QUEUE, those of TO, another one."
  (setf (send-queue-limits to) (send-queue-limits queue)))

(defun octets-owed (queue descriptor)
  "The number of octets of QUEUE and in the kernel's buffer of DESCRIPTOR that the peer has yet
to take; NIL if the system does not say."
  (let ((unsent (unsent-octets descriptor)))
    (and (not (minusp unsent))
         (+ unsent (queued-octets queue)))))

(defun octets-taken-since (watch owed)
  "The number of octets that the peer of WATCH took since the last look.  OWED, or NIL, is the
number that it has yet to take."
  (let ((before (peer-watch-owed watch)))
    (if (and owed before) (max 0 (- before owed)) 0)))

(defun earlier (moment other)
  "The earlier one of MOMENT and OTHER, integers or NIL, for never."
  (if (and moment other) (min moment other) (or moment other)))

(defun latest-end (queue watch owed now)
  "By when the peer of QUEUE and WATCH, which has OWED octets, or NIL, yet to take, is to take some
of them after NOW, all in MILLISECONDS; NIL for no limit."
  (let* ((limits (send-queue-limits queue))
         (milliseconds (taking-limits-milliseconds limits))
         (rate (taking-limits-rate limits)))
    (earlier (and milliseconds (+ now milliseconds))
             (and rate owed
                  (+ now (taking-limits-grace limits)
                     (floor (* 1000 (peer-watch-taken watch)) rate)
                     (- (peer-watch-waited watch)))))))

(defun ensure-watch (queue)
  "The PEER-WATCH of QUEUE, a SEND-QUEUE, perhaps a new one."
  (or (send-queue-watch queue)
      (setf (send-queue-watch queue) (make-peer-watch))))

(defun look-at-taker (queue descriptor now &optional sent-p)
  "Looks at NOW, in MILLISECONDS, how many octets the peer of QUEUE, a SEND-QUEUE, has taken of
it and of the kernel's buffer of DESCRIPTOR.  The first look begins a wait.  SENT-P is true if
DESCRIPTOR has just taken some.  The caller owns the connection."
  (let* ((watch (ensure-watch queue))
         (owed (octets-owed queue descriptor))
         (taken (octets-taken-since watch owed))
         (looked (peer-watch-looked watch)))
    (incf (peer-watch-waited watch) (if looked (max 0 (- now looked)) 0))
    (incf (peer-watch-taken watch) taken)
    (setf (peer-watch-looked watch) now
          (peer-watch-owed watch) owed)
    (when (or (null looked)
              (plusp taken)
              (and sent-p (null owed)))
      (setf (peer-watch-end watch) (latest-end queue watch owed now)))))

(defun end-of-patience (queue)
  "By when the peer of QUEUE, a SEND-QUEUE, is to take octets, in MILLISECONDS; NIL for never, or
while it was not waited for."
  (let ((watch (send-queue-watch queue)))
    (and watch (peer-watch-end watch))))

(defun peer-progress (queue)
  "Returns two values: the number of octets that the peer of QUEUE, a SEND-QUEUE, has taken while it
was waited for, and for how many milliseconds workers have waited for it, for input as well."
  (let ((watch (send-queue-watch queue)))
    (if watch
        (values (peer-watch-taken watch) (peer-watch-worker-waited watch))
        (values 0 0))))

(defun note-worker-wait (queue milliseconds)
  "Notes that a worker has waited for the peer of QUEUE, a SEND-QUEUE, for MILLISECONDS more, an
integer."
  (incf (peer-watch-worker-waited (ensure-watch queue)) milliseconds))

(defun waited-for-p (queue)
  "True while a thread waits for the peer of QUEUE, a SEND-QUEUE, or the sentinel looks at it."
  (let ((watch (send-queue-watch queue)))
    (and watch (peer-watch-looked watch) t)))

(defun next-look-at-taker (queue now)
  "The moment of the next look at the peer of QUEUE, a SEND-QUEUE, after NOW, in MILLISECONDS;
NIL for never."
  (let ((end (end-of-patience queue))
        (milliseconds (send-queue-milliseconds queue)))
    (and end
         (min end (+ now (if milliseconds (ceiling milliseconds +looks+) 1000))))))

(defun taker-given-up-p (queue now)
  "True if the peer of QUEUE, a SEND-QUEUE, has taken too few octets by NOW, according to the
last look."
  (let ((end (end-of-patience queue)))
    (and end (<= end now))))

(defun patience-left-p (queue descriptor now)
  "True if the peer of QUEUE, in a wait, has time left NOW, or has taken octets of QUEUE or of
the kernel's buffer of DESCRIPTOR since the last look.  Any thread may ask while DESCRIPTOR is
open."
  (let ((watch (send-queue-watch queue)))
    (and watch
         (peer-watch-looked watch)
         (or (not (taker-given-up-p queue now))
             (plusp (octets-taken-since watch (octets-owed queue descriptor)))))))

(defun end-wait (queue)
  "Notes that no thread waits any more for the peer of QUEUE, a SEND-QUEUE."
  (let ((watch (send-queue-watch queue)))
    (when watch
      (setf (peer-watch-looked watch) nil
            (peer-watch-owed watch) nil))))

(defun reset-taking (queue)
  "Gives the peer of QUEUE, a SEND-QUEUE, all its time again: it has taken everything, or a new
request begins."
  (setf (send-queue-watch queue) nil))
