(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; Connections whose answers come later: their service has returned :DEFERRED.
;;;;
;;;;   a thread that visits one finds it    and then
;;;;   parked                               owns it, and serves it itself: no worker has to wake
;;;;   owned                                leaves :ARRIVED: its owner serves it again before it parks
;;;;   closed                               does nothing
;;;;
;;;;   after that the connection            is
;;;;   waits for its next answer            parked as before
;;;;   may have a request to be read        queued: workers read, and resuming threads never do
;;;;   is done with                         queued, with its outcome: workers close it, since what a program wants
;;;;                                        done then may wait, or want a lock that the resuming thread has
;;;;   was parked as the engine stops       closed by STOP, which looks once more; by the resuming thread only where that
;;;;                                        has been
;;;;
;;;; A resuming thread is any thread, also one that does not know of connections.  So it is not
;;;; interrupted while it owns one, and nothing that it does waits for the peer.

(defmethod resume-connection ((engine ready-engine) connection)
  (as-owner (become-owner connection nil)
    (resume-owned engine connection)))

(defun resume-owned (engine connection)
  "Does what RESUME-CONNECTION does for CONNECTION, which the current thread owns, and which cannot
be interrupted."
  (let ((*worker* (worker-of engine))
        (*served-by-resuming-threads* (tally-served-by-resuming-threads (engine-tally engine)))
        (result nil))                   ; stays so when a program leaves it by a non-local exit
    (unwind-protect (setf result (serve-resumption engine connection))
      (end-resumption engine connection result))))

(defun end-resumption (engine connection result)
  "Does with CONNECTION, which the caller owns unless RESULT is :PARKED, what RESULT of
SERVE-RESUMPTION says; NIL after a non-local exit."
  (case result
    (:parked (end-resumed-too-late engine connection))
    (t (end-owned-resumption engine connection (or result (given-away-outcome connection) :broken)))))

(defun end-owned-resumption (engine connection outcome)
  "Does with CONNECTION, which the caller owns, what OUTCOME of its visit says."
  (cond ((eq outcome :again)
         (setf (connection-awaiting connection) :turn)
         (leave-to-worker engine connection))
        ((and (member outcome '(:close :broken)) (not (gone-p connection)))
         (leave-end-to-worker engine connection outcome))
        (t (end-service engine connection outcome))))

(defmethod resume-all-deferred ((engine ready-engine))
  (map-connections (lambda (connection)
                     ;; A marked owner looks again.  A connection whose owner left a moment ago
                     ;; has said by now whether it is deferred.
                     (as-owner (and (or (owned-p connection) (connection-deferred-p connection))
                                    (become-owner connection nil))
                       (requeue-connection engine connection)))
                   (engine-table engine)))

(defun serve-resumption (engine connection)
  "Does what a resuming thread can for CONNECTION, which it owns; returns what SERVE-ONCE does,
:AGAIN when there may be work for workers."
  (noting-failure (engine connection)
    (cond ((or (connection-lingering-p connection) (end-left-to-worker connection)) :again)
          ((connection-output connection)
           (let ((result (send-pending-output engine connection)))
             ;; Also where others have come meanwhile, what is left goes first.
             (if (and (eq result :again) (null (connection-output connection)))
                 (resume-and-send engine connection)
                 result)))
          (t (resume-and-send engine connection)))))

(defun resume-and-send (engine connection)
  "What SERVE-ONCE returns for CONNECTION, which has no output left, in a resuming thread; or of
sending what is left then."
  (let ((result (serve-once engine connection t)))
    (if (and (eq result :again) (connection-output connection))
        (send-pending-output engine connection)
        result)))
