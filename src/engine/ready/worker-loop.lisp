(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; The life of a worker of the ready engine: see the table in ready-engine.lisp.
;;;;
;;;;   the worker   in                           and sometimes
;;;;   waits        NEXT-EVENT                   is suspended for a while, or ends
;;;;   owns         OWN-CONNECTION               finds an owner, and leaves the event to that
;;;;   serves       SERVE-CONNECTION             survives a failure of the service
;;;;   settles      SETTLE-OUTCOME, END-SERVICE  goes on, if there is more input or unsent output
;;;;   parks        PARK                         goes on, likewise
;;;;
;;;; The poller reports an arrival once, and no other thread can close a connection that this one
;;;; accepted or owns.  So a worker that is to be destroyed dies only where it says INTERRUPTIBLY:
;;;; see the table in ownership.lisp.

(defmethod worker-loop ((engine ready-engine) worker)
  (prepare-thread *worker-slack-microseconds*)
  (setf (ready-worker-identity worker) (thread-identity))
  (with-engine (engine)
    (set-worker-state worker :active)
    (bt:condition-notify (engine-changed engine)))
  (loop with pool = (engine-pool-state engine)
        while (keep-working-p engine worker pool)
        do (let ((token (next-event engine worker)))
             (cond ((integerp token)
                    (stamp-worker worker)
                    (wake-sentinel-if-nobody-waits engine pool)
                    (unwind-protect (handle-event engine worker token)
                      (setf (ready-worker-stamp worker) 0)))
                   (t
                    (interruptibly)
                    (clear-stack)))))) ; else it may keep the last connection alive

(defun handle-event (engine worker token)
  "Handles in WORKER an event of ENGINE with TOKEN."
  (cond ((= token (engine-listener-descriptor engine))
         (when (accepting-p engine) ; or an inherited listener's connections are for others
           (accept-connections engine worker)))
        ((= token +timer-token+)
         (unless-returned (run-due-timers engine worker)
           (call-for-timers engine)))   ; that event will not come again
        (t
         (let ((connection (own-connection engine token)))
           (cond ((null connection))
                 ((connection-lingering-p connection) (linger engine connection))
                 (t (serve-connection engine worker connection)))))))

(defun own-connection (engine token)
  "The connection of TOKEN, if the caller now owns it; else NIL."
  (let ((connection (find-connection (engine-table engine) (plain-token token))))
    (when connection
      (if (become-owner connection (token-hangup-p token))
          connection
          (progn (when (connection-output connection) ; its owner may be in a handler for long
                   (flush-queue (connection-queue connection)))
                 nil)))))
