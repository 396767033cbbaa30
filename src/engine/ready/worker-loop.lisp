(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; The life of a worker of the ready engine: see ready-engine.lisp for the table.
;;;;
;;;;   it               in                           what may happen besides
;;;;   waits            NEXT-EVENT                   it is suspended for a while, or ends
;;;;   owns             OWN-CONNECTION               the connection has an owner already: that one is told
;;;;   serves           SERVE-ONCE                   the service fails, or is left by a non-local exit
;;;;   settles, parks   SETTLE-OUTCOME, END-SERVICE  more has come, or output is left: it goes on
;;;;
;;;; The poller reports an arrival once, and a connection that is accepted or owned is nobody else's
;;;; to close.  So a thread that is to be destroyed dies only where it says INTERRUPTIBLY: see the
;;;; table in ownership.lisp.

(defmethod worker-loop ((engine ready-engine) worker)
  (deferring-interrupts
    (prepare-thread engine *worker-slack-microseconds*)
    (setf (ready-worker-identity worker) (thread-identity))
    (become-active engine worker)
    (loop with pool = (engine-pool-state engine)
          while (keep-working-p engine worker pool)
          do (let ((token (next-event engine worker)))
               (cond ((integerp token)
                      (stamp-worker worker)
                      (wake-sentinel-if-nobody-waits engine pool)
                      (unwind-protect (handle-event engine worker token)
                        (setf (ready-worker-stamp worker) 0)))
                     ((eq token :probe)
                      (note-wait (engine-probe engine)))
                     (t
                      (look-around engine worker)
                      (clear-stack))))))) ; it may keep alive what was served last

(defun handle-event (engine worker token)
  "Does in WORKER what TOKEN, of an event of ENGINE, asks for."
  (cond ((= token (engine-listener-descriptor engine))
         (when (engine-accepting-p engine) ; or an inherited listener's connections are for others
           (accept-connections engine worker)))
        ((= token +timer-token+)
         (attend-timers-in engine worker))
        (t
         (let ((connection (own-connection engine token)))
           (cond ((null connection))
                 ((connection-lingering-p connection) (linger engine connection))
                 (t (serve-connection engine worker connection)))))))

(defun own-connection (engine token)
  "The connection of TOKEN, if the caller owns it now; else NIL."
  (let ((connection (find-connection (engine-table engine) (plain-token token))))
    (and connection
         (become-owner connection (token-hangup-p token))
         connection)))

;;; Serving

(defconstant +turn+ 16
  "How many requests of one connection a worker serves before what else is ready has its turn: a
client that never pauses does not keep its worker, nor timers and other clients waiting.")

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

(defun serve-connection (engine worker connection)
  "Serves CONNECTION, which WORKER owns, until it is parked, closed or given away, or its turn is
over."
  (let ((outcome nil))                  ; stays so after a non-local exit
    (setf (worker-connection worker) connection)
    (unwind-protect
         (setf outcome
               (loop repeat +turn+
                     for result = (noting-failure (engine connection)
                                    (cond ((end-left-to-worker connection))
                                          ((connection-output connection)
                                           (send-pending-output engine connection))
                                          (t
                                           (serve-once engine connection))))
                     unless (eq result :again)
                       return result
                     finally (return :later)))
      (setf (worker-connection worker) nil)
      (end-service engine connection outcome))))

(defun serve-once (engine connection &optional resuming-p)
  "Has the service of ENGINE serve CONNECTION, which the caller owns, once; RESUMING-P is as for
SERVE.  Returns :AGAIN when there is more to be done for CONNECTION, :LATER when that is to be done
after what else is ready; else what became of it, :PARKED, or is to become of it: :CLOSE, :DETACHED
or :BROKEN."
  (setf (connection-deadline connection) nil)
  (order-writes)                        ; see OWNER-MAY-WAIT-P
  (setf (connection-untouched connection) nil
        (connection-outcome connection) nil
        (connection-awaiting connection) nil)
  (let* ((served (connection-served connection))
         (service (engine-service engine))
         (outcome (if resuming-p
                      (serve service connection t)
                      (interruptibly (serve service connection nil)))))
    (if outcome
        (settle-outcome engine connection outcome served)
        :again)))

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
         (when (and (eq outcome :next) (eql served (connection-served connection)))
           (note-stall engine)
           (setf outcome :park))
         (ecase outcome
           (:park (settle-served engine connection))
           (:next :again)
           (:deferred
            (setf (connection-awaiting connection) :answer)
            (leave-to-poller engine connection))
           (:again :later)
           ((:close :detached) outcome)))))

