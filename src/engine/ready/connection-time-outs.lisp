(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; The sentinel of the ready engine looks a few times a second after deadlines, and more.
;;;;
;;;;   a connection that is                and                         is
;;;;   parked, with output left            its peer is too slow        shut down, for a worker to
;;;;                                                                   close
;;;;   overdue, parked, no output left     has input that no worker    left to the workers, however
;;;;                                       has looked at               long they are busy
;;;;   overdue, parked                     its service asked for       left to the workers; resumed
;;;;                                       that time                   here if all of them serve
;;;;                                                                   and none may be made
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
                     (unless (left-to-workers-p engine connection now)
                       (end-with-notice engine connection now)))
                    (t
                     (park-again engine connection)))
              t)
      (when (overdue-p connection now)
        (call-if-owned connection
                       (lambda ()
                         (when (and (owner-may-wait-p connection)
                                    (overdue-p connection now))
                           (count-time-out engine connection)
                           (setf (connection-deadline connection) nil)
                           (shut-descriptor (connection-descriptor connection) :io))))))))

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

(defmethod wake-from-client ((engine ready-engine) connection direction)
  (call-if-owned connection
                 (lambda ()
                   (shut-descriptor (connection-descriptor connection)
                                    (if (eq :input direction) :input :io)))))

(defun time-out-parked-connection (engine connection now)
  "Ends CONNECTION, which is overdue and owned by the sentinel, unless its peer waits for us."
  (cond ((left-to-workers-p engine connection now))
        ((served-when-due-p connection)
         (setf (connection-deadline connection) nil)
         ;; If all workers may serve for long, the sentinel itself lets the service say that the
         ;; reply for which CONNECTION waits has not come.
         (if (and (eq :deferred (connection-deadline-kind connection))
                  (all-serve-p engine))
             (resume-owned engine connection)
             (requeue-connection engine connection)))
        (t
         (count-time-out engine connection)
         (end-with-notice engine connection now))))

(defun next-housekeeping (last)
  "The moment in MILLISECONDS of the sentinel's next look at deadlines, if it looked at LAST."
  (+ last (as-milliseconds *tick*)))

(defun housekeep-when-due (engine controller)
  "Ends the overdue connections of ENGINE, a few times a second."
  (let ((now (milliseconds)))
    (when (<= (next-housekeeping (controller-last-housekeeping controller)) now)
      (setf (controller-last-housekeeping controller) now)
      (map-connections (lambda (connection)
                         (time-out-if-due engine connection now)
                         (when (and (connection-output connection)
                                    (parked-p connection)
                                    (taker-given-up-p (connection-queue connection) now))
                           (give-output-up engine connection :write)))
                       (engine-table engine))
      (count-processors engine controller now)
      (sample-wait engine)
      (when (accept-again-p (engine-accept-state engine))
        (accept-again engine))
      (maintain-pool engine))))
