(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; How connections of the ready engine end.

(defun forget-owned (engine connection)
  "Makes ENGINE forget CONNECTION, which the caller owns, and whose descriptor is open."
  (forget-connection (engine-table engine) connection)
  (note-closed engine connection)
  (when (draining-p engine)             ; a stop waits for the last one
    (with-engine (engine)
      (bt:condition-notify (engine-changed engine)))))

(defun close-owned (engine connection)
  (forget-owned engine connection)
  (end-ownership connection)
  (close-descriptor (connection-descriptor connection)))

(defmethod close-orphaned-connection ((engine ready-engine) connection)
  (drop-connection engine connection))  ; it is owned, and its owner is gone

(defun release-owned (engine connection)
  "Lets the service of ENGINE release CONNECTION, which the caller owns; returns the value of
RELEASE-CONNECTION.  Functions of programs run there.  If one ends the thread, CONNECTION is
closed."
  (unless-returned (interruptibly (release-connection engine connection))
    (close-owned engine connection)))

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
