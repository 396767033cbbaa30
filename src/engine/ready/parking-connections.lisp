(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; How the owner of a connection gives it up.
;;;;
;;;;   it wants                                    and calls
;;;;   a worker, when more has come                PARK, or LEAVE-TO-POLLER, which sets no deadline
;;;;   a worker, since it has not looked           PARK-AGAIN: only if an event has come since
;;;;   a worker in any case, behind what is ready  REQUEUE-CONNECTION
;;;;   the same, as a resuming thread              LEAVE-TO-WORKER
;;;;
;;;; STOP ends what is parked when it looks; whoever parks later ends the connection.

(defun park (engine connection)
  "Makes CONNECTION, which the caller owns, nobody's, until the kernel reports that more of it has
come.  Returns :PARKED; :AGAIN when that is so already, and :BROKEN when it cannot be watched: it is
the caller's still."
  (unless (connection-deadline connection)
    (let ((pool (engine-pool-state engine)))
      (set-deadline-in connection (if (zerop (connection-served connection)) :first-byte :idle)
                       (pool-state-idle pool) (coarse-now pool))))
  (leave-to-poller engine connection))

(defun leave-to-poller (engine connection &optional (interest :input))
  "What PARK does, without a deadline.  INTEREST, :INPUT or :BOTH, is for what CONNECTION is watched
from now on unless it is already."
  ;; Watch it before another thread can own it: that owner could close the descriptor, and the
  ;; next connection might have the same number.
  (setf (connection-untouched connection) :parked)
  (cond ((not (or (connection-watched connection)
                  (watch-connection engine connection interest)))
         :broken)
        ((give-up-ownership connection) :parked)
        (t :again)))

(defun watch-connection (engine connection interest)
  "Has the kernel report events of CONNECTION, which the caller owns, of INTEREST, :INPUT or :BOTH.
NIL when it refuses."
  (let ((result (watch (engine-poller engine) (connection-descriptor connection)
                       (connection-token connection) (eq :both interest))))
    (cond ((zerop result)
           (when (engine-watch-trouble-p engine)
             (setf (engine-watch-trouble-p engine) nil))
           (setf (connection-watched connection) interest))
          (t
           (count-failure engine)
           (unless (shiftf (engine-watch-trouble-p engine) t)
             (log-message engine :error "Connections cannot wait without a thread, and are closed: ~A."
                          (error-text (- result))))
           nil))))

(defun park-again (engine connection)
  "Parks CONNECTION, which the caller owns and has not served."
  (if (give-up-ownership connection)
      (end-if-parked-too-late engine connection)
      (requeue-connection engine connection)))

;;; For whoever is free next

(defun requeue-connection (engine connection)
  "Parks CONNECTION, which the caller owns and must not serve now, for whoever is free next."
  (queue-parked engine connection)
  (end-if-parked-too-late engine connection))

(defun queue-parked (engine connection)
  "What REQUEUE-CONNECTION does where ENGINE does not stop."
  (give-up-unread connection)
  (queue-events engine (list (connection-token connection))))

(defun give-up-unread (connection)
  "Parks CONNECTION, which the caller owns, and whose events the caller may have got, or gets here,
without reading what has come: whoever owns it next may have a request in a buffer, and would not
look for more."
  (setf (connection-input connection) :missed)
  (loop until (give-up-ownership connection)))

(defun leave-to-worker (engine connection)
  "Has a worker see to CONNECTION, which the caller, a resuming thread, owns."
  (queue-parked engine connection)
  (end-resumed-too-late engine connection))

(defun leave-end-to-worker (engine connection outcome)
  "Has a worker do with CONNECTION, which the caller owns, what OUTCOME says, :CLOSE or :BROKEN."
  (setf (connection-outcome connection) outcome)
  (leave-to-worker engine connection))

;;; Too late

(defun end-if-parked-too-late (engine connection)
  "STOP ends what is parked when it looks; what is parked later must see to itself."
  (unless (serving-p engine)
    (as-owner (claim-parked connection)
      (drop-connection engine connection))))

(defun end-resumed-too-late (engine connection)
  "Ends CONNECTION, which a resuming thread has parked, if ENGINE has stopped, so that nobody else
will: STOP ends what is parked when it looks last, and a resuming thread had better not."
  (when (eq :stopped (engine-phase engine))
    (end-if-parked-too-late engine connection)))

;;; Memory for what waits

(defun unread-input-kept-p (engine connection)
  "True when the service of ENGINE has memory for what it has of CONNECTION and has not served."
  (handler-case (keep-unread-input (engine-service engine) engine connection)
    ((or error storage-condition) ()
      (count-failure engine)
      nil)))
