(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; Parked connections that end because they are late, or because others need their descriptor or
;;;; their memory.

(defun count-time-out (engine connection)
  (with-engine (engine)
    (count-expired engine (connection-deadline-kind connection))))

(defun have-worker-end (engine connection)
  "Has a worker close CONNECTION, which is overdue and owned by the sentinel.  A program may have
asked to be called then, and may take long."
  (count-time-out engine connection)
  (setf (connection-deadline connection) nil)
  (leave-end-to-worker engine connection :broken))

(defun left-to-workers-p (engine connection now)
  "True if CONNECTION, which the sentinel owns, has input that no worker has looked at.  It is
parked again then."
  (when (and (not (unfinished-p connection))
             (await-descriptor (connection-descriptor connection) :input :until now))
    ;; A worker has the event, and has had no time for it.
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
  "True if the service was called for the input of CONNECTION, which the caller owns, and left it
unread.  The service is not called for that input again."
  (and (eql (connection-served-when-left connection) (connection-served connection))
       (not (eq :read (connection-input connection)))))

(defun end-with-notice (engine connection now)
  "Ends CONNECTION, which the sentinel owns; gently if the service told its peer why."
  (cond ((and (not (unfinished-p connection)) ; else the notice would land inside an answer
              (notice-given-p engine connection))
         (release-owned engine connection)
         (begin-to-linger connection now)
         (requeue-connection engine connection))
        (t
         (drop-connection engine connection))))

(defun parked-by (engine key)
  "The parked connections of ENGINE for which KEY, a function, returns a number, the least first."
  (let ((entries '()))
    (map-connections (lambda (connection)
                       (let ((number (and (parked-p connection) (funcall key connection))))
                         (when number
                           (push (cons number connection) entries))))
                     (engine-table engine))
    (mapcar #'cdr (stable-sort (nreverse entries) #'< :key #'car))))

;;; For their descriptors

(defun order-of-giving-way (connection)
  "A number by which CONNECTION, which is parked, gives way to others: first those that have idled
longest; then those that wait for the rest of a request, whose deadlines come soon; last those whose
peers do not take their output.  NIL if it does not."
  (let ((deadline (or (connection-deadline connection) 0)))
    (cond ((connection-output connection) (+ deadline most-positive-fixnum))
          ((unfinished-p connection) nil)
          ((amid-request-p connection) (+ deadline (ash 1 50)))
          (t deadline))))

(defun evict-idle-connections (engine)
  "Ends some parked connections of ENGINE: without descriptors no other client comes in.  True if
there were any that might end."
  (let ((connections (parked-by engine #'order-of-giving-way))
        (freed-p nil))
    ;; A share of them, or each new client would search all connections again.
    (loop repeat (ceiling (length connections) 64)
          for connection in connections
          until (and freed-p (connection-output connection))
          when (evict-if-idle engine connection)
            do (setf freed-p t))
    connections))

(defun evict-if-idle (engine connection)
  "Ends CONNECTION unless a thread owns it, it has input, or an answer is to come.  True if its
descriptor is free."
  (as-owner (claim-parked connection)
    ;; It may have been served, and parked again, since it was found to idle.
    (cond ((connection-output connection)
           (give-output-up engine connection)
           nil)
          ((unfinished-p connection)
           (park-again engine connection)
           nil)
          ((not (left-to-workers-p engine connection (milliseconds)))
           (with-engine (engine)
             (count-expired engine :evicted))
           (drop-connection engine connection)
           t))))

;;; For their memory

(defun memory-kept-since (engine connection)
  "The moment in MILLISECONDS since which CONNECTION of ENGINE, which is parked or the caller's,
has memory of the budget of all clients that it can give back; NIL if it has none, or a worker is to
end it."
  (let ((queue (connection-queue connection)))
    (cond ((end-left-to-worker connection) nil)
          ((plusp (send-queue-reserved queue)) (send-queue-reserved-since queue))
          (t (input-kept-since (engine-service engine) connection)))))

(defun evict-oldest (engine)
  "Takes memory back from an eighth of the parked connections of ENGINE that have some, if it is
a ready engine: from those that have it for longest, for input or for output that their peers do
not take.  True if any memory came free at once.  The caller owns none of them."
  (let ((keepers (and (typep engine 'ready-engine)
                      (parked-by engine (lambda (connection)
                                          (memory-kept-since engine connection)))))
        (before (client-memory-reserved)))
    ;; An eighth, not one: otherwise each new octet would search all connections again.
    (loop repeat (ceiling (length keepers) 8)
          for connection in keepers
          do (evict engine connection))
    (< (client-memory-reserved) before)))

(defun evict (engine connection)
  "Takes the memory of CONNECTION back if it is still parked and has some."
  (as-owner (claim-parked connection)
    (cond ((null (memory-kept-since engine connection))
           (park-again engine connection))
          ((plusp (send-queue-reserved (connection-queue connection)))
           (give-output-up engine connection))
          (t
           (give-input-back engine connection)))))

(defun give-output-up (engine connection)
  "Drops the output of CONNECTION, which the caller owns, at once: the worker that is to end it may
come late, while others fill the heap."
  (clear-queue (connection-queue connection))
  (release-output connection)
  (setf (connection-deadline-kind connection) :evicted)
  (have-worker-end engine connection))

(defun give-input-back (engine connection)
  "Releases the memory for input of CONNECTION, which the caller owns."
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
