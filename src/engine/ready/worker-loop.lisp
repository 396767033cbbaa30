(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; The life of a worker of the ready engine: see ready-engine.lisp for the table.
;;;;
;;;;   it         in                           what may happen besides
;;;;   waits      NEXT-EVENT                   it is suspended for a while, or ends
;;;;   owns       OWN-CONNECTION               the connection has an owner: that one is told
;;;;   serves     SERVE-CONNECTION             the service fails, or is left by a non-local exit
;;;;   settles    SETTLE-OUTCOME, END-SERVICE  more has come, or output is left: it goes on
;;;;   parks      PARK                         likewise
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

(defun attend-timers-in (engine worker)
  "Runs the timers of ENGINE that are due in WORKER, which has got the event of the alarm."
  (unless-returned (run-due-timers engine worker)
    (call-for-timers engine)))          ; that event will not come again
