(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; The portable engine: workers share ACCEPT, and the one that accepts serves.
;;;;
;;;;   a worker that ...           and finds that ...                    does
;;;;   accepted a connection       nobody else waits, and it may         makes a sibling
;;;;   accepted a connection       all that may serve do                 queues or refuses it
;;;;   is done with a connection   a connection is queued, and no more   takes it
;;;;                               serve than may
;;;;   is done with a connection   enough siblings wait                  ends
;;;;   is done with a connection   otherwise                             accepts again
;;;;
;;;; A connection keeps its worker between two requests.  So that nobody starves when all
;;;; workers are kept, a crowd (a queued connection, or one that the kernel holds for us)
;;;; makes connections end with their current request, and the sentinel ends idle ones.
;;;;
;;;; A connection that was accepted or taken off the queue is nobody else's to close or to count, so
;;;; a thread that is to be destroyed dies only where it says INTERRUPTIBLY: while it has no
;;;; connection, and while its connection is served, waited for or flushed, which ATTEND and DISPOSE
;;;; survive.  The waits in between are short.

(defparameter *grace* 250
  "Milliseconds for which a connection may be idle in a crowd.")

;;; MAKE-SHARING-ENGINE makes an engine for SERVICE on LISTENER, not started.  STANDBY workers may
;;; wait, THREAD-LIMIT may serve at a time, or any number when NIL; ACCEPT-LIMIT says what happens
;;; to others, see ENGINE-ACCEPT-LIMIT.

(defstruct (sharing-engine (:include engine)
                           (:constructor make-sharing-engine
                               (service listener &key standby thread-limit accept-limit))
                           (:conc-name engine-) (:copier nil))
  "The engine for every platform: blocking accepts and blocking reads.")

;;; Taking a connection

(defun next-step (engine worker)
  "What WORKER, which has no connection, is to do: :ACCEPT, :END, or a queued connection to
serve."
  (with-engine (engine)
    (cond ((and (engine-queue engine)
                (not (eq (engine-phase engine) :stopping))
                (may-serve-p engine worker))
           (take-from-queue engine worker))
          ((or (not (engine-accepting-p engine)) (enough-waiting-p engine worker))
           (retire worker)
           :end)
          (t
           (unless (eq (worker-state worker) :waiting)
             (move worker :waiting)
             (bt:condition-notify (engine-changed engine)))
           :accept))))

(defun may-serve-p (engine worker)
  "True when WORKER, which has no connection, may serve one.  It may count as serving still, and then gives
its own place up; but the limit may be lower by now.  Under the lock."
  (let ((limit (engine-thread-limit engine))
        (own (if (eq (worker-state worker) :serving) 1 0)))
    (or (null limit) (< (- (attended-count engine) own) limit))))

(defun enough-waiting-p (engine worker)
  (>= (- (coming-count engine)
         (if (member (worker-state worker) '(:starting :waiting)) 1 0))
      (engine-standby engine)))

(defun take-up (worker connection)
  "Makes WORKER the one that serves CONNECTION, and returns it.  Under the lock."
  (setf (worker-connection worker) connection)
  (move worker :serving)
  connection)

(defun take-from-queue (engine worker)
  "Makes WORKER the one that serves the oldest connection in the queue of ENGINE.  Under the lock."
  (prog1 (take-up worker (pop (engine-queue engine)))
    (when (unattended-queue-p engine)   ; another worker is missing as well
      (bt:condition-notify (engine-bell engine)))))

(defmethod short-handed-p ((engine sharing-engine))
  (or (unattended-queue-p engine)
      (and (engine-accepting-p engine)
           (zerop (coming-count engine)))))

(defun queue-p (engine)
  "True when a connection of ENGINE, as many of which are served as may be, is to wait for a worker."
  (let ((limit (engine-accept-limit engine)))
    (cond ((eq limit :unlimited) t)     ; accepted by who waited when the thread limit changed, or to drain
          (limit (< (open-count engine) limit)))))

(defun admit (engine worker connection)
  "Decides about CONNECTION, which WORKER accepted.  Returns :SERVE, :QUEUED, :REFUSED or
:LATE, and a sibling to be launched or NIL."
  (with-engine (engine)
    (counter-add (engine-accept-count engine) 1)
    (setf (engine-accept-trouble engine) nil
          (engine-accept-again-p engine) nil)
    (cond ((not (serving-p engine)) :late)
          ((not (full-p engine))
           (counter-add (engine-open-count engine) 1)
           (take-up worker connection)
           (when (full-p engine)        ; the sentinel may rest
             (bt:condition-notify (engine-bell engine)))
           (values :serve
                   (when (plusp (missing-workers engine)) (reserve-worker engine))))
          ((queue-p engine)
           (counter-add (engine-open-count engine) 1)
           (setf (engine-queue engine) (append (engine-queue engine) (list connection))
                 (engine-crowded-p engine) t)
           :queued)
          (t
           (incf (engine-refused engine))
           :refused))))

(defun turn-away (engine connection)
  (unwind-protect
       (handler-case (refuse (engine-service engine) connection)
         (error () (count-failure engine)))
    (close-socket (connection-socket connection))))

(defmethod open-doors ((engine sharing-engine))
  (prepare-listener (engine-listener engine)))

(defun accept-one (engine worker)
  "Waits for a connection.  Returns the one that WORKER is to serve, or NIL."
  (interruptibly)
  (let ((socket (accept-connection (engine-listener engine))))
    (when socket
      (let ((connection (make-connection socket)))
        (multiple-value-bind (decision sibling) (admit engine worker connection)
          (ecase decision
            (:serve
             (when sibling (launch sibling))
             connection)
            (:queued nil)
            (:refused (turn-away engine connection) nil)
            (:late (close-socket socket) nil)))))))

;;; When accepting fails

(defun note-accept-trouble (engine condition)
  "Notes CONDITION, unless one of its kind was noted already and lasts.  True when it lasts."
  (let ((lasts-p (with-engine (engine)
                   (incf (engine-failed engine))
                   (setf (engine-accept-again-p engine) (not (typep condition 'listener-closed)))
                   (when (typep condition 'descriptors-exhausted)
                     (setf (engine-crowded-p engine) t)) ; let descriptors go
                   (eq (type-of condition)
                       (shiftf (engine-accept-trouble engine) (type-of condition))))))
    (unless lasts-p
      (tell engine :error "~A" condition))
    lasts-p))

(defun forget-accept-trouble (engine)
  "ENGINE can accept again what comes."
  (with-engine (engine)
    (when (eq (engine-accept-trouble engine) 'descriptors-exhausted)
      (setf (engine-crowded-p engine) nil))
    (setf (engine-accept-trouble engine) nil
          (engine-accept-again-p engine) nil)))

(defun back-off (engine)
  "Waits for a tick, or until ENGINE stops."
  (bt:with-lock-held ((engine-lock engine))
    (when (engine-accepting-p engine)
      (wait-on (engine-changed engine) (engine-lock engine) *tick*)
      ;; Pass on what may have been meant for another who waits.
      (bt:condition-notify (engine-changed engine)))))

(defmethod accept-rest ((engine sharing-engine) seconds)
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
      (move worker :idling)
      t)))

(defun next-request-p (engine worker connection)
  "Waits until CONNECTION has another request, or the end of its input."
  (let ((service (engine-service engine)))
    (or (input-buffered-p service connection)
        (and (become-idle engine worker)
             (prog1 (interruptibly
                      (await-input (connection-socket connection)
                                   :until (end-after (idle-seconds service))))
               (with-engine (engine)
                 (move worker :serving)))))))

(defun serve-to-the-end (engine worker connection)
  "Serves the requests of CONNECTION; returns :CLOSE or :DETACHED."
  (handler-case
      (loop for outcome = (interruptibly (serve (engine-service engine) connection))
            unless (and (eq outcome :park) (next-request-p engine worker connection))
              return (if (eq outcome :park) :close outcome))
    (error (condition)
      (count-failure engine)
      (tell engine :error "Serving a connection failed: ~A" condition)
      (or (given-away-outcome connection) :close))))

(defun dispose (engine connection orderly)
  "Closes CONNECTION; gently when it was served to an ORDERLY end."
  (let ((socket (connection-socket connection)))
    (unwind-protect
         (interruptibly (let-go engine connection))
      (survive-cleanup)
      (if orderly
          (close-gently socket)
          (close-socket socket)))))

(defmethod give-up-connection ((engine sharing-engine) connection)
  (with-engine (engine)
    (counter-add (engine-open-count engine) -1))
  (dispose engine connection nil))

(defun attend (engine worker connection)
  "Serves CONNECTION, which WORKER has taken up, and gives it up again."
  (let ((outcome nil))
    (unwind-protect
         (setf outcome (serve-to-the-end engine worker connection))
      (survive-cleanup)
      ;; From here on the sentinel does not touch the socket, so closing it is safe.
      (with-engine (engine)
        (setf (worker-connection worker) nil)
        (counter-add (engine-open-count engine) -1))
      ;; It may have been given away before the service was left by a non-local exit.
      (unless (eq :detached (or outcome (given-away-outcome connection)))
        (dispose engine connection (eq outcome :close))))))

(defmethod work ((engine sharing-engine) worker)
  (deferring-interrupts
    (loop for step = (progn
                       (interruptibly (ensure-sentinel engine))
                       (next-step engine worker))
          for connection = (case step
                             (:end (return))
                             (:accept (accept-or-back-off engine worker))
                             (t step))
          when connection
            do (attend engine worker connection))))

;;; The crowd

(defun others-wait-p (engine)
  (and (running-p engine)
       (full-p engine)
       (or (engine-queue engine)
           (pending-connection-p (engine-listener engine)))))

(defun stale-p (worker)
  (and (eq (worker-state worker) :idling)
       (> (worker-milliseconds worker) *grace*)))

(defun end-drained-connections (engine)
  "Ends the connections of ENGINE that idle, when it has drained for long enough.  Under the lock."
  (when (drain-over-p engine (milliseconds))
    (dolist (worker (engine-workers engine))
      (when (eq (worker-state worker) :idling)
        (shut-down (connection-socket (worker-connection worker)) :input)))))

(defmethod tend ((engine sharing-engine))
  (end-drained-connections engine)
  (when (setf (engine-crowded-p engine) (and (others-wait-p engine) t))
    (dolist (worker (remove-if-not #'stale-p (engine-workers engine)))
      (end-connection engine worker :crowd))))
