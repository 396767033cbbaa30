(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; One thread for each engine sees to what no worker can: it makes workers where some
;;;; died or could not be made, and ends connections that overstay.

(defparameter *tick* 0.25
  "Seconds between two looks of the sentinel when nobody rings its bell.")

(defun count-expired (engine kind)
  "Counts a connection of ENGINE as ended by the sentinel because of KIND.  Under the lock."
  (incf (engine-expired engine))
  (incf (getf (engine-expired-by engine) kind 0)))

(defun end-connection (engine worker kind)
  "Ends what WORKER reads or writes, because of KIND; it will notice, and release the connection
itself.  Under the lock, so that the socket cannot be closed, and its descriptor reused, meanwhile."
  (count-expired engine kind)
  (setf (connection-deadline (worker-connection worker)) nil)
  (shut-down (connection-socket (worker-connection worker))
             (if (eq (worker-state worker) :idling) :input :io)))

(defun end-overdue-connections (engine)
  (loop with now = (milliseconds)
        for worker in (engine-workers engine)
        for connection = (worker-connection worker)
        when (and connection (overdue-p connection now))
          do (end-connection engine worker (connection-deadline-kind connection))))

(defun tend-pool (engine)
  "Clears away the workers of ENGINE that are gone, and makes those that it misses.  True when
none failed."
  (bury-dead-workers engine)
  (join-leavers engine)
  (refill engine))

(defun look-after (engine)
  "What the sentinel of ENGINE does at a tick.  True when all that was missing was made."
  (handler-case
      (progn
        (with-engine (engine)
          (end-overdue-connections engine)
          (tend engine))
        (tend-pool engine))
    (error (condition)
      (count-failure engine)
      (tell engine :error "The sentinel stumbled: ~A" condition)
      nil)))

(defmethod watch-over ((engine engine))
  (loop for complete = (look-after engine)
        do (bt:with-lock-held ((engine-lock engine))
             (when (eq (engine-phase engine) :stopped)
               (return))
             (unless (and complete (plusp (missing-workers engine)))
               (wait-on (engine-bell engine) (engine-lock engine) *tick*)))))
