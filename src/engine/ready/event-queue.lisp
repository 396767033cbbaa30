(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; The event queue: a worker handles one event at a time, and leaves its other events here.
;;;;
;;;; A wait costs a system call, whether it returns one event or several.  So a worker that waits
;;;; alone asks for several, handles the first, and queues the others.  A worker that becomes free
;;;; takes events from the queue, first come, first served, before it waits.  The listener's token
;;;; is queued in the same way when a worker has accepted one connection of perhaps many.  So a
;;;; handler that blocks holds up no other event.
;;;;
;;;;   Invariant: while events are queued, no worker waits in the poller or a wakeup is pending.
;;;;
;;;; Three rules keep it.  A worker that is about to wait counts itself as waiting first, and looks
;;;; at the queue afterwards.  A worker that queues an event then wakes one that waits.  A worker
;;;; that takes an event and leaves others does the same.
;;;;
;;;; The queue is NIL if it is empty.  Otherwise it is a cell that never changes and is replaced by
;;;; compare-and-set.  Its CAR lists the tokens that are taken first, in order.  Its CDR lists those
;;;; queued behind them, the last first.  So queueing and taking cost the same with thousands there.

(defconstant +event-batch+ 16
  "The number of events that a worker which waits alone takes at a time, while no worker was blocked
lately.")

(defconstant +small-event-batch+ 4
  "The number that it takes otherwise.  If it has to wait for a processor before it has queued the
other events, it holds them up.")

(defconstant +accept-batch+ 16
  "The number of connections that one worker accepts before other events have their turn.")

(defun take-event (engine)
  "Takes the oldest token off the queue of ENGINE; NIL if there is none."
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
  "Queues TOKENS, a list that is not empty and no longer changes, behind those of ENGINE."
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
  "Wakes a worker of ENGINE if one waits and no wakeup is pending."
  (when (and (somebody-waits-p engine)
             (compare-and-set (engine-wakeup-pending-p engine) nil t))
    (wake-one (engine-poller engine))))

(defun clear-wakeup (engine)
  "Clears the mark of a pending wakeup of ENGINE.  The worker that got the wakeup calls this before
it looks at the queue."
  (end-sample engine)
  (compare-and-set (engine-wakeup-pending-p engine) t nil))

;;; Getting an event

(defun next-event (engine worker)
  "The next token for WORKER.  Any other value than an integer means that it is time to look
around."
  (loop
    ;; After so many events from the queue a worker asks the poller.  Otherwise events that wait in
    ;; the kernel might never have their turn.
    (let* ((poll-p (>= (ready-worker-taken worker) +event-batch+))
           (queued (if poll-p nil (take-event engine)))
           (token (or queued (await-event engine worker poll-p))))
      (when queued
        (incf (ready-worker-taken worker)))
      (unless (eq token :wakeup)
        (return token))
      (clear-wakeup engine))))

(defun await-event (engine worker poll-p)
  "Returns the poller's next token for WORKER, without waiting if POLL-P; or a token that was
queued meanwhile."
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
  "Counts WORKER as waiting, and returns a token that was queued meanwhile, or the two values of
the poller."
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
  "Queues OTHERS, tokens that came with the one that the caller handles.  If OTHERS contains our
own wakeup, no other worker was woken: clear the mark, and send another wakeup if events are
queued."
  (when (member :wakeup others)         ; seldom
    (clear-wakeup engine)
    (setf others (remove :wakeup others))
    (when (and (null others) (engine-event-queue engine))
      (wake-one-if-somebody-waits engine)))
  (when others
    (queue-events engine others)))

(defun idle-poll-milliseconds (pool)
  "The number of milliseconds that a worker waits after it found nothing to do.  At rest all
waiting workers together look around once in four seconds.  If more workers may wait than at
rest, the wait has the usual length, because this one may soon be one too many."
  (if (> (pool-state-target pool) (pool-state-floor pool))
      *poll-milliseconds*
      (* 4 *poll-milliseconds* (1+ (counter-count (pool-state-waiting pool))))))
