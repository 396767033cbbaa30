(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; How a connection ends if its peer may lose the last answer.
;;;;
;;;; A descriptor that is closed with unread input resets its peer, which may then lose the answer
;;;; (RFC 9112, section 9.6).  Input that comes later has the same effect.  So if the peer has sent
;;;; more than was read, or may, the engine ends its own half only.  It drops the input until the
;;;; peer ends, *LINGER-SECONDS* have passed, or +LINGER-OCTETS+ have come.

(defparameter *linger-seconds* 1
  "A connection may take this long to end after its last answer.")

(defconstant +linger-octets+ (* 64 1024 1024)
  "At most this number of octets is dropped after the last answer.")

(defconstant +linger-turn+ 16
  "A worker drops +MOST-DROPPED+ octets this often before it turns to other connections.")

(defun close-gracefully (engine connection)
  "Closes CONNECTION, whose last answer was sent; gently if its peer has sent more than was read,
or may."
  (if (or (and (release-owned engine connection)
               (not (read-closed-p connection)))
          (unread-p connection))
      (progn (begin-to-linger connection (coarse-now (engine-pool-state engine)))
             (linger engine connection))
      (close-owned engine connection)))

(defun unread-p (connection)
  "True if CONNECTION has more input than was read.  Drops one octet of it."
  (not (or (and (connection-watched connection) ; then all of it is known to have been read
                (not (arrived-p connection))
                (eq :read (connection-input connection)))
           (<= (drop-octets (connection-descriptor connection) 1) 0))))

(defun begin-to-linger (connection now)
  "Ends our half of CONNECTION, which the caller owns: nothing more will be sent."
  (shut-descriptor (connection-descriptor connection) :output)
  (setf (connection-linger-octets connection) +linger-octets+)
  (set-deadline connection :linger *linger-seconds* now))

(defun drop-arrivals (connection)
  "Drops the input of CONNECTION, which lingers.  Returns :END at its end, :NONE if there is no
more now, :SOME if there may be."
  (loop repeat +linger-turn+
        for count = (drop-octets (connection-descriptor connection) +most-dropped+)
        do (cond ((would-block-p count) (return :none))
                 ((not (plusp count)) (return :end))
                 ((minusp (decf (connection-linger-octets connection) count)) (return :end)))
        finally (return :some)))

(defun linger (engine connection)
  "Drops the input of CONNECTION, which the caller owns.  Closes it at its end, else parks it."
  (loop
    (let ((arrivals (drop-arrivals connection)))
      ;; The sentinel cannot enforce the deadline while the connection has an owner again and again.
      (when (or (eq :end arrivals) (overdue-p connection (milliseconds)))
        (return (close-owned engine connection)))
      (when (eq :some arrivals)
        (return (requeue-connection engine connection)))
      (ecase (park engine connection)
        (:parked (return (end-if-parked-too-late engine connection)))
        (:broken (return (close-owned engine connection)))
        (:again)))))
