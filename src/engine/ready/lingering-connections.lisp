(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; How connections end whose peers may lose the last answer.
;;;;
;;;; A descriptor that is closed with unread input resets its peer, who may then lose the answer (RFC
;;;; 9112, section 9.6), and so does one to which something comes later.  So where the peer has sent
;;;; more than was read, or may, only our half is ended, and the rest dropped until the peer ends,
;;;; *LINGER-SECONDS* have passed, or +LINGER-OCTETS+ have come.

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
