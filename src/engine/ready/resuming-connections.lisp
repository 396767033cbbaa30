(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; Connections that wait for a later answer: their service has returned :DEFERRED.
;;;;
;;;;   a resuming thread finds one   and then
;;;;   parked                        owns it and serves it itself, so that no worker has to wake
;;;;   owned                         leaves :ARRIVED: its owner serves it again before it parks
;;;;   closed                        does nothing
;;;;
;;;;   after that the connection     is
;;;;   waits for its next answer     parked as before
;;;;   may have a request            queued: workers read, and resuming threads never do
;;;;   has ended                     queued with its outcome: a worker closes it, because a program
;;;;                                 may then wait, or need a lock that the resuming thread holds
;;;;   was parked during a stop      closed by the stop, which looks once more; after that look, by
;;;;                                 the resuming thread
;;;;
;;;; Any thread may resume a connection, also one that knows nothing of connections.  So it cannot
;;;; be interrupted while it owns one, and never waits for the peer.

(defun resume-connection (engine connection)
  "Has CONNECTION of ENGINE, which waits since SERVE returned :DEFERRED and may be closed by now,
served for a resuming thread, which has an answer for it: see SERVE.  If no thread owns
CONNECTION, the current thread, which may be any, serves it; else its owner does so soon.  Does
nothing for a connection that keeps its worker, which the service lets wait.  Does not wait, and
does not signal; its value does not matter."
  (when (connection-parkable-p connection)
    (as-owner (become-owner connection nil)
      (resume-owned engine connection))))

(defun resume-owned (engine connection)
  "Resumes CONNECTION, which the current thread owns.  Interrupts are deferred."
  (let ((*worker* (worker-of engine))
        (*resuming-for* engine)
        (result nil))                   ; stays so after a non-local exit
    (unwind-protect (setf result (serve-resumption engine connection))
      (end-resumption engine connection result))))

(defun end-resumption (engine connection result)
  "Treats CONNECTION as RESULT of SERVE-RESUMPTION says; NIL stands for a non-local exit.  The
caller owns CONNECTION unless RESULT is :PARKED."
  (case result
    (:parked (end-resumed-too-late engine connection))
    (t (end-owned-resumption engine connection
                             (or result (given-away-outcome connection) :broken)))))

(defun end-owned-resumption (engine connection outcome)
  "Treats CONNECTION, which the caller owns, as OUTCOME says."
  (cond ((eq outcome :again)
         (setf (connection-awaiting connection) :turn)
         (leave-to-worker engine connection))
        ((and (member outcome '(:close :broken)) (not (gone-p connection)))
         (leave-end-to-worker engine connection outcome))
        (t (end-service engine connection outcome))))

(defmethod resume-all-deferred ((engine ready-engine))
  (map-connections (lambda (connection)
                     ;; An owner that finds :ARRIVED looks again.  If the owner has left a moment
                     ;; ago, AWAITING already shows whether the connection is deferred.
                     (as-owner (and (or (owned-p connection) (connection-deferred-p connection))
                                    (become-owner connection nil))
                       (requeue-connection engine connection)))
                   (engine-table engine)))

(defun serve-resumption (engine connection)
  "Does for CONNECTION, which the caller owns, as much as a resuming thread may.  Returns a value
like SERVE-ONCE; :AGAIN if there may be work for a worker."
  (noting-failure (engine connection)
    (cond ((or (connection-lingering-p connection) (end-left-to-worker connection)) :again)
          ((connection-output connection)
           (let ((result (send-pending-output engine connection)))
             ;; Output that is left goes first, also if more has come meanwhile.
             (if (and (eq result :again) (null (connection-output connection)))
                 (resume-and-send engine connection)
                 result)))
          (t (resume-and-send engine connection)))))

(defun resume-and-send (engine connection)
  "Has CONNECTION, which has no output left, served in a resuming thread, and sends the new
output.  Returns a value like SERVE-ONCE."
  (let ((result (serve-once engine connection t)))
    (if (and (eq result :again) (connection-output connection))
        (send-pending-output engine connection)
        result)))
