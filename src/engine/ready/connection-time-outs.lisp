(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; What the sentinel of the ready engine looks after a few times a second: deadlines, above all.
;;;;
;;;;   a connection that is                and                            is
;;;;   overdue, with output left           its peer is fast enough        looked at again, by its end;
;;;;                                                                      an owner does so itself
;;;;   overdue, parked, with none left     something has come that no     left to the workers, however long
;;;;                                       worker has looked at           they are busy
;;;;   overdue, parked                     its service wanted it so       left to the workers; or visited, where
;;;;                                                                      all of them serve and none may be made
;;;;   overdue, with output left           an answer was to come later        left to the workers, to be closed
;;;;   overdue, parked                     the service gives notice       told so, and closed gently
;;;;   overdue, parked                     otherwise                      closed
;;;;   overdue, owned                      its owner has not begun to      left to its owner
;;;;                                       look at what has come
;;;;   overdue, owned                      otherwise                      shut down; its owner closes it
;;;;   deferred                            nobody has its answer any more     left to the workers
;;;;   idle when a drain is over                                          as if it were overdue

(defun time-out-if-due (engine connection now)
  "Ends CONNECTION if it is overdue at NOW."
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
  "True when the owner of CONNECTION, who is not the caller, may be waiting for its peer.  An owner
that has not begun to look at what has come waits for a processor only; before it begins it takes
the deadline away, so a deadline that is read after this holds.  An owner that has just set a
deadline for the rest of a request is about to park."
  (prog1 (and (not (amid-request-p connection))
              (not (served-when-due-p connection))
              (or (null (connection-untouched connection))
                  (unfinished-p connection)))
    (order-reads)))

(defun drain-time-out-p (engine connection now)
  "True when ENGINE drains and has waited long enough for a request of CONNECTION."
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
  "Ends CONNECTION, which is overdue and the sentinel's, unless its peer makes progress, or waits
for us."
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
  "Has CONNECTION, which is due and the sentinel's, served: by a worker; but where all of them may
serve for long, and CONNECTION waits for an answer, the sentinel visits it, to say that none has
come."
  (if (and (eq :deferred (connection-deadline-kind connection))
           (all-serve-p engine))
      (resume-owned engine connection)
      (requeue-connection engine connection)))

(defun end-idle-parked-connection (engine connection now)
  "Ends CONNECTION, which is the sentinel's, unless a request has come."
  (unless (left-to-workers-p engine connection now)
    (end-with-notice engine connection now)))

(defun next-housekeeping (last)
  "When the sentinel, which has seen to deadlines and the like LAST at that moment, does so again,
in MILLISECONDS."
  (+ last (as-milliseconds *tick*)))

(defun housekeep-when-due (engine controller)
  "Ends the overdue connections of ENGINE, a few times a second."
  (let ((now (milliseconds)))
    (when (<= (next-housekeeping (controller-last-housekeeping controller)) now)
      (setf (controller-last-housekeeping controller) now)
      (map-connections (lambda (connection) (time-out-if-due engine connection now))
                       (engine-table engine))
      (count-processors engine controller now)
      (sample-wait-when-busy engine controller)
      (when (engine-accept-again-p engine)
        (accept-again engine))
      (maintain-pool engine))))
