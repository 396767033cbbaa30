(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; How the workers of the ready engine work: see ready-engine.lisp for the table.

;;; Getting an event

(defun next-event (engine worker)
  "What WORKER should follow next; anything but an integer when it is time to look around."
  (loop for token = (or (take-event-in-turn engine worker) (await-event engine worker))
        unless (eq token :wakeup)
          return token
        do (clear-wakeup engine)
           (when (engine-sentinel-lost-p engine)
             (look-around engine worker))))

(defun look-around (engine worker)
  "What WORKER of ENGINE does when it has nothing else to do.  It can be interrupted here, for long,
as by a debugger, so it is AWAY."
  (when (interrupt-pending-p)           ; nobody else may wait
    (wake-sentinel-if-nobody-waits engine (engine-pool-state engine)))
  (setf (ready-worker-away worker) (pool-state-tick (engine-pool-state engine)))
  (unwind-protect (surviving-interrupts (engine)
                    (ensure-sentinel engine))
    (setf (ready-worker-away worker) 0)))

(defun take-event-in-turn (engine worker)
  "Like TAKE-EVENT, for WORKER; NIL also when it is the turn of those that wait in the kernel."
  (unless (poll-due-p worker)
    (let ((event (take-event engine)))
      (when event
        (incf (ready-worker-taken worker)))
      event)))

(defun poll-due-p (worker)
  "True when WORKER has taken so many events off the queue that others, which wait in the kernel,
might never have their turn."
  (>= (ready-worker-taken worker) +event-batch+))

(defun await-event (engine worker)
  "What the poller returns to WORKER, or what was queued while it turned to the poller."
  (let ((look-p (poll-due-p worker)))
    (setf (ready-worker-accepted worker) 0
          (ready-worker-timers-run worker) 0
          (ready-worker-taken worker) 0)
    (multiple-value-bind (token others)
        (if look-p
            (await-ready (engine-poller engine) 0 +event-batch+)
            (wait-for-events engine worker))
      (when others
        (queue-other-events engine others))
      token)))

(defun events-wanted (engine)
  "How many events a worker of ENGINE that is about to wait takes: one beside others who wait."
  (cond ((somebody-waits-p engine) 1)
        ((pool-state-calm-p (engine-pool-state engine)) +event-batch+)
        (t +small-event-batch+)))

(defun wait-for-events (engine worker)
  "What has come for WORKER when it has counted itself as waiting: an event that was queued
meanwhile, or what the poller returns to it, two values."
  (let ((waiting (pool-state-waiting (engine-pool-state engine)))
        (most (events-wanted engine)))
    (counter-add waiting 1)
    (multiple-value-bind (token others)
        (or (take-event engine)
            (await-ready (engine-poller engine) (ready-worker-poll-milliseconds worker) most))
      (counter-add waiting -1)
      (setf (ready-worker-poll-milliseconds worker)
            (if token *poll-milliseconds* (idle-poll-milliseconds (engine-pool-state engine))))
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
  (when (engine-sentinel-lost-p engine) ; the wakeup may have been its
    (wake-one (engine-poller engine))))

(defun idle-poll-milliseconds (pool)
  "How long a worker waits that found nothing to do: so long that all who wait at rest look around
once in four seconds.  When more may wait than at rest, as long as the others: it may be one too
many soon."
  (if (> (pool-state-target pool) (pool-state-floor pool))
      *poll-milliseconds*
      (* 4 *poll-milliseconds* (1+ (counter-count (pool-state-waiting pool))))))

(defun wake-sentinel-if-nobody-waits (engine pool)
  "Wakes the sentinel of ENGINE, if it is idle, when nobody waits any more.  The caller has counted
itself as not waiting before, and reads whether the sentinel is idle afterwards; see IDLE-WAIT."
  (when (and (pool-state-sentinel-idle-p pool) (not (somebody-waits-p engine)))
    (wake-sentinel engine)))

(defun wake-sentinel (engine)
  (with-engine (engine)
    ;; The clock stands until the sentinel has woken, so COARSE-NOW asks the system until then.
    (when (shiftf (pool-state-sentinel-idle-p (engine-pool-state engine)) nil)
      (bt:condition-notify (engine-sentinel-wakeup engine)))))

(defmethod serve-at :after ((engine ready-engine) connection time)
  "An idle sentinel looks at deadlines once in *IDLE-TICK*, and may have looked before there was
this one."
  (declare (ignore connection))
  (let ((pool (engine-pool-state engine)))
    (when time
      ;; The sentinel says that it is idle, and looks at deadlines then.
      (order-memory)
      (when (and (pool-state-sentinel-idle-p pool)
                 (< time (+ (coarse-now pool) (as-milliseconds *idle-tick*))))
        (wake-sentinel engine)))))

(defparameter *worker-slack-microseconds* 250
  "How late the system may end the sleep of a handler, to end several at once; its own default is
50.")

(defparameter *sentinel-slack-microseconds* 100
  "How late the system may end a nap of the sentinel, which is to see soon that workers are
blocked.")

(defun prepare-thread (engine slack-microseconds)
  "Tells the system what the current thread is, a worker's of ENGINE or the sentinel's: one of many
that had better not interrupt each other, nor the clients, when they wake, and whose sleeps may end
SLACK-MICROSECONDS, an integer, late.  Who is interrupted amid a request may have to wait for the
slices of several others.  Does nothing where ENGINE was made otherwise."
  (when (engine-batch-scheduling-p engine)
    (schedule-as-batch)
    (let-timers-be-late slack-microseconds)))

(defmethod worker-loop ((engine ready-engine) worker)
  ;; The poller reports an arrival once, and a connection that is accepted or owned is nobody
  ;; else's to close.  So a thread that is to be destroyed dies only where it says INTERRUPTIBLY:
  ;; while it has nothing to do, and while the service serves.
  (deferring-interrupts
    (prepare-thread engine *worker-slack-microseconds*)
    (setf (ready-worker-identity worker) (thread-identity))
    (become-active engine worker)
    (loop while (keep-working-p engine worker (engine-pool-state engine))
          unless (handle-next-event engine worker)
            do (clear-stack))))         ; it may keep alive what was served last

(defun handle-next-event (engine worker)
  "Handles what comes next for WORKER.  NIL when that was nothing."
  (let* ((pool (engine-pool-state engine))
         (token (next-event engine worker)))
    (cond ((integerp token)
           (stamp-worker worker)
           (wake-sentinel-if-nobody-waits engine pool)
           (unwind-protect (handle-event engine worker token)
             (setf (ready-worker-stamp worker) 0))
           t)
          ((eq token :probe)
           (note-wait (engine-probe engine))
           t)
          (t
           (look-around engine worker)
           nil))))

(defun handle-event (engine worker token)
  (cond ((= token (engine-listener-descriptor engine))
         (when (engine-accepting-p engine) ; or an inherited listener's connections are for others
           (accept-connections engine worker)))
        ((= token +timer-token+)
         (attend-timers-in engine worker))
        (t
         (let ((connection (own-connection engine token)))
           (when connection
             (handle-ready-connection engine worker connection))))))

(defun attend-timers-in (engine worker)
  "Runs the timers of ENGINE that are due in WORKER, which has got the event of the alarm."
  (unless-returned (run-due-timers engine worker)
    (call-for-timers engine)))          ; that event will not come again

(defun own-connection (engine token)
  "The connection of TOKEN, if the caller owns it now; else NIL."
  (let ((connection (find-connection (engine-table engine) (plain-token token))))
    (and connection
         (become-owner connection (token-hangup-p token))
         connection)))

(defun handle-ready-connection (engine worker connection)
  "Does for CONNECTION, which WORKER owns, what it is ready for."
  (if (connection-lingering-p connection)
      (linger engine connection)
      (serve-connection engine worker connection)))

;;; Serving

(defun serve-connection (engine worker connection)
  "Serves CONNECTION, which WORKER owns, until it is parked, closed or detached."
  (let ((outcome nil))
    (setf (worker-connection worker) connection)
    (unwind-protect
         (setf outcome (serve-until-parked engine connection))
      (setf (worker-connection worker) nil)
      (end-service engine connection outcome))))

(defun end-service (engine connection outcome)
  "Does with CONNECTION, which the caller owns unless OUTCOME is :PARKED, what OUTCOME says; NIL for
one that was left by a non-local exit."
  (cond ((eq outcome :parked)
         (end-if-parked-too-late engine connection))
        ((eq outcome :later)
         (queue-for-next-turn engine connection))
        ((gone-p connection))           ; it was given away before its service was done with it
        (t
         (ecase (or outcome (given-away-outcome connection))
           (:detached (detach engine connection))
           (:close (close-gracefully engine connection))
           (:broken (abort-connection engine connection))
           ((nil) (drop-connection engine connection))))))

(defun queue-for-next-turn (engine connection)
  "Queues CONNECTION, which the current thread owns, and of which more has come than a turn is for,
behind all that is ready."
  (let ((worker (worker-of engine)))
    (when worker                        ; it asks the poller first
      (setf (ready-worker-taken worker) +event-batch+)))
  (cond ((unread-input-kept-p engine connection)
         (setf (connection-turn-over-p connection) t)
         (requeue-connection engine connection))
        (t
         (close-gracefully engine connection))))

(defun unread-input-kept-p (engine connection)
  "True when the service of ENGINE has memory for what it has of CONNECTION and has not served."
  (handler-case (keep-unread-input (engine-service engine) engine connection)
    ((or error storage-condition) ()
      (count-failure engine)
      nil)))

(defmacro noting-failure ((engine connection) &body body)
  "The value of BODY, which serves CONNECTION of ENGINE as SERVE-ONCE does; also after an error."
  `(handler-case (progn ,@body)
     ((or error storage-condition) (condition)
       (count-failure ,engine)
       (log-message ,engine :error "Serving a connection failed: ~A" condition)
       (failed-outcome ,connection))))

(defun failed-outcome (connection)
  "What SERVE-ONCE returns for CONNECTION, where that has failed: what its service has left is
still sent."
  (cond ((given-away-outcome connection))
        ((and (connection-output connection)
              (not (eq :close (connection-outcome connection))))
         (setf (connection-outcome connection) :close)
         :again)
        (t :close)))

(defconstant +turn+ 16
  "How many requests of one connection a worker serves before what else is ready has its turn: a
client that never pauses does not keep its worker, nor timers and other clients waiting.")

(defun serve-until-parked (engine connection)
  "Serves what has come of CONNECTION; returns :PARKED, :CLOSE, :DETACHED or :BROKEN; :LATER when
its turn is over, and more has come."
  (loop repeat +turn+
        do (let ((result (noting-failure (engine connection)
                           (serve-further engine connection))))
             (unless (eq result :again)
               (return result)))
        finally (return :later)))

(defun serve-further (engine connection)
  "Does the next thing for CONNECTION, which the caller owns; returns what SERVE-ONCE does."
  (cond ((end-left-to-worker connection))
        ((connection-output connection) (send-pending-output engine connection))
        (t (serve-once engine connection))))

(defun serve-once (engine connection)
  "Serves one request of CONNECTION.  Returns :AGAIN when there is more to be done for it, :LATER
when that is to be done after what else is ready; else what became of it, :PARKED, or is to become
of it."
  (begin-service connection)
  (let* ((served (connection-served connection))
         (outcome (interruptibly (serve (engine-service engine) connection nil))))
    (settle-outcome engine connection outcome served)))

(defun begin-service (connection)
  "Takes what CONNECTION, which the caller owns, has waited for off it."
  (setf (connection-deadline connection) nil)
  (order-writes)                        ; see OWNER-MAY-WAIT-P
  (setf (connection-untouched connection) nil
        (connection-outcome connection) nil
        (connection-deferred-p connection) nil
        (connection-turn-over-p connection) nil))

(defun settle-outcome (engine connection outcome served)
  "Does for CONNECTION, which the caller owns, what OUTCOME says that the service returned; SERVED
requests of it had been answered before, an integer.  Returns what SERVE-ONCE does."
  (cond ((gone-p connection) :detached)
        ((eq outcome :broken) :broken)
        ((connection-output connection)
         ;; When all of it is sent, the connection is served again anyway.
         (setf (connection-input connection) :missed
               (connection-outcome connection) (case outcome
                                                 (:again :deferred)
                                                 (:next :park)
                                                 (t outcome)))
         :again)
        (t
         (ecase outcome
           (:park (settle-served engine connection))
           (:next (if (or (/= served (connection-served connection)) (note-stall engine))
                      :again
                      (settle-served engine connection)))
           (:deferred
            (setf (connection-deferred-p connection) t)
            (leave-to-poller engine connection))
           (:again :later)
           ((:close :detached) outcome)))))

(defun settle-served (engine connection)
  "Does for CONNECTION, which the caller owns, what is to be done when all was served that had come
when it was read.  Returns what SERVE-ONCE does."
  ;; Once: events noted afterwards leave :ARRIVED.
  (let ((ownership (connection-ownership connection)))
    (cond ((ownership-test ownership :arrived)
           (give-up-ownership connection) ; in vain: but then it is not :ARRIVED any more
           :again)
          ;; The kernel reported this end already; no further event will come.
          ((or (ownership-test ownership :read-closed) (not (serving-p engine))) :close)
          (t (park engine connection)))))

(defun note-stall (engine)
  "Counts a time when the service of ENGINE served no request, and yet says that there is input to
be served.  NIL: to call it again would change nothing, so the connection is parked, and has a
deadline."
  (with-engine (engine)
    (incf (engine-stalls engine)))
  nil)

(defun park (engine connection)
  "Makes CONNECTION, which the caller owns, nobody's, until the kernel reports that more of it has
come.  Returns :PARKED; :AGAIN when that is so already, and :BROKEN when it cannot be watched: it is
the caller's still."
  (unless (connection-deadline connection)
    (let ((pool (engine-pool-state engine)))
      (set-deadline-in connection (if (zerop (connection-served connection)) :first-byte :idle)
                       (pool-state-idle pool) (coarse-now pool))))
  (leave-to-poller engine connection))

(defun leave-to-poller (engine connection)
  "What PARK does, without a deadline."
  ;; Watch it before another thread can own it: that owner could close the descriptor, and the
  ;; next connection might have the same number.
  (setf (connection-untouched connection) :parked)
  (cond ((not (or (connection-watched-p connection)
                  (watch-connection engine connection)))
         :broken)
        ((give-up-ownership connection) :parked)
        (t :again)))

(defun watch-connection (engine connection)
  "Has the kernel report events of CONNECTION, which the caller owns.  NIL when it refuses."
  (let ((result (watch (engine-poller engine) (connection-descriptor connection)
                       (connection-token connection)
                       (connection-output-watched-p connection))))
    (cond ((zerop result)
           (when (engine-watch-trouble-p engine)
             (setf (engine-watch-trouble-p engine) nil))
           (setf (connection-watched-p connection) t))
          (t
           (count-failure engine)
           (unless (shiftf (engine-watch-trouble-p engine) t)
             (log-message engine :error "Connections cannot wait without a thread, and are closed: ~A."
                          (error-text (- result))))
           nil))))

(defun end-if-parked-too-late (engine connection)
  "STOP ends what is parked when it looks; what is parked later must see to itself."
  (when (and (not (serving-p engine))
             (claim-parked connection))
    (drop-connection engine connection)))
