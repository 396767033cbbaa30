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

(defun connections-by (engine key)
  "The connections of ENGINE for which KEY, a function, returns a number, the least first."
  (let ((entries '()))
    (map-connections (lambda (connection)
                       (let ((number (funcall key connection)))
                         (when number
                           (push (cons number connection) entries))))
                     (engine-table engine))
    (mapcar #'cdr (stable-sort (nreverse entries) #'< :key #'car))))

;;; For their descriptors

(defun order-of-giving-way (connection)
  "A number by which CONNECTION gives way to others, if it is parked: first those that have idled
longest; then those that wait for the rest of a request, whose deadlines come soon; last those whose
peers do not take their output.  NIL if it does not."
  (let ((deadline (or (connection-deadline connection) 0)))
    (cond ((not (parked-p connection)) nil)
          ((connection-output connection) (+ deadline most-positive-fixnum))
          ((unfinished-p connection) nil)
          ((amid-request-p connection) (+ deadline (ash 1 50)))
          (t deadline))))

(defun evict-idle-connections (engine)
  "Ends some parked connections of ENGINE: without descriptors no other client comes in.  True if
there were any that might end."
  (let ((connections (connections-by engine #'order-of-giving-way))
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
  (cond ((connection-output connection)
         (give-output-up engine connection :evicted)
         nil)
        (t
         (as-owner (claim-parked connection)
           ;; It may have been served, and parked again, since it was found to idle.
           (cond ((unfinished-p connection)
                  (park-again engine connection)
                  nil)
                 ((not (left-to-workers-p engine connection (milliseconds)))
                  (with-engine (engine)
                    (count-expired engine :evicted))
                  (drop-connection engine connection)
                  t))))))

;;; For their memory

(defun memory-kept-p (engine connection)
  "True if CONNECTION of ENGINE has memory of the budget of all clients that it can give back: for
output, or for input if it is parked."
  (or (plusp (send-queue-reserved (connection-queue connection)))
      (and (parked-p connection)
           (not (end-left-to-worker connection))
           (input-kept-p (engine-service engine) connection))))

(defun evict-oldest (engine)
  "Ends an eighth of the connections of ENGINE that have memory, if it is a ready engine: first
those without a deadline, whose peers do not take their output, and then those that would end first
anyway.  True if any memory came free at once.  The caller owns none of them."
  (let ((keepers (and (typep engine 'ready-engine)
                      (connections-by engine (lambda (connection)
                                               (and (memory-kept-p engine connection)
                                                    (or (connection-deadline connection) 0))))))
        (before (client-memory-reserved)))
    ;; An eighth, not one: otherwise each new octet would search all connections again.
    (loop repeat (ceiling (length keepers) 8)
          for connection in keepers
          do (evict engine connection))
    (< (client-memory-reserved) before)))

(defun evict (engine connection)
  "Ends CONNECTION if it has memory for output, or is still parked and has some for input."
  (if (plusp (send-queue-reserved (connection-queue connection)))
      (give-output-up engine connection :evicted)
      (as-owner (claim-parked connection)
        (cond ((not (input-kept-p (engine-service engine) connection)) ; it was served meanwhile
               (park-again engine connection))
              (t
               (setf (connection-deadline-kind connection) :evicted)
               (if (unfinished-p connection)
                   (have-worker-end engine connection)
                   (progn (count-time-out engine connection)
                          (end-with-notice engine connection (milliseconds)))))))))

(defun give-output-up (engine connection kind)
  "Drops the output of CONNECTION at once, and counts that by KIND.  A worker closes it."
  (end-queue (connection-queue connection) t)
  (with-engine (engine)
    (count-expired engine kind)))

(defun make-room-for-output (engine queue)
  "Called after something was queued in QUEUE, of a connection of ENGINE, perhaps by a thread that
does not own it.  If more memory is reserved than may wait for clients, others give way.  If the
heap has no room for as much by each worker, collects garbage."
  (let ((octets (send-queue-reserved queue)))
    (when (plusp octets)
      (loop until (reserve-client-memory 0 *waiting-share*)
            while (evict-oldest engine))
      (make-room-in-heap (* octets (worker-count engine :active :starting))))))
