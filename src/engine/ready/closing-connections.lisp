(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; How connections of the ready engine end.

(defun forget-owned (engine connection)
  "Makes CONNECTION, which the caller owns, and whose descriptor is open, unknown to ENGINE."
  (clear-queue (connection-queue connection))
  (release-output connection)
  (forget-connection (engine-table engine) connection)
  (counter-add (tally-open (engine-tally engine)) -1)
  (when (draining-p engine)             ; somebody waits for the last one
    (with-engine (engine)
      (bt:condition-notify (engine-changed engine)))))

(defun close-owned (engine connection)
  (forget-owned engine connection)
  (when (end-ownership connection)
    (close-descriptor (connection-descriptor connection))))

(defmethod close-orphaned-connection ((engine ready-engine) connection)
  (uninterruptibly                      ; it is owned, and its owner is gone
    (drop-connection engine connection)))

(defun release-owned (engine connection)
  "Lets the service of ENGINE release CONNECTION, which the caller owns; returns what
RELEASE-CONNECTION does.  In a worker that can be
interrupted, as SERVE can: functions of programs run there.  Where it is left by a non-local exit,
as when the thread is destroyed, CONNECTION is released once more, which the service may not have
begun to do, and closed, or nobody would do it."
  (unless-returned (if (working-p engine)
                       (interruptibly (release-connection engine connection))
                       (release-connection engine connection))
    (unwind-protect (release-connection engine connection)
      (close-owned engine connection))))

(defun working-p (engine)
  "True when the current thread is a worker of ENGINE that has not left its pool."
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
  "Closes the descriptor of CONNECTION, which the caller owns, at once.  Somebody else may have
another one of its socket, and as long as that is open the poller would report it, unless it forgets
it."
  (unwatch-connection engine connection)
  (drop-connection engine connection))

(defmethod detach ((engine ready-engine) connection)
  (uninterruptibly
    (unless (gone-p connection)
      (unwatch-connection engine connection)
      (forget-owned engine connection)
      (leave-ownership connection))))

;;; Lingering
;;;
;;; A descriptor that is closed with unread input resets its peer, who may then lose the answer (RFC
;;; 9112, section 9.6), and so does one to which something comes later.  So where the peer has sent
;;; more than was read, or may, only our half is ended, and the rest dropped until the peer ends,
;;; *LINGER-SECONDS* have passed, or +LINGER-OCTETS+ have come.

(defparameter *linger-seconds* 1
  "How long a connection that was answered for the last time may take to end.")

(defconstant +linger-octets+ (* 64 1024 1024)
  "How much of what comes after the last answer is dropped.")

(defconstant +linger-turn+ 16
  "How often a worker drops +MOST-DROPPED+ octets before it turns to other connections.")

(defun close-gracefully (engine connection)
  "Closes CONNECTION, whose last answer was sent; gently where its peer has sent more than was read,
or may."
  (if (or (and (release-owned engine connection)
               (not (read-closed-p connection)))
          (unread-p connection))
      (close-lingering engine connection)
      (close-owned engine connection)))

(defun close-lingering (engine connection)
  "Closes CONNECTION, which was released, gently."
  (begin-to-linger connection (coarse-now (engine-pool-state engine)))
  (linger engine connection))

(defun known-read-p (connection)
  "True when all that has come of CONNECTION is known to have been read."
  (and (connection-watched connection)
       (not (arrived-p connection))
       (eq :read (connection-input connection))))

(defun unread-p (connection)
  "True when more of CONNECTION has come than was read.  Reads some of it."
  (not (or (known-read-p connection)
           (<= (drop-octets (connection-descriptor connection) 1) 0))))

(defun begin-to-linger (connection now)
  "Ends our half of CONNECTION, which the caller owns: nothing more will be said."
  (shut-descriptor (connection-descriptor connection) :output)
  (setf (connection-linger-octets connection) +linger-octets+)
  (set-deadline connection :linger *linger-seconds* now))

(defun drop-arrivals (connection)
  "Drops what CONNECTION, which lingers, has.  Returns :END at its end, :NONE when there is no more
now, :SOME when there may be."
  (loop repeat +linger-turn+
        for count = (drop-octets (connection-descriptor connection) +most-dropped+)
        do (cond ((would-block-p count) (return :none))
                 ((not (plusp count)) (return :end))
                 ((minusp (decf (connection-linger-octets connection) count)) (return :end)))
        finally (return :some)))

(defun linger (engine connection)
  "Drops what CONNECTION, which the caller owns, has; closes it at its end, else parks it."
  (loop
    (ecase (drop-arrivals connection)
      (:end (return (close-owned engine connection)))
      ;; Its deadline is not for the sentinel to enforce while somebody owns it again and again.
      (:some (return (if (overdue-p connection (milliseconds))
                         (close-owned engine connection)
                         (requeue-connection engine connection))))
      (:none (ecase (park engine connection)
               (:parked (return (end-if-parked-too-late engine connection)))
               (:broken (return (close-owned engine connection)))
               (:again))))))

(defun requeue-connection (engine connection)
  "Parks CONNECTION, which the caller owns and must not serve now, for whoever is free next."
  (queue-parked engine connection)
  (end-if-parked-too-late engine connection))

(defun give-up-unread (connection)
  "Parks CONNECTION, which the caller owns, and whose events the caller may have got, or gets here,
without reading what has come: whoever owns it next may have a request in a buffer, and would not
look for more."
  (setf (connection-input connection) :missed)
  (loop until (give-up-ownership connection)))

(defun queue-parked (engine connection)
  "What REQUEUE-CONNECTION does where ENGINE does not stop."
  (give-up-unread connection)
  (queue-events engine (list (connection-token connection))))