(defun settle-served (engine connection)
  "Does for CONNECTION, which the caller owns, what is to be done when all was served that had come
when it was read.  Returns what SERVE-ONCE does."
  ;; Once: what is noted afterwards leaves :ARRIVED.
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
    (incf (tally-stalls (engine-tally engine)))))

(defun park (engine connection)
  "Makes CONNECTION, which the caller owns, nobody's, until the kernel reports that more of it has
come.  Returns :PARKED; :AGAIN when that is so already, and :BROKEN when it cannot be watched: it is
the caller's still."
  (unless (connection-deadline connection)
    (let ((pool (engine-pool-state engine)))
      (set-deadline-in connection (if (zerop (connection-served connection)) :first-byte :idle)
                       (pool-state-idle pool) (coarse-now pool))))
  (leave-to-poller engine connection))

(defun leave-to-poller (engine connection &optional (interest :input))
  "What PARK does, without a deadline.  INTEREST, :INPUT or :BOTH, is for what CONNECTION is watched
from now on unless it is already."
  ;; Watch it before another thread can own it: that owner could close the descriptor, and the
  ;; next connection might have the same number.
  (setf (connection-untouched connection) :parked)
  (cond ((not (or (connection-watched connection)
                  (watch-connection engine connection interest)))
         :broken)
        ((give-up-ownership connection) :parked)
        (t :again)))

(defun watch-connection (engine connection interest)
  "Has the kernel report events of CONNECTION, which the caller owns, of INTEREST, :INPUT or :BOTH.
NIL when it refuses."
  (let ((result (watch (engine-poller engine) (connection-descriptor connection)
                       (connection-token connection) (eq :both interest))))
    (cond ((zerop result)
           (when (engine-watch-trouble-p engine)
             (setf (engine-watch-trouble-p engine) nil))
           (setf (connection-watched connection) interest))
          (t
           (count-failure engine)
           (unless (shiftf (engine-watch-trouble-p engine) t)
             (log-message engine :error "Connections cannot wait without a thread, and are closed: ~A."
                          (error-text (- result))))
           nil))))

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
         (setf (connection-awaiting connection) :turn)
         (requeue-connection engine connection))
        (t
         (close-gracefully engine connection))))

(defun unread-input-kept-p (engine connection)
  "True when the service of ENGINE has memory for what it has of CONNECTION and has not served."
  (handler-case (keep-unread-input (engine-service engine) engine connection)
    ((or error storage-condition) ()
      (count-failure engine)
      nil)))

(defun end-if-parked-too-late (engine connection)
  "STOP ends what is parked when it looks; what is parked later must see to itself."
  (unless (serving-p engine)
    (as-owner (claim-parked connection)
      (drop-connection engine connection))))

;;; Between two events

(defun look-around (engine worker)
  "What WORKER of ENGINE does when it has nothing else to do.  It can be interrupted here, for long,
as by a debugger, so it is AWAY."
  (when (interrupt-pending-p)           ; nobody else may wait
    (wake-sentinel-if-nobody-waits engine (engine-pool-state engine)))
  (setf (ready-worker-away worker) (pool-state-tick (engine-pool-state engine)))
  (unwind-protect (surviving-interrupts (engine)
                    (ensure-sentinel engine))
    (setf (ready-worker-away worker) 0)))

(defun attend-timers-in (engine worker)
  "Runs the timers of ENGINE that are due in WORKER, which has got the event of the alarm."
  (unless-returned (run-due-timers engine worker)
    (call-for-timers engine)))          ; that event will not come again
