(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; The blocking engine: workers share ACCEPT, and the worker that accepts a connection serves it.
;;;;
;;;;   a worker that ...           and finds that ...                    does this
;;;;   accepted a connection       no other worker waits, and one may    makes a sibling
;;;;   accepted a connection       as many serve as may                  queues or refuses it
;;;;   is done with a connection   a connection is queued, and fewer     takes it
;;;;                               serve than may
;;;;   is done with a connection   enough siblings wait                  ends
;;;;   is done with a connection   otherwise                             accepts again
;;;;
;;;; A connection keeps its worker between two requests.  If all workers are kept and a connection
;;;; waits in the queue or in the kernel, the engine is overloaded: connections end with their
;;;; current request, and the sentinel ends idle ones.
;;;;
;;;; No other thread can close or count a connection that a worker accepted or took off the queue.
;;;; So a thread that is to be destroyed dies only where it says INTERRUPTIBLY: while it has no
;;;; connection, and while its connection is served, waited for or flushed, which HANDLE-CONNECTION
;;;; and CLOSE-CONNECTION survive.  The waits in between are short.

(defparameter *overload-idle-milliseconds* 250
  "Milliseconds for which a connection may be idle while others wait for a worker.")

(defstruct (blocking-engine (:include engine) (:constructor %make-blocking-engine)
                            (:conc-name engine-) (:copier nil))
  "The engine for every platform: blocking accepts and blocking reads."
  (idle-seconds nil :type (or null real) :read-only t))

(defun make-blocking-engine (service listener &key standby thread-limit accept-limit
                                                (waiting-limit :half) idle-seconds)
  "An engine for SERVICE on LISTENER, not started.  STANDBY workers, an integer above 0, may wait;
THREAD-LIMIT, an integer, may serve at a time, or any number when NIL; ACCEPT-LIMIT says what
happens to others: see ENGINE-ACCEPT-LIMIT; WAITING-LIMIT, an integer above 0, how many may wait for
clients, or :HALF of the thread limit, or NIL for no limit; IDLE-SECONDS for how long connections
may idle, a real, or NIL for no limit."
  (%make-blocking-engine :service service :listener listener :standby standby
                         :thread-limit thread-limit :accept-limit accept-limit
                         :client-waits (make-client-waits :limit waiting-limit)
                         :idle-seconds idle-seconds))

;;; Taking a connection

(defun next-step (engine worker)
  "The next step of WORKER, which has no connection: :ACCEPT, :END, or a queued connection to
serve."
  (with-engine (engine)
    (cond ((and (engine-queue engine)
                (not (eq (engine-phase engine) :stopping))
                (may-serve-p engine worker))
           (take-queued-connection engine worker))
          ((or (not (accepting-p engine)) (enough-waiting-p engine worker))
           (retire worker)
           :end)
          (t
           (unless (eq (worker-state worker) :waiting)
             (set-worker-state worker :waiting)
             (bt:condition-notify (engine-changed engine)))
           :accept))))

(defun may-serve-p (engine worker)
  "True if WORKER, which has no connection, may serve one.  If it still counts as serving it
gives up its own place; but the limit may be lower by now.  Call it with the lock held."
  (let ((limit (engine-thread-limit engine))
        (own (if (eq (worker-state worker) :serving) 1 0)))
    (or (null limit) (< (- (busy-count engine) own) limit))))

(defun enough-waiting-p (engine worker)
  (>= (- (standby-count engine)
         (if (member (worker-state worker) '(:starting :waiting)) 1 0))
      (engine-standby engine)))

(defun assign-connection (worker connection)
  "Makes WORKER the one that serves CONNECTION, and returns it.  Under the lock."
  (setf (worker-connection worker) connection)
  (set-worker-state worker :serving)
  connection)

(defmethod milliseconds-queued ((engine blocking-engine) connection least)
  (declare (ignore least))
  (let ((descriptor (connection-descriptor connection)))
    (cond ((plusp (connection-served connection)) 0) ; it has a worker of its own
          ((minusp descriptor) (connection-queued connection))
          ;; It may have waited in the kernel, too.
          (t (or (quiet-milliseconds descriptor) (connection-queued connection))))))

(defun take-queued-connection (engine worker)
  "Makes WORKER the one that serves the oldest connection in the queue of ENGINE.  Under the lock."
  (let ((connection (pop (engine-queue engine))))
    (setf (connection-queued connection) (- (milliseconds) (connection-opened connection)))
    (when (unserved-queue-p engine)     ; another worker is missing as well
      (notify-sentinel engine))
    (assign-connection worker connection)))

(defmethod worker-needed-p ((engine blocking-engine))
  (or (unserved-queue-p engine)
      (and (accepting-p engine)
           (zerop (standby-count engine)))))

(defun may-queue-p (engine)
  "True if a connection of ENGINE, which serves as many as it may, is to wait for a worker."
  (let ((limit (engine-accept-limit engine)))
    ;; A worker that waited when the thread limit changed, or that drains, has accepted it.
    (cond ((eq limit :unlimited) t)
          (limit (< (open-count engine) limit)))))

(defun admit (engine worker connection &optional crowded-p)
  "Decides about CONNECTION, which WORKER accepted; CROWDED-P is true if its address has as many as
it may.  Returns :SERVE, :QUEUED, :REFUSED or :LATE, and a sibling to be launched or NIL."
  (with-engine (engine)
    (counter-add (tally-accepted (engine-tally engine)) 1)
    (setf (accept-trouble (engine-accept-state engine)) nil
          (accept-again-p (engine-accept-state engine)) nil)
    (cond ((not (serving-p engine)) :late)
          (crowded-p :refused)
          ((not (full-p engine))
           (counter-add (tally-open (engine-tally engine)) 1)
           (assign-connection worker connection)
           (when (full-p engine)        ; the sentinel may rest
             (notify-sentinel engine))
           (values :serve
                   (when (plusp (missing-workers engine)) (reserve-worker engine))))
          ((may-queue-p engine)
           (counter-add (tally-open (engine-tally engine)) 1)
           (setf (engine-queue engine) (append (engine-queue engine) (list connection))
                 (engine-overloaded-p engine) t)
           :queued)
          (t :refused))))

(defun refuse-and-close (engine connection reason)
  (unwind-protect (refuse-with-notice engine connection reason)
    (leave-address engine connection)
    (close-unread (connection-handle connection))))

(defmethod acquire-resources ((engine blocking-engine))
  (prepare-listener (engine-listener engine)))

(defun accept-one (engine worker)
  "Waits for a connection.  Returns the one that WORKER is to serve, or NIL."
  (let ((socket (accept-connection (engine-listener engine))))
    (when socket
      (let* ((connection (if (integerp socket)
                             (make-connection nil :descriptor socket)
                             (make-connection socket)))
             (crowded-p (not (enter-address engine connection))))
        (multiple-value-bind (decision sibling) (admit engine worker connection crowded-p)
          (ecase decision
            (:serve
             (when sibling (launch sibling))
             connection)
            (:queued nil)
            (:refused
             (refuse-and-close engine connection (if crowded-p :address :threads))
             nil)
            (:late
             (leave-address engine connection)
             (close-socket socket)
             nil)))))))

;;; Its connections

(defmethod list-engine-connections ((engine blocking-engine))
  (append
   (loop for (connection . worker) in (worker-connections engine)
         collect (describe-connection connection
                                      (if (eq (worker-state worker) :keep-alive) :idle :active)
                                      worker))
   (loop for connection in (with-engine (engine) (copy-list (engine-queue engine)))
         collect (describe-connection connection :queued))))

;;; The life of a worker: it accepts, and serves what it accepted

(defmethod accept-rest ((engine blocking-engine) seconds)
  ;; Its workers accept, and make siblings for it.
  (loop with left = (countdown seconds)
        while (and (accepting-p engine)
                   (pending-connection-p (engine-listener engine))
                   (plusp (funcall left)))
        do (await-kernel engine)))

(defun accept-or-back-off (engine worker)
  (handler-case (accept-one engine worker)
    (accept-failed (condition)
      (when (and (accepting-p engine)
                 ;; The trouble of one connection need not be that of the next.
                 (or (note-accept-trouble engine condition)
                     (not (typep condition 'network-trouble))))
        (wait-for-change engine *tick* (lambda () (not (accepting-p engine)))))
      nil)))

;;; Serving it

(defun next-request-p (engine worker connection)
  "Waits until CONNECTION has another request, or the end of its input."
  (and (with-engine (engine)
         (when (and (serving-p engine) (not (drain-over-p engine (milliseconds))))
           (set-worker-state worker :keep-alive)
           t))
       (prog1 (interruptibly
                (await-input (connection-handle connection)
                             :until (end-after (engine-idle-seconds engine))))
         (with-engine (engine)
           (set-worker-state worker :serving)))))

(defun serve-to-the-end (engine worker connection)
  "Serves the requests of CONNECTION; returns :CLOSE, :DETACHED or :BROKEN."
  (handler-case
      (loop for outcome = (progn (setf (connection-outcome connection) nil)
                                 (interruptibly (serve (engine-service engine) connection nil)))
            do (case outcome
                 (:next)
                 (:park (unless (next-request-p engine worker connection)
                          (return :close)))
                 (t (return outcome))))
    ((or error storage-condition) (condition)
      (count-failure engine)
      (log-message engine :error "Serving a connection failed: ~A" condition)
      (or (given-away-outcome connection) :close))))

(defun close-connection (engine connection orderly)
  "Closes CONNECTION; gently when it was served to an ORDERLY end."
  (let ((socket (connection-handle connection))
        (more-p nil))
    (unwind-protect (setf more-p (interruptibly (release-connection engine connection)))
      (if orderly
          (close-gently socket (and more-p (not (engine-overloaded-p engine))))
          (close-socket socket)))))

(defmethod close-orphaned-connection ((engine blocking-engine) connection)
  (with-engine (engine)
    (note-closed engine connection))
  (close-connection engine connection nil))

(defmethod detach ((engine blocking-engine) connection)
  (with-engine (engine)
    (when (eq connection (worker-connection *worker*))
      ;; From here on the sentinel does not touch the socket, so closing it is safe.
      (setf (worker-connection *worker*) nil)
      (note-closed engine connection))))

(defun handle-connection (engine worker connection)
  "Serves CONNECTION, which WORKER has taken up, and gives it up again."
  (let ((outcome nil))
    (unwind-protect-whole
        (setf outcome (serve-to-the-end engine worker connection))
      (detach engine connection)
      ;; It may have been given away before the service was left by a non-local exit.
      (unless (eq :detached (or outcome (given-away-outcome connection)))
        (close-connection engine connection (eq outcome :close))))))

(defun work-on (engine worker)
  "Does the next step of WORKER of ENGINE; NIL if it should end."
  (interruptibly)
  (let* ((step (next-step engine worker))
         (connection (case step
                       (:end nil)
                       (:accept (accept-or-back-off engine worker))
                       (t step))))
    (when connection
      (handle-connection engine worker connection))
    (not (eq step :end))))

(defmethod worker-loop ((engine blocking-engine) worker)
  (loop while (work-on engine worker)
        ;; A worker that waits must not keep the last connection alive.
        do (clear-stack)))

;;; Deadlines, which the sentinel looks at in each tick

(defun input-awaited-p (worker kind)
  "True if WORKER only waits for input, so that it can still tell its peer why its connection
ends because of KIND."
  (or (eq (worker-state worker) :keep-alive)
      (member kind '(:first-byte :head :idle))))

(defun end-connection (engine worker kind)
  "Ends the reads and writes of WORKER because of KIND.  The worker will notice, and release the
connection itself.  Call it with the lock held, so that the socket cannot be closed, and its
descriptor reused, meanwhile."
  (count-expired engine kind)
  (setf (connection-deadline (worker-connection worker)) nil)
  (shut-down (connection-handle (worker-connection worker))
             (if (input-awaited-p worker kind) :input :io)))

(defun end-overdue-connections (engine)
  "Ends the overdue connections of ENGINE.  A connection that is to be served at its deadline has
a worker, which looks after the time itself, and may be late.  Call it with the lock held."
  (loop with now = (milliseconds)
        for worker in (engine-workers engine)
        for connection = (worker-connection worker)
        when (and connection
                  (not (awaits-p connection :pause :deferred :handler))
                  (overdue-p connection now))
          do (end-connection engine worker (connection-deadline-kind connection))))

(defun late-handlers (engine)
  "The connections of ENGINE whose handlers have run for too long."
  (let ((now (milliseconds)))
    (with-engine (engine)
      (loop for worker in (engine-workers engine)
            for connection = (worker-connection worker)
            when (and connection
                      (awaits-p connection :handler)
                      (overdue-p connection now))
              collect connection))))

;;; Clients that are given up

(defmethod wake-from-client ((engine blocking-engine) connection direction)
  (with-engine (engine)
    (when (find connection (engine-workers engine) :key #'worker-connection)
      (shut-down (connection-handle connection) (if (eq :input direction) :input :io)))))

;;; Overload, and the end of a drain

(defun saturated-p (engine)
  (and (running-p engine)
       (full-p engine)
       (or (engine-queue engine)
           (pending-connection-p (engine-listener engine)))))

(defun idle-too-long-p (worker)
  (and (eq (worker-state worker) :keep-alive)
       (> (worker-milliseconds worker) *overload-idle-milliseconds*)))

(defun end-idle-connections (engine)
  "Ends the connections of ENGINE that are idle where its drain is over, or while others wait for a
worker.  Under the lock."
  (let ((drained-p (drain-over-p engine (milliseconds)))
        (overloaded-p (saturated-p engine)))
    (setf (engine-overloaded-p engine) (and overloaded-p t))
    (dolist (worker (engine-workers engine))
      (when (eq (worker-state worker) :keep-alive)
        (cond (drained-p
               (shut-down (connection-handle (worker-connection worker)) :input))
              ((and overloaded-p
                    (> (worker-milliseconds worker) *overload-idle-milliseconds*))
               (end-connection engine worker :evicted)))))))

;;; The pool's proof that it serves.  Workers take nothing but connections, so the timer thread
;;; looks at what they do.

(defparameter *proof-seconds* 1/10
  "How often the timer thread looks whether the pool serves, until it does.")

(defun free-worker-p (engine)
  "True if a worker of ENGINE waits for connections that it may serve, or for a client that is given
up once others wait."
  (with-engine (engine)
    (or (plusp (worker-count engine :keep-alive))
        (and (plusp (worker-count engine :waiting))
             (not (full-p engine))))))

(defmethod call-when-pool-serves ((engine blocking-engine) function)
  (let ((served (durations-counted (durations-of-requests engine))))
    (labels ((look ()
               (if (or (free-worker-p engine)
                       (< served (durations-counted (durations-of-requests engine))))
                   (funcall function)
                   (schedule engine *proof-seconds* #'look))))
      (schedule engine 0 #'look))))

;;; Its loop

(defun housekeep (engine)
  "The work of the sentinel of ENGINE at a tick."
  (with-engine (engine)
    (end-overdue-connections engine)
    (end-idle-connections engine))
  (dolist (connection (late-handlers engine))
    (time-out-handler (engine-service engine) connection))
  (maintain-pool engine)
  (when (timer-thread-needed-p engine)
    (start-timer-thread engine)))

(defun nothing-under-way-p (engine)
  "True when nothing that the sentinel looks after is under way.  Under the lock."
  (not (or (plusp (worker-count engine :starting :serving))
           (full-p engine)
           (engine-queue engine)
           (engine-overloaded-p engine)
           (thread-trouble-p engine)
           (not (running-p engine)))))

(defun wait-a-tick (engine)
  (rest-until-woken engine
                    (lambda () (if (nothing-under-way-p engine) *idle-tick* *tick*))
                    (lambda ()
                      (or (plusp (missing-workers engine))
                          (timer-thread-needed-p engine)))))

(defmethod sentinel-loop ((engine blocking-engine))
  (loop until (eq (engine-phase engine) :stopped)
        unless (call-surviving engine :housekeeping (lambda ()
                                                      (housekeep engine)
                                                      (clear-stack)
                                                      (wait-a-tick engine)))
          do (rest-until-woken engine *tick*)))
