(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; How many connections each address has open.  The service says which addresses count, and up to
;;;; which number; most services say that none does, and then the lock is never taken.
;;;;
;;;; A connection enters the table when it is accepted, or when its service has learnt for whom a
;;;; proxy has made it.  It leaves with NOTE-CLOSED, where the engine stops counting it as open,
;;;; whatever has ended it.  So the table never has more entries than connections are open.

(defun change-count (counts address limit change)
  "Adds CHANGE to the number for ADDRESS in COUNTS, unless that number is LIMIT or more.  True if it
did.  Under the lock of COUNTS."
  (let* ((table (address-counts-table counts))
         (count (gethash address table 0)))
    (cond ((and limit (>= count limit)) nil)
          ((zerop (+ count change)) (remhash address table))
          (t (setf (gethash address table) (+ count change))))))

(defun leave-address (engine connection)
  "Ends the count of CONNECTION of ENGINE for its address, if it is counted."
  (when (connection-address connection)
    (let ((counts (engine-address-counts engine)))
      (with-lock-briefly ((address-counts-lock counts))
        (let ((address (shiftf (connection-address connection) nil)))
          (when address
            (change-count counts address nil -1)))))))

(defun enter-address (engine connection)
  "Counts CONNECTION of ENGINE, which the caller owns, for the address that its service tells, and
for no other.  Returns NIL if that address has as many connections as it may: CONNECTION is not
counted then, and the caller is to refuse it.  True also where the service tells no address."
  (leave-address engine connection)
  (multiple-value-bind (limit address) (counting-failures (engine nil)
                                        (address-limit (engine-service engine) connection))
    (or (null limit)
        (let ((counts (engine-address-counts engine)))
          (with-lock-briefly ((address-counts-lock counts))
            (when (change-count counts address limit 1)
              (setf (connection-address connection) address)
              t))))))

(defun note-closed (engine connection)
  "Notes that CONNECTION, which ENGINE has counted as open, no longer is."
  (counter-add (tally-open (engine-tally engine)) -1)
  (counter-add (tally-sent (engine-tally engine)) (send-queue-sent (connection-queue connection)))
  (leave-address engine connection))
