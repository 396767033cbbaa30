(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; How a ready engine is made, starts and stops.

(defun make-ready-engine (service listener &key standby thread-limit accept-limit
                                           (waiting-limit :half) idle-seconds)
  "An engine for SERVICE on LISTENER, not started.  It keeps STANDBY workers when there is
nothing to do, and has at most THREAD-LIMIT, or any number if NIL.  ACCEPT-LIMIT limits its open
connections (see ENGINE-ACCEPT-LIMIT), WAITING-LIMIT the workers that wait for clients: an integer
above 0, :HALF of the thread limit, or NIL for no limit.  A connection may idle for IDLE-SECONDS, a
real, or for ever if NIL."
  (%make-ready-engine :service service :listener listener :standby standby
                      :thread-limit thread-limit :accept-limit accept-limit
                      :client-waits (make-client-waits :limit waiting-limit)
                      :pool-state (make-pool-state :idle (as-milliseconds idle-seconds))
                      :listener-descriptor (listener-descriptor listener)
                      :decisions (make-decision-counters)))

(defmethod acquire-resources ((engine ready-engine))
  (let ((pool (engine-pool-state engine))
        (listener (engine-listener-descriptor engine)))
    (setf (engine-poller engine) (make-poller)
          (engine-arm engine) (lambda (connection) (watch-under-lock engine connection)))
    (setf (pool-state-clock pool) (milliseconds)
          (pool-state-floor pool) (min (usable-processors) (engine-standby engine))
          (pool-state-target pool) (pool-state-floor pool))
    (check-start (set-non-blocking listener))
    (set-no-delay listener)             ; accepted sockets inherit it; none of a Unix-domain socket
    (check-start (watch (engine-poller engine) listener listener))
    (acquire-timer-descriptor engine)))

(defmethod recheck-workers ((engine ready-engine))
  (with-engine (engine)
    (dolist (worker (engine-suspended engine))
      (bt:condition-notify (ready-worker-resumed worker)))))

(defmethod leave-listener ((engine ready-engine))
  (when (engine-poller engine)          ; else it did not even begin to start
    (unwatch (engine-poller engine) (engine-listener-descriptor engine))
    (wake-listener (engine-listener engine) 0)))

(defmethod wake-workers ((engine ready-engine))
  (when (engine-poller engine)
    (wake-all (engine-poller engine)))
  (with-engine (engine)
    (notify-sentinel engine))
  (recheck-workers engine))

(defmethod end-input ((engine ready-engine) &rest states)
  (map-connections (lambda (connection)
                     (end-input-of engine connection states))
                   (engine-table engine)))

(defun end-input-of (engine connection states)
  "Closes CONNECTION of ENGINE if it is parked in one of STATES.  If it is served, and :SERVING
is one of STATES, makes its owner read nothing more."
  (cond ((as-owner (and (member (if (unfinished-p connection) :writing :keep-alive) states)
                        (claim-parked connection))
           (drop-connection engine connection)
           t))
        ((member :serving states)
         (shut-if-owned connection :input))))

(defun octets-unseen-p (engine connection)
  "True if CONNECTION of ENGINE is parked and has input that no worker has looked at.  The caller
looks as its owner; otherwise the descriptor might belong to another connection by then."
  (as-owner (claim-parked connection)
    (prog1 (or (eq :turn (connection-awaiting connection))
               (and (not (unfinished-p connection))
                    (first-octet (connection-descriptor connection))))
      (park-again engine connection))))

(defmethod unanswered-connections ((engine ready-engine))
  (let ((waiting '()))
    (map-connections (lambda (connection)
                       (when (octets-unseen-p engine connection)
                         (push connection waiting)))
                     (engine-table engine))
    (append (call-next-method)
            (loop for connection in waiting
                  collect (describe-connection connection :queued)))))

(defmethod release-resources ((engine ready-engine))
  (end-input engine :keep-alive :writing) ; whatever is left
  (release-timer-descriptor engine)
  (when (engine-poller engine)
    (close-poller (engine-poller engine))))
