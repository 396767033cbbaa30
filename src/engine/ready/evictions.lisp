(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; Parked connections that are ended since they are late, or since others want what they have: a
;;;; descriptor, or memory.

(defun count-time-out (engine connection)
  (with-engine (engine)
    (count-expired engine (connection-deadline-kind connection))))

(defun have-worker-end (engine connection)
  "Has a worker close CONNECTION, which is overdue and the sentinel's: a program may want to be
told, and may take long."
  (count-time-out engine connection)
  (setf (connection-deadline connection) nil)
  (leave-end-to-worker engine connection :broken))

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

;;; For their descriptors

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

;;; For their memory

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
