(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; The life of a worker of the blocking engine: it accepts, and serves what it accepted.

(defun back-off (engine)
  "Waits for a tick, or until ENGINE accepts nothing more."
  (wait-for-change engine *tick* (lambda () (not (engine-accepting-p engine)))))

(defmethod accept-rest ((engine blocking-engine) seconds)
  ;; Its workers accept, and make siblings for it.
  (loop with left = (countdown seconds)
        while (and (engine-accepting-p engine)
                   (pending-connection-p (engine-listener engine))
                   (plusp (funcall left)))
        do (await-kernel engine)))

(defun accept-or-back-off (engine worker)
  (handler-case (accept-one engine worker)
    (accept-failed (condition)
      (when (and (engine-accepting-p engine)
                 ;; What befell one connection need not befall the next.
                 (or (note-accept-trouble engine condition)
                     (not (typep condition 'network-trouble))))
        (back-off engine))
      nil)))

;;; Serving it

(defun become-idle (engine worker)
  "True when WORKER may wait for another request of its connection."
  (with-engine (engine)
    (when (and (serving-p engine) (not (drain-over-p engine (milliseconds))))
      (set-worker-state worker :keep-alive)
      t)))

(defun next-request-p (engine worker connection)
  "Waits until CONNECTION has another request, or the end of its input."
  (let ((service (engine-service engine)))
    (or (input-buffered-p service connection)
        (and (become-idle engine worker)
             (prog1 (interruptibly
                      (await-input (connection-handle connection)
                                   :until (end-after (idle-seconds service))))
               (with-engine (engine)
                 (set-worker-state worker :serving)))))))

(defun call-service (engine connection)
  "What SERVE returns for CONNECTION."
  (setf (connection-outcome connection) nil)
  (interruptibly (serve (engine-service engine) connection)))

(defun serve-to-the-end (engine worker connection)
  "Serves the requests of CONNECTION; returns :CLOSE, :DETACHED or :BROKEN."
  (handler-case
      (loop for outcome = (call-service engine connection)
            unless (and (eq outcome :park) (next-request-p engine worker connection))
              return (if (eq outcome :park) :close outcome))
    ((or error storage-condition) (condition)
      (count-failure engine)
      (log-message engine :error "Serving a connection failed: ~A" condition)
      (or (given-away-outcome connection) :close))))

(defun close-connection (engine connection orderly)
  "Closes CONNECTION; gently when it was served to an ORDERLY end."
  (let ((socket (connection-handle connection)))
    (unwind-protect-whole
        (surviving-interrupts (engine)
          (release-connection engine connection))
      (if orderly
          (close-gently socket (expecting-more-p engine connection))
          (close-socket socket)))))

(defmethod close-orphaned-connection ((engine blocking-engine) connection)
  (with-engine (engine)
    (counter-add (engine-open-count engine) -1))
  (close-connection engine connection nil))

(defmethod detach ((engine blocking-engine) connection)
  (with-engine (engine)
    (when (eq connection (worker-connection *worker*))
      ;; From here on the sentinel does not touch the socket, so closing it is safe.
      (setf (worker-connection *worker*) nil)
      (counter-add (engine-open-count engine) -1))))

(defun handle-connection (engine worker connection)
  "Serves CONNECTION, which WORKER has taken up, and gives it up again."
  (let ((outcome nil))
    (unwind-protect-whole
        (setf outcome (serve-to-the-end engine worker connection))
      (detach engine connection)
      ;; It may have been given away before the service was left by a non-local exit.
      (unless (eq :detached (or outcome (given-away-outcome connection)))
        (close-connection engine connection (eq outcome :close))))))

(defun attend-interrupts (engine worker)
  "Lets come what was to interrupt WORKER of ENGINE, which has no connection.  That may last, so it does not count as one
that waits for a connection meanwhile; what it is next, NEXT-STEP says."
  (when (interrupt-pending-p)
    (with-engine (engine)
      (set-worker-state worker :serving)
      (bt:condition-notify (engine-sentinel-wakeup engine))))
  (surviving-interrupts (engine)
    (ensure-sentinel engine)))

(defun work-on (engine worker)
  "Does what WORKER of ENGINE is to do next; NIL when it should end."
  (attend-interrupts engine worker)
  (let* ((step (next-step engine worker))
         (connection (case step
                       (:end nil)
                       (:accept (accept-or-back-off engine worker))
                       (t step))))
    (when connection
      (handle-connection engine worker connection))
    (not (eq step :end))))

(defmethod worker-loop ((engine blocking-engine) worker)
  (deferring-interrupts
    (loop while (work-on engine worker)
          ;; Who waits for a connection keeps nothing of the last one alive.
          do (clear-stack))))
