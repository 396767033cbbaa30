(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; The one rule for peers that are slow to take what is sent to them.  A peer is given up when
;;;; it has taken
;;;;
;;;;   nothing                        for the time in which it has to take some
;;;;   less than the least rate       since it was waited for, beyond a time of grace
;;;;
;;;;   while                          the peer is looked at by
;;;;   a handler writes               the worker that waits for room: the server's AWAIT-TAKER
;;;;   nothing waits but the output   the sentinel at the deadline, and the owner that sends on
;;;;
;;;; Only the time of a wait counts, and what was taken in that: a handler may be slow as well.
;;;;
;;;; A peer may take octets long before the socket takes more of ours: the kernel waits until a
;;;; third of its buffer, which may have megabytes, is free.  So the kernel is asked how much of
;;;; what it holds is unsent.  What is on its way when a wait begins arrives at once, and is taken
;;;; by nobody yet: so it is asked often.

(defconstant +looks+ 16
  "How often within the time that a peer has to take octets it is looked whether it does.")

(defun limit-taking (queue seconds &optional rate (grace 0))
  "Gives up the peer of QUEUE, a SEND-QUEUE, from now on when it takes nothing for SECONDS, a
real, or, once it was waited for for GRACE seconds, an integer, fewer than RATE octets a second,
an integer; either is NIL for no limit."
  (setf (send-queue-milliseconds queue) (as-milliseconds seconds)
        (send-queue-rate queue) rate
        (send-queue-grace queue) (* 1000 grace)))

(defun copy-limits (queue to)
  "Makes the limits of QUEUE, a SEND-QUEUE, those of TO, another one."
  (setf (send-queue-milliseconds to) (send-queue-milliseconds queue)
        (send-queue-rate to) (send-queue-rate queue)
        (send-queue-grace to) (send-queue-grace queue)))

(defun octets-owed (queue descriptor)
  "How many octets of QUEUE, and of what DESCRIPTOR holds, the peer has yet to take; NIL where the
system does not tell."
  (let ((unsent (unsent-octets descriptor)))
    (and (not (minusp unsent))
         (+ unsent (queued-octets queue)))))

(defun octets-taken-since (queue owed)
  "How many octets the peer of QUEUE, which has OWED octets, or NIL, yet to take, took since the
last look."
  (let ((before (send-queue-owed queue)))
    (if (and owed before) (max 0 (- before owed)) 0)))

(defun earlier (moment other)
  "The earlier one of MOMENT and OTHER, integers, either of which may be NIL, for never."
  (if (and moment other) (min moment other) (or moment other)))

(defun look-at-taker (queue descriptor now &optional sent-p)
  "Looks at NOW, in MILLISECONDS, how many octets the peer of QUEUE, a SEND-QUEUE, has taken of
that, and of what DESCRIPTOR holds; the first time, a wait begins.  SENT-P is true where
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
  "When after NOW, in MILLISECONDS, the peer of QUEUE, a SEND-QUEUE, is to be looked at again; NIL
for never."
  (let ((end (send-queue-end queue))
        (milliseconds (send-queue-milliseconds queue)))
    (and end
         (min end (+ now (if milliseconds (ceiling milliseconds +looks+) 1000))))))

(defun taker-given-up-p (queue now)
  "True when the peer of QUEUE, a SEND-QUEUE, has taken too few octets by NOW, as far as was
looked."
  (let ((end (send-queue-end queue)))
    (and end (<= end now))))

(defun patience-left-p (queue descriptor now)
  "True when the peer of QUEUE, for which somebody waits, has time left NOW, or has taken octets
of QUEUE, or of what DESCRIPTOR holds, since the last look.  Any thread may ask while DESCRIPTOR
is open."
  (and (send-queue-looked queue)
       (or (not (taker-given-up-p queue now))
           (plusp (octets-taken-since queue (octets-owed queue descriptor))))))

(defun end-wait (queue)
  "Notes that nobody waits any more for the peer of QUEUE, a SEND-QUEUE."
  (setf (send-queue-looked queue) nil
        (send-queue-owed queue) nil))

(defun reset-taking (queue)
  "Gives the peer of QUEUE, a SEND-QUEUE, all its time again: it has taken all, or a new answer
begins."
  (end-wait queue)
  (setf (send-queue-waited queue) 0
        (send-queue-taken queue) 0))
