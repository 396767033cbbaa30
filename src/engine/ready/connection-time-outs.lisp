(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; The sentinel of the ready engine looks a few times a second after deadlines, and more.
;;;;
;;;;   a connection that is                and                         is
;;;;   overdue, with output left           its peer is fast enough     looked at again, by its end;
;;;;                                                                   its owner does so itself
;;;;   overdue, parked, no output left     has input that no worker    left to the workers, however
;;;;                                       has looked at               long they are busy
;;;;   overdue, parked                     its service asked for       left to the workers; resumed
;;;;                                       that time                   here if all of them serve
;;;;                                                                   and none may be made
;;;;   overdue, with output left           its reply was to come       left to the workers, which
;;;;                                       later                       close it
;;;;   overdue, parked                     the service gives notice    closed gently
;;;;   overdue, parked                     otherwise                   closed
;;;;   overdue, owned                      its owner has not begun to  left to its owner
;;;;                                       look at its input
;;;;   overdue, owned                      otherwise                   shut down, for its owner to
;;;;                                                                   close
;;;;   overdue, owned                      its handler has run too long  left to its service
;;;;   idle when a drain is over                                       treated as overdue

(defun time-out-if-due (engine connection now)
  "Ends CONNECTION if it is overdue at NOW."
  (if (handler-limited-p connection)
      (when (overdue-p connection now)
        (time-out-handler (engine-service engine) connection))
      (end-if-due engine connection now)))

(defun end-if-due (engine connection now)
  "Ends CONNECTION, whose deadline is none of a handler, if it is overdue at NOW."
  (when (or (overdue-p connection now) (drain-time-out-p engine connection now))
    (unless (as-owner (claim-parked connection)
              ;; It may have been served and parked again since: look again, as its owner.
              (cond ((overdue-p connection now)
                     (time-out-parked-connection engine connection now))
                    ((drain-time-out-p engine connection now)
                     (end-idle-parked-connection engine connection now))
                    (t
                     (park-again engine connection)))
              t)
      (when (overdue-p connection now)
        (call-while-expiring connection
                             (lambda ()
                               (when (and (owner-may-wait-p connection)
                                          (overdue-p connection now)
                                          (not (output-in-time-p connection now)))
                                 (time-out-owned-connection engine connection))))))))

(defun owner-may-wait-p (connection)
  "True if the owner of CONNECTION, another thread, may be waiting for its peer.  An owner that
has not begun to look at the input waits for a processor only.  Before it begins it takes the
deadline away, so a deadline that is read after this holds.  An owner that has just set a
deadline for the rest of a request is about to park."
  (prog1 (and (not (amid-request-p connection))
              (not (served-when-due-p connection))
              (or (null (connection-untouched connection))
                  (unfinished-p connection)))
    (order-reads)))

(defun drain-time-out-p (engine connection now)
  "True if ENGINE drains and has waited long enough for a request of CONNECTION."
  (and (drain-over-p engine now)
       (not (unfinished-p connection))))

(defun time-out-owned-connection (engine connection)
  "Shuts the descriptor of CONNECTION down; its owner cannot close it meanwhile."
  (count-time-out engine connection)
  (setf (connection-deadline connection) nil)
  (shut-descriptor (connection-descriptor connection) :io))

(defmethod wake-from-client ((engine ready-engine) connection direction)
  (call-while-expiring connection
                       (lambda ()
                         (shut-descriptor (connection-descriptor connection)
                                          (if (eq :input direction) :input :io)))))

(defun time-out-parked-connection (engine connection now)
  "Ends CONNECTION, which is overdue and owned by the sentinel, unless its peer makes progress or
waits for us."
  (cond ((taken-in-time-p connection now)
         (park-again engine connection))
        ((left-to-workers-p engine connection now))
        ((served-when-due-p connection)
         (setf (connection-deadline connection) nil)
         (serve-when-due engine connection))
        ((and (connection-output connection) (eq :deferred (connection-outcome connection)))
         (have-worker-end engine connection))
        (t
         (count-time-out engine connection)
         (end-with-notice engine connection now))))

(defun serve-when-due (engine connection)
  "Has a worker serve CONNECTION, which is due and owned by the sentinel.  If all workers may
serve for long, and CONNECTION waits for a reply, the sentinel itself lets the service say that
none has come."
  (if (and (eq :deferred (connection-deadline-kind connection))
           (all-serve-p engine))
      (resume-owned engine connection)
      (requeue-connection engine connection)))

(defun end-idle-parked-connection (engine connection now)
  "Ends CONNECTION, which the sentinel owns, unless a request has come."
  (unless (left-to-workers-p engine connection now)
    (end-with-notice engine connection now)))

(defun next-housekeeping (last)
  "The moment in MILLISECONDS of the sentinel's next look at deadlines, if it looked at LAST."
  (+ last (as-milliseconds *tick*)))

(defun housekeep-when-due (engine controller)
  "Ends the overdue connections of ENGINE, a few times a second."
  (let ((now (milliseconds)))
    (when (<= (next-housekeeping (controller-last-housekeeping controller)) now)
      (setf (controller-last-housekeeping controller) now)
      (map-connections (lambda (connection) (time-out-if-due engine connection now))
                       (engine-table engine))
      (count-processors engine controller now)
      (sample-wait engine)
      (when (accept-again-p (engine-accept-state engine))
        (accept-again engine))
      (maintain-pool engine))))
