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
;;;;   may have a request to be read        queued: workers read, and visitors never do
;;;;   is done with                         closed
;;;;
;;;; A visitor is any thread, also one that does not know of connections.  So it is not interrupted while it owns
;;;; one, and nothing that it does waits for the peer.

(defmethod visit-connection ((engine ready-engine) connection)
  (uninterruptibly
    (when (become-owner connection nil)
      (let ((*worker* (worker-of engine))
            (served (connection-served connection))
            (result nil))               ; stays so when a program leaves it by a non-local exit
        (unwind-protect (setf result (serve-visit engine connection))
          (unless *worker*
            (counter-add (engine-visitors-served engine) (- (connection-served connection) served)))
          (if (eq result :again)
              (requeue-connection engine connection)
              (end-service engine connection result)))))))

(defun worker-of (engine)
  "The worker of ENGINE whose thread this is; NIL in any other thread, a worker's of another engine included."
  (and *worker*
       (eq engine (worker-engine *worker*))
       *worker*))

(defun serve-visit (engine connection)
  "Does what a visitor can for CONNECTION, which it owns; returns what SERVE-ONCE does, :AGAIN when there may be
work for workers."
  (noting-failure (engine connection)
    (cond ((connection-lingering-p connection) :again)
          ((and (connection-output connection)
                (not-again (send-pending-output engine connection))))
          (t
           (let ((result (visit-once engine connection)))
             (if (and (eq result :again) (connection-output connection))
                 (send-pending-output engine connection)
                 result))))))

(defun not-again (result)
  "RESULT, as SERVE-ONCE returns it, but NIL for :AGAIN."
  (and (not (eq result :again)) result))

(defun visit-once (engine connection)
  "Has the service of ENGINE do for CONNECTION what its visitor wants; returns what SERVE-ONCE does."
  (begin-service connection)
  (let* ((served (connection-served connection))
         (outcome (serve-visitor (engine-service engine) connection)))
    (if outcome
        (settle-outcome engine connection outcome served)
        :again)))
