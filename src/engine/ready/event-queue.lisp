(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; The event queue: a worker handles one event at a time, and leaves the others that it got here.
;;;;
;;;; A wait costs a call of the system, whether it returns one event or several.  So a worker
;;;; that waits alone asks for several, handles the first, and queues the others here,
;;;; where whoever is free next takes them before it waits, first come, first served.  In the
;;;; same way it queues the listener's token when it has accepted one connection of perhaps many.  A
;;;; handler that blocks then holds up nobody: what is queued here is no more its worker's than what
;;;; waits in the kernel.
;;;;
;;;;   Invariant: if the queue is not empty, either no worker waits in the poller, or a wakeup is pending.
;;;;
;;;; Three rules keep it: a worker that waits has counted itself among those that do and then found
;;;; the queue empty; a worker that queues something looks afterwards whether somebody waits, and
;;;; wakes one; and so does one that takes something and leaves more.
;;;;
;;;; The queue is NIL where it is empty, else a cell that is replaced by compare-and-set, and never
;;;; changed: its CAR lists what is taken first, in order, and its CDR what was queued behind that,
;;;; the last first.  So it takes no longer to queue or to take a token where thousands are there.

(defconstant +event-batch+ 16
  "How many events a worker that waits alone takes at a time, while nobody was stuck lately.")

(defconstant +small-event-batch+ 4
  "How many it takes otherwise.  Whoever waits for a processor before it has queued the others holds
them up.")

(defconstant +accept-batch+ 16
  "How many connections one worker accepts before what else is ready has its turn.")

(defun take-event (engine)
  "The token that was queued first in ENGINE, and is the caller's now; NIL when there is none."
  (loop for queue = (engine-event-queue engine)
        while queue
        do (let* ((first (car queue))
                  (behind (cdr queue))
                  (tokens (or first (reverse behind)))
                  (left (and (or (rest tokens) (and first behind))
                             (cons (rest tokens) (and first behind)))))
             (when (compare-and-set (engine-event-queue engine) queue left)
               (when left
                 (wake-one-if-somebody-waits engine))
               (return (first tokens))))))

(defun queue-events (engine tokens)
  "Queues TOKENS, a list and not empty, which nobody changes any more, behind those of ENGINE."
  (loop for before = (engine-event-queue engine)
        until (compare-and-set (engine-event-queue engine) before
                               (if before
                                   (cons (car before) (revappend tokens (cdr before)))
                                   (list tokens))))
  (wake-one-if-somebody-waits engine))

(defun queue-first (engine token)
  "Queues TOKEN before those of ENGINE."
  (loop for before = (engine-event-queue engine)
        until (compare-and-set (engine-event-queue engine) before
                               (cons (cons token (car before)) (cdr before))))
  (wake-one-if-somebody-waits engine))

(defun wake-one-if-somebody-waits (engine)
  (when (and (somebody-waits-p engine)
             (compare-and-set (engine-wakeup-pending-p engine) nil t))
    (wake-one (engine-poller engine))))

(defun clear-wakeup (engine)
  "Called by whoever got the wakeup, before it looks at the queue of ENGINE."
  (compare-and-set (engine-wakeup-pending-p engine) t nil))

;;; Getting an event

(defun next-event (engine worker)
  "What WORKER should follow next; anything but an integer when it is time to look around."
  (loop
    ;; A worker that has taken so many off the queue asks the poller: others wait in the kernel, and
    ;; might never have their turn.
    (let* ((poll-p (>= (ready-worker-taken worker) +event-batch+))
           (queued (if poll-p nil (take-event engine)))
           (token (or queued (await-event engine worker poll-p))))
      (when queued
        (incf (ready-worker-taken worker)))
      (unless (eq token :wakeup)
        (return token))
      (clear-wakeup engine)
      (when (sentinel-lost-p (engine-sentinel engine))
        (look-around engine worker)))))

(defun await-event (engine worker poll-p)
  "What the poller returns to WORKER, at once if POLL-P; or what was queued while it turned to the
poller."
  (setf (ready-worker-accepted worker) 0
        (ready-worker-timers-run worker) 0
        (ready-worker-taken worker) 0)
  (multiple-value-bind (token others)
      (if poll-p
          (await-ready (engine-poller engine) 0 +event-batch+)
          (wait-for-events engine worker))
    (when others
      (queue-other-events engine others))
    token))

(defun wait-for-events (engine worker)
  "What has come for WORKER when it has counted itself as waiting: an event that was queued
meanwhile, or what the poller returns to it, two values."
  (let* ((pool (engine-pool-state engine))
         (waiting (pool-state-waiting pool))
         (most (cond ((somebody-waits-p engine) 1)
                     ((pool-state-calm-p pool) +event-batch+)
                     (t +small-event-batch+))))
    (counter-add waiting 1)
    (multiple-value-bind (token others)
        (or (take-event engine)
            (await-ready (engine-poller engine) (ready-worker-poll-milliseconds worker) most))
      (counter-add waiting -1)
      (setf (ready-worker-poll-milliseconds worker)
            (if token *poll-milliseconds* (idle-poll-milliseconds pool)))
      (values token others))))

(defun queue-other-events (engine others)
  "Queues OTHERS, tokens that came with the one that the caller handles, for who is free next.  A
wakeup among them woke nobody who waits, so its mark is cleared first, and another one sent: for
them, or for what was queued already."
  (when (member :wakeup others)         ; seldom
    (clear-wakeup engine)
    (setf others (remove :wakeup others))
    (when (and (null others) (engine-event-queue engine))
      (wake-one-if-somebody-waits engine)))
  (when others
    (queue-events engine others))
  (when (sentinel-lost-p (engine-sentinel engine)) ; the wakeup may have been its
    (wake-one (engine-poller engine))))

(defun idle-poll-milliseconds (pool)
  "How long a worker waits that found nothing to do: so long that all who wait at rest look around
once in four seconds.  When more may wait than at rest, as long as the others: it may be one too
many soon."
  (if (> (pool-state-target pool) (pool-state-floor pool))
      *poll-milliseconds*
      (* 4 *poll-milliseconds* (1+ (counter-count (pool-state-waiting pool))))))
