(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; How the owner of a connection serves it, until it is parked, closed or given away, or its turn
;;;; is over.
;;;;
;;;;   SERVE-CONNECTION   serves once, and again as long as there is more to do
;;;;   SERVE-ONCE         calls the service
;;;;   SETTLE-OUTCOME     acts on the outcome: sends, serves again, or parks
;;;;   END-SERVICE        does the rest after the last time

(defconstant +turn+ 16
  "The number of requests of one connection that a worker serves before other events have their
turn.  So a client that never pauses does not keep its worker, nor timers and other clients
waiting.")

;;; Output that a peer takes slowly: no worker waits for it.  Input that comes meanwhile stays in
;;; the socket, so a peer that sends requests and reads no answers blocks its own sending.  The
;;; poller reports input once, perhaps to a thread that only tries to send.  So after the last octet
;;; was taken the service reads everything again, as if an event had come.

(defun send-pending-output (engine connection)
  "Sends the output that CONNECTION, which the caller owns, has left.  Returns :AGAIN if there is
more to do for it, else :PARKED, :CLOSE or :BROKEN."
  (let ((queue (connection-queue connection)))
    (cond ((flush-queue queue) :broken)
          ((null (send-queue-parts queue))
           (if (and (not (eq :close (connection-outcome connection))) (serving-p engine))
               :again
               :close))
          ((unread-input-kept-p engine connection)
           (setf (connection-deadline connection) nil)
           (prog1 (leave-to-poller engine connection)
             (make-room-for-output engine queue)))
          (t :broken))))

(defmacro noting-failure ((engine connection) &body body)
  "The value of BODY, which serves CONNECTION of ENGINE as SERVE-ONCE does; after an error, the
value that SERVE-ONCE should return."
  `(handler-case (progn ,@body)
     ((or error storage-condition) (condition)
       (count-failure ,engine)
       (log-message ,engine :error "Serving a connection failed: ~A" condition)
       (failed-outcome ,connection))))

(defun failed-outcome (connection)
  "The value of SERVE-ONCE for CONNECTION after an error.  Output that its service has left is
still sent."
  (cond ((given-away-outcome connection))
        ((and (connection-output connection)
              (not (eq :close (connection-outcome connection))))
         (setf (connection-outcome connection) :close)
         :again)
        (t :close)))

(defun serve-connection (engine worker connection)
  "Serves CONNECTION, which WORKER owns, until it is parked, closed or given away, or its turn is
over."
  (let ((outcome nil))                  ; stays so after a non-local exit
    (setf (worker-connection worker) connection)
    (unwind-protect
         (setf outcome
               (loop repeat +turn+
                     for result = (noting-failure (engine connection)
                                    (cond ((end-left-to-worker connection))
                                          ((dead-p (connection-queue connection)) :broken)
                                          ((connection-output connection)
                                           (send-pending-output engine connection))
                                          (t
                                           (serve-once engine connection))))
                     unless (eq result :again)
                       return result
                     finally (return :later)))
      (setf (worker-connection worker) nil)
      (end-service engine connection outcome))))

(defun serve-once (engine connection &optional resuming-p)
  "Has the service of ENGINE serve CONNECTION, which the caller owns, once; RESUMING-P is as for
SERVE.  Returns :AGAIN if there is more to do for CONNECTION, :LATER if that is to be done after
other events; :PARKED if it was parked; or :CLOSE, :DETACHED or :BROKEN, which END-SERVICE
carries out."
  (setf (connection-deadline connection) nil)
  (order-writes)                        ; see OWNER-MAY-WAIT-P
  (setf (connection-untouched connection) nil
        (connection-outcome connection) nil
        (connection-awaiting connection) nil)
  (let* ((served (connection-served connection))
         (service (engine-service engine))
         (outcome (if resuming-p
                      (serve service connection t)
                      (interruptibly (serve service connection nil)))))
    (if outcome
        (settle-outcome engine connection outcome served)
        :again)))

(defun settle-outcome (engine connection outcome served)
  "Acts on OUTCOME, which the service returned for CONNECTION, owned by the caller.  SERVED, an
integer, counts its requests from before.  Returns a value like SERVE-ONCE."
  (when (eq outcome :deferred)
    (heed-deadline engine connection))
  (cond ((gone-p connection) :detached)
        ((eq outcome :broken) :broken)
        ((connection-output connection)
         ;; The connection is served again anyway once all of this is sent.
         (setf (connection-input connection) :missed
               (connection-outcome connection) (case outcome
                                                 (:again :deferred)
                                                 (:next :park)
                                                 (t outcome)))
         :again)
        (t
         (when (and (eq outcome :next) (eql served (connection-served connection)))
           ;; To call it again would change nothing, so it is parked, and has a deadline.
           (with-engine (engine)
             (incf (tally-stalls (engine-tally engine))))
           (setf outcome :park))
         (ecase outcome
           (:park (settle-served engine connection))
           (:next :again)
           (:deferred
            (setf (connection-awaiting connection) :answer)
            (leave-to-poller engine connection))
           (:again :later)
           ((:close :detached) outcome)))))

(defun settle-served (engine connection)
  "Parks or ends CONNECTION, which the caller owns, after its input was served as far as it was
read.  Returns a value like SERVE-ONCE."
  ;; Read once: an event that is reported afterwards leaves :ARRIVED.
  (let ((ownership (connection-ownership connection)))
    (cond ((ownership-test ownership :arrived)
           (give-up-ownership connection) ; in vain: but then it is not :ARRIVED any more
           :again)
          ;; The kernel reported this end already; no further event will come.
          ((or (ownership-test ownership :read-closed) (not (serving-p engine))) :close)
          (t (park engine connection)))))

(defmethod milliseconds-queued ((engine ready-engine) connection least)
  "Trusts the samples only where the kernel does not know when the input came."
  (let ((under-way (floor (sample-under-way engine) 1000)))
    (if (<= least (max under-way (floor (engine-latest-wait engine) 1000)))
        (or (quiet-milliseconds (connection-descriptor connection))
            under-way)
        0)))

(defun end-service (engine connection outcome)
  "Carries OUTCOME out for CONNECTION, which the caller owns unless OUTCOME is :PARKED; NIL
stands for a non-local exit."
  (cond ((eq outcome :parked)
         (end-if-parked-too-late engine connection))
        ((eq outcome :later)
         (queue-for-next-turn engine connection))
        ((gone-p connection))           ; it was given away before its service was done with it
        (t
         (ecase (or outcome (given-away-outcome connection))
           (:detached (detach engine connection))
           (:close (close-gracefully engine connection))
           (:broken (abort-connection engine connection))
           ((nil) (drop-connection engine connection))))))

(defun queue-for-next-turn (engine connection)
  "Queues CONNECTION, which the current thread owns, and which has more input than a turn is for,
behind all that is ready."
  (let ((worker (worker-of engine)))
    (when worker                        ; it asks the poller first
      (setf (ready-worker-taken worker) +event-batch+)))
  (cond ((unread-input-kept-p engine connection)
         (setf (connection-awaiting connection) :turn)
         (requeue-connection engine connection))
        (t
         (close-gracefully engine connection))))
