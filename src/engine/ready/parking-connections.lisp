(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; How the owner of a connection gives it up.
;;;;
;;;;   it wants                                       and calls
;;;;   a worker, when more input has come             PARK, or LEAVE-TO-POLLER without a deadline
;;;;   a worker, if input has come since it last      PARK-AGAIN
;;;;   looked
;;;;   a worker in any case, after what is ready      REQUEUE-CONNECTION
;;;;   the same, in a resuming thread                 LEAVE-TO-WORKER
;;;;
;;;; A stop ends the connections that are parked when it looks.  A thread that parks one later ends
;;;; it itself.

(defun park (engine connection)
  "Parks CONNECTION, which the caller owns, until the kernel reports more input.  Returns
:PARKED; or :AGAIN if more has come already, or :BROKEN if it cannot be watched.  In these two
cases the caller still owns it."
  (unless (connection-deadline connection)
    (let ((pool (engine-pool-state engine)))
      (set-deadline-in connection (if (zerop (connection-served connection)) :first-byte :idle)
                       (pool-state-idle pool) (coarse-now pool))))
  (leave-to-poller engine connection))

(defun leave-to-poller (engine connection)
  "Parks CONNECTION as PARK does, without a deadline.  The poller watches it from now on."
  ;; Watch it before another thread can own it: that owner could close the descriptor, and the
  ;; next connection might have the same number.
  (setf (connection-untouched connection) :parked)
  (cond ((not (or (connection-watched connection)
                  (watch-connection engine connection)))
         :broken)
        ((give-up-ownership connection) :parked)
        (t :again)))

(defun watch-connection (engine connection)
  "Has the kernel report events of CONNECTION, which the caller owns.  NIL if the kernel refuses."
  (let ((result (with-send-queue ((connection-queue connection))
                  (watch-under-lock engine connection))))
    (cond ((zerop result)
           (setf (engine-watch-trouble-p engine) nil)
           t)
          (t
           (count-failure engine)
           (unless (shiftf (engine-watch-trouble-p engine) t)
             (log-message engine :error
                          "Connections cannot wait without a thread, and are closed: ~A."
                          (error-text (- result))))
           nil))))

(defun watch-under-lock (engine connection)
  "Has the poller of ENGINE watch CONNECTION for input; for output too if some waits.  Returns 0 or
minus an error number."
  (let ((both-p (and (connection-output connection) t))
        (descriptor (connection-descriptor connection))
        (token (connection-token connection)))
    (ecase (connection-watched connection)
      (:both 0)
      (:input (when both-p
                (setf (connection-watched connection) :both)
                ;; An event comes if it takes more by now.
                (rearm (engine-poller engine) descriptor token t))
       0)
      ((nil)
       (let ((result (watch (engine-poller engine) descriptor token both-p)))
         (when (zerop result)
           (setf (connection-watched connection) (if both-p :both :input)))
         result)))))

(defun park-again (engine connection)
  "Parks CONNECTION, which the caller owns and has not served."
  (if (give-up-ownership connection)
      (end-if-parked-too-late engine connection)
      (requeue-connection engine connection)))

;;; For the next free worker

(defun requeue-connection (engine connection)
  "Parks CONNECTION, which the caller owns and must not serve now, for the next free worker."
  (queue-parked engine connection)
  (end-if-parked-too-late engine connection))

(defun queue-parked (engine connection)
  "Parks CONNECTION and queues its token, for an engine that does not stop."
  (give-up-unread connection)
  (queue-events engine (list (connection-token connection))))

(defun give-up-unread (connection)
  "Parks CONNECTION, which the caller owns, without reading its input.  The caller may have got
its events, or gets them here.  So the next owner looks at the socket even if it finds a request
in a buffer."
  (setf (connection-input connection) :missed)
  (loop until (give-up-ownership connection)))

(defun leave-to-worker (engine connection)
  "Has a worker serve CONNECTION, which the caller, a resuming thread, owns."
  (queue-parked engine connection)
  (end-resumed-too-late engine connection))

(defun leave-end-to-worker (engine connection outcome)
  "Has a worker end CONNECTION, which the caller owns, as OUTCOME says, :CLOSE or :BROKEN."
  (setf (connection-outcome connection) outcome)
  (leave-to-worker engine connection))

;;; Too late

(defun end-if-parked-too-late (engine connection)
  "Ends CONNECTION, which the caller has parked, if ENGINE stops and has looked for parked
connections already."
  (unless (serving-p engine)
    (as-owner (claim-parked connection)
      (drop-connection engine connection))))

(defun end-resumed-too-late (engine connection)
  "Ends CONNECTION, which a resuming thread has parked, if ENGINE has stopped for good.  Until
then the stop ends it, because a resuming thread should not."
  (when (eq :stopped (engine-phase engine))
    (end-if-parked-too-late engine connection)))

;;; Memory for input that waits

(defun unread-input-kept-p (engine connection)
  "True if the service of ENGINE has memory for the unserved input of CONNECTION."
  (handler-case (keep-unread-input (engine-service engine) engine connection)
    ((or error storage-condition) ()
      (count-failure engine)
      nil)))
