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

(defun count-time-out (engine connection)
  (with-engine (engine)
    (count-expired engine (connection-deadline-kind connection))))

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

(defun have-worker-end (engine connection)
  "Has a worker close CONNECTION, which is overdue and the sentinel's: a program may want to be
told, and may take long."
  (count-time-out engine connection)
  (setf (connection-deadline connection) nil)
  (leave-end-to-worker engine connection :broken))

(defun end-idle-parked-connection (engine connection now)
  "Ends CONNECTION, which is the sentinel's, unless a request has come."
  (unless (left-to-workers-p engine connection now)
    (end-with-notice engine connection now)))

(defun left-to-workers-p (engine connection now)
  "True when something has come for CONNECTION, which is the sentinel's, that no worker has looked
at; it is parked again then."
  (when (and (not (unfinished-p connection))
             (await-descriptor (connection-descriptor connection) :input :until now))
    ;; A worker has the event, and does not get to it.
    (cond ((eq :left (connection-untouched connection))
           (park-again engine connection)
           t)
          ((unwanted-p connection)
           nil)
          (t
           (setf (connection-untouched connection) :left
                 (connection-served-when-left connection) (connection-served connection))
           (requeue-connection engine connection)
           t))))

(defun unwanted-p (connection)
  "True when the service was called for what has come of CONNECTION, which the caller
owns, and left it where it was: it is not called for that again."
  (and (eql (connection-served-when-left connection) (connection-served connection))
       (not (eq :read (connection-input connection)))))

(defun park-again (engine connection)
  "Parks CONNECTION, which the caller owns and has not served."
  (if (give-up-ownership connection)
      (end-if-parked-too-late engine connection)
      (requeue-connection engine connection)))

(defun end-with-notice (engine connection now)
  "Ends CONNECTION, which is the sentinel's.  Where its peer was told why, gently."
  (cond ((and (not (unfinished-p connection)) ; else the notice would land inside an answer
              (notice-given-p engine connection))
         (release-owned engine connection)
         (begin-to-linger connection now)
         (requeue-connection engine connection))
        (t
         (drop-connection engine connection))))

(defun notice-given-p (engine connection)
  (handler-case (give-notice (engine-service engine) connection)
    ((or error storage-condition) ()
      (count-failure engine)
      nil)))

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
      (close-status-descriptors engine)
      (count-processors engine controller now)
      (sample-wait-when-busy engine controller)
      (when (engine-accept-again-p engine)
        (accept-again engine))
      (maintain-pool engine))))

(defun longest-first (connections)
  "CONNECTIONS, a fresh list, those first that have waited for longest."
  ;; A deadline may change meanwhile, but not what was noted of it.
  (mapcar #'cdr (sort (mapcar (lambda (connection)
                                (cons (or (connection-deadline connection) 0) connection))
                              connections)
                      #'< :key #'car)))

(defun longest-idle (engine)
  "The parked connections of ENGINE, those first that have waited for longest; but behind them all
those that wait amid a request, whose deadlines come soon although they do not idle."
  (let ((parked (parked-connections (engine-table engine))))
    (append (longest-first (remove-if #'amid-request-p parked))
            (longest-first (remove-if-not #'amid-request-p parked)))))

(defun evict-idle-connections (engine)
  "Ends some connections of ENGINE that only idle: without descriptors nobody else comes in."
  (loop repeat +accept-batch+
        for connection in (longest-idle engine)
        do (evict-if-idle engine connection)))

(defun evict-if-idle (engine connection)
  "Ends CONNECTION unless somebody owns it, something has come, or it is being answered."
  (as-owner (claim-parked connection)
    ;; It was served, and parked again, since it was found to idle.
    (cond ((unfinished-p connection)
           (park-again engine connection))
          ((left-to-workers-p engine connection (milliseconds)))
          (t
           (with-engine (engine)
             (count-expired engine :evicted))
           (drop-connection engine connection)))))

(defun memory-kept-since (engine connection)
  "Since when CONNECTION of ENGINE, which is parked or the caller's, has memory of the budget of all
clients, in MILLISECONDS; NIL when it has none."
  (let ((queue (connection-queue connection)))
    (if (plusp (send-queue-reserved queue))
        (send-queue-reserved-since queue)
        (input-kept-since (engine-service engine) connection))))

(defun longest-kept (engine)
  "The parked connections of ENGINE that have memory, those first that have it for longest."
  (let ((keepers '()))
    (map-connections (lambda (connection)
                       (let ((since (and (parked-p connection)
                                         (memory-kept-since engine connection))))
                         (when since
                           (push (cons since connection) keepers))))
                     (engine-table engine))
    (mapcar #'cdr (stable-sort (nreverse keepers) #'< :key #'car))))

(defun evict-oldest (engine)
  "Takes memory back from an eighth of the parked connections of ENGINE that have some, if it is a
ready engine: from those that have it for longest, be it for what they have sent or for output that
they do not take.  True when it got any at once.  The caller owns none of them."
  (let ((keepers (and (typep engine 'ready-engine) (longest-kept engine)))
        (before (client-memory-reserved)))
    ;; Not one at a time, or each octet that comes would have them all looked through again.
    (loop repeat (ceiling (length keepers) 8)
          for connection in keepers
          do (evict engine connection))
    (< (client-memory-reserved) before)))

(defun evict (engine connection)
  "Takes the memory of CONNECTION back if it is still parked, and has some."
  (as-owner (claim-parked connection)
    (cond ((plusp (send-queue-reserved (connection-queue connection)))
           (release-output connection)
           (setf (connection-deadline-kind connection) :evicted)
           (have-worker-end engine connection))
          ((memory-kept-since engine connection)
           (give-input-back engine connection))
          (t
           (park-again engine connection)))))

(defun give-input-back (engine connection)
  "Takes back the memory for what has come over CONNECTION, which the caller owns."
  (let ((outcome (handler-case (release-kept-input (engine-service engine) connection)
                   ((or error storage-condition) ()
                     (count-failure engine)
                     :broken))))
    (cond ((eq :park outcome)
           (park-again engine connection))
          (t
           (setf (connection-deadline-kind connection) :evicted)
           (cond ((eq :broken outcome)
                  (have-worker-end engine connection))
                 (t
                  (count-time-out engine connection)
                  (end-with-notice engine connection (milliseconds))))))))

(defun close-status-descriptors (engine)
  (gather-status-descriptors engine)
  (uninterruptibly
    (mapc #'close-descriptor
          (with-engine (engine) (shiftf (engine-status-descriptors engine) '())))))
