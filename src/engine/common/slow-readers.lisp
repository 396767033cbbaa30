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
  (setf (send-queue-milliseconds queue) (as-milliseconds seconds)
        (send-queue-rate queue) rate
        (send-queue-grace queue) (* 1000 grace)))

(defun copy-limits (queue to)
  "Makes the limits of QUEUE, a SEND-QUEUE, those of TO, another one."
  (setf (send-queue-milliseconds to) (send-queue-milliseconds queue)
        (send-queue-rate to) (send-queue-rate queue)
        (send-queue-grace to) (send-queue-grace queue)))

(defun octets-owed (queue descriptor)
  "The number of octets of QUEUE and in the kernel's buffer of DESCRIPTOR that the peer has yet
to take; NIL if the system does not say."
  (let ((unsent (unsent-octets descriptor)))
    (and (not (minusp unsent))
         (+ unsent (queued-octets queue)))))

(defun octets-taken-since (queue owed)
  "The number of octets that the peer of QUEUE took since the last look.  OWED, or NIL, is the
number that it has yet to take."
  (let ((before (send-queue-owed queue)))
    (if (and owed before) (max 0 (- before owed)) 0)))

(defun earlier (moment other)
  "The earlier one of MOMENT and OTHER, integers or NIL, for never."
  (if (and moment other) (min moment other) (or moment other)))

(defun look-at-taker (queue descriptor now &optional sent-p)
  "Looks at NOW, in MILLISECONDS, how many octets the peer of QUEUE, a SEND-QUEUE, has taken of
it and of the kernel's buffer of DESCRIPTOR.  The first look begins a wait.  SENT-P is true if
DESCRIPTOR has just taken some.  The caller owns the connection."
  (let* ((owed (octets-owed queue descriptor))
         (taken (octets-taken-since queue owed))
         (looked (send-queue-looked queue)))
    (incf (send-queue-waited queue) (if looked (max 0 (- now looked)) 0))
    (incf (send-queue-taken queue) taken)
    (setf (send-queue-looked queue) now
          (send-queue-owed queue) owed)
    (when (or (null looked)
              (plusp taken)
              (and sent-p (null owed)))
      (setf (send-queue-end queue)
            (earlier (and (send-queue-milliseconds queue)
                          (+ now (send-queue-milliseconds queue)))
                     (and (send-queue-rate queue)
                          owed
                          (+ now
                             (send-queue-grace queue)
                             (floor (* 1000 (send-queue-taken queue)) (send-queue-rate queue))
                             (- (send-queue-waited queue)))))))))

(defun next-look-at-taker (queue now)
  "The moment of the next look at the peer of QUEUE, a SEND-QUEUE, after NOW, in MILLISECONDS;
NIL for never."
  (let ((end (send-queue-end queue))
        (milliseconds (send-queue-milliseconds queue)))
    (and end
         (min end (+ now (if milliseconds (ceiling milliseconds +looks+) 1000))))))

(defun taker-given-up-p (queue now)
  "True if the peer of QUEUE, a SEND-QUEUE, has taken too few octets by NOW, according to the
last look."
  (let ((end (send-queue-end queue)))
    (and end (<= end now))))

(defun patience-left-p (queue descriptor now)
  "True if the peer of QUEUE, in a wait, has time left NOW, or has taken octets of QUEUE or of
the kernel's buffer of DESCRIPTOR since the last look.  Any thread may ask while DESCRIPTOR is
open."
  (and (send-queue-looked queue)
       (or (not (taker-given-up-p queue now))
           (plusp (octets-taken-since queue (octets-owed queue descriptor))))))

(defun end-wait (queue)
  "Notes that no thread waits any more for the peer of QUEUE, a SEND-QUEUE."
  (setf (send-queue-looked queue) nil
        (send-queue-owed queue) nil))

(defun reset-taking (queue)
  "Gives the peer of QUEUE, a SEND-QUEUE, all its time again: it has taken everything, or a new
answer begins."
  (end-wait queue)
  (setf (send-queue-waited queue) 0
        (send-queue-taken queue) 0))
