(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; How connections of the ready engine end.

(defun release-output (connection)
  "Releases the memory reserved for output of CONNECTION, which the caller owns."
  (let ((queue (connection-queue connection)))
    (when (plusp (send-queue-reserved queue))
      (change-reservation (send-queue-reserved queue) 0))))

(defun forget-owned (engine connection)
  "Makes ENGINE forget CONNECTION, which the caller owns, and whose descriptor is open."
  (clear-queue (connection-queue connection))
  (release-output connection)
  (forget-connection (engine-table engine) connection)
  (note-closed engine connection)
  (when (draining-p engine)             ; a stop waits for the last one
    (with-engine (engine)
      (bt:condition-notify (engine-changed engine)))))

(defun close-owned (engine connection)
  (forget-owned engine connection)
  (when (end-ownership connection)
    (close-descriptor (connection-descriptor connection))))

(defmethod close-orphaned-connection ((engine ready-engine) connection)
  (drop-connection engine connection))  ; it is owned, and its owner is gone

(defun release-owned (engine connection)
  "Lets the service of ENGINE release CONNECTION, which the caller owns; returns the value of
RELEASE-CONNECTION.  A worker can be interrupted meanwhile, as in SERVE, because functions of
programs run there.  After a non-local exit, as when the thread is destroyed, the service
releases CONNECTION once more, which it may not have begun, and CONNECTION is closed: no other
thread would do either."
  (unless-returned (if (working-p engine)
                       (interruptibly (release-connection engine connection))
                       (release-connection engine connection))
    (unwind-protect (release-connection engine connection)
      (close-owned engine connection))))

(defun working-p (engine)
  "True if the current thread is a worker of ENGINE that has not left its pool."
  (let ((worker (worker-of engine)))
    (and worker (not (eq :ended (worker-state worker))))))

(defun drop-connection (engine connection)
  "Closes CONNECTION, which the caller owns, at once."
  (release-owned engine connection)
  (close-owned engine connection))

(defun unwatch-connection (engine connection)
  "Makes the poller of ENGINE forget CONNECTION, which the caller owns."
  (when (shiftf (connection-watched connection) nil)
    (unwatch (engine-poller engine) (connection-descriptor connection))))

(defun abort-connection (engine connection)
  "Closes the descriptor of CONNECTION, which the caller owns, at once.  Another descriptor of
its socket may be open elsewhere, and the poller would report it as long as that is so; so the
poller forgets it first."
  (unwatch-connection engine connection)
  (drop-connection engine connection))

(defmethod detach ((engine ready-engine) connection)
  (unless (gone-p connection)
    (unwatch-connection engine connection)
    (forget-owned engine connection)
    (leave-ownership connection)))
