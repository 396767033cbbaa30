(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; The one rule for peers that take octets slowly.  A peer is given up when it has taken
;;;;
;;;;   nothing                        for the time in which it has to take some
;;;;   less than the least rate       since a wait for it began, beyond a time of grace
;;;;
;;;;   while                          the peer is looked at by
;;;;   a handler waits for room       its worker: the server's AWAIT-TAKER
;;;;   no thread has the connection   the sentinel
;;;;
;;;; Only waits count, and the octets taken during them: a handler may be slow as well.
;;;;
;;;; A peer may take octets long before the socket takes more of ours: the kernel waits until a
;;;; third of its buffer, which may have megabytes, is free.  So the engine asks the kernel how many
;;;; of its octets are unsent.  Octets that are on their way when a wait begins arrive at once, but
;;;; the peer has not taken them yet; so the engine asks often.

(defconstant +looks+ 16
  "The number of looks of a worker at a peer within the time in which it has to take octets.")

(defun limit-taking (queue seconds &optional rate (grace 0))
  "From now on gives up the peer of QUEUE, a SEND-QUEUE, if it takes nothing for SECONDS, a real;
or, once waits for it have lasted GRACE seconds, an integer, if it takes fewer than RATE octets a
second, an integer.  Either is NIL for no limit."
  (setf (send-queue-milliseconds queue) (as-milliseconds seconds)
        (send-queue-rate queue) rate
        (send-queue-grace queue) (* 1000 grace)))

(defun ensure-watch (queue)
  "The PEER-WATCH of QUEUE, a SEND-QUEUE, perhaps a new one."
  (or (send-queue-watch queue)
      (setf (send-queue-watch queue) (make-peer-watch))))

;;; Under the lock of the queue

(defun end-wait (queue)
  "Notes that nobody waits for the peer of QUEUE any more."
  (let ((watch (send-queue-watch queue)))
    (when watch
      (setf (peer-watch-looked watch) nil
            (peer-watch-owed watch) nil))))

(defun earlier (moment other)
  "The earlier one of MOMENT and OTHER, integers or NIL, for never."
  (if (and moment other) (min moment other) (or moment other)))

(defun latest-end (queue watch owed now)
  "By when the peer of QUEUE and WATCH, which has OWED octets, or NIL, yet to take, is to take some
of them after NOW, all in MILLISECONDS; NIL for no limit."
  (let ((milliseconds (send-queue-milliseconds queue))
        (rate (send-queue-rate queue)))
    (earlier (and milliseconds (+ now milliseconds))
             (and rate owed
                  (+ now (send-queue-grace queue)
                     (floor (* 1000 (peer-watch-taken watch)) rate)
                     (- (peer-watch-waited watch)))))))

(defun look-at-taker (queue now)
  "Looks at NOW, in MILLISECONDS, how many octets the peer of QUEUE, a SEND-QUEUE, has taken.  The
first look begins a wait."
  (let* ((watch (ensure-watch queue))
         (unsent (unsent-octets (send-queue-descriptor queue))) ; by the kernel, if it says
         (owed (if (minusp unsent) nil (+ unsent (send-queue-size queue))))
         (before (peer-watch-owed watch))
         (taken (if (and owed before) (max 0 (- before owed)) 0))
         (looked (peer-watch-looked watch)))
    (incf (peer-watch-waited watch) (if looked (max 0 (- now looked)) 0))
    (incf (peer-watch-taken watch) taken)
    (setf (peer-watch-looked watch) now
          (peer-watch-owed watch) owed)
    (when (or (null looked) (plusp taken))
      (setf (peer-watch-end watch) (latest-end queue watch owed now)))))

;;; From any thread

(defun taker-given-up-p (queue now)
  "Looks at the peer of QUEUE, a SEND-QUEUE in which octets wait, at NOW, in MILLISECONDS.  True if
it has taken too few octets by then."
  (with-send-queue (queue)
    (when (and (send-queue-parts queue) (not (dead-p queue)))
      (look-at-taker queue now)
      (let ((end (peer-watch-end (send-queue-watch queue))))
        (and end (<= end now))))))

(defun next-look-at-taker (queue now)
  "The moment of the next look at the peer of QUEUE, a SEND-QUEUE, after NOW, in MILLISECONDS;
NIL for never."
  (let* ((watch (send-queue-watch queue))
         (end (and watch (peer-watch-end watch)))
         (milliseconds (send-queue-milliseconds queue)))
    (and end
         (min end (+ now (if milliseconds (ceiling milliseconds +looks+) 1000))))))

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

(defun reset-taking (queue)
  "Gives the peer of QUEUE, a SEND-QUEUE, all its time again: a new request begins."
  (setf (send-queue-watch queue) nil))
