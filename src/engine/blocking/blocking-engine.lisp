(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; The blocking engine: workers share ACCEPT, and the one that accepts serves.
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
;;;; workers are kept, overload (a connection waits in the queue or in the kernel) makes connections
;;;; end with their current request, and the sentinel ends idle ones.
;;;;
;;;; A connection that was accepted or taken off the queue is nobody else's to close or to count, so
;;;; a thread that is to be destroyed dies only where it says INTERRUPTIBLY: while it has no
;;;; connection, and while its connection is served, waited for or flushed, which
;;;; HANDLE-CONNECTION and CLOSE-CONNECTION survive.  The waits in between are short.

(defparameter *overload-idle-milliseconds* 250
  "Milliseconds for which a connection may be idle while others wait for a worker.")
(defstruct (blocking-engine (:include engine)
                            (:constructor make-blocking-engine
                                (service listener &key standby thread-limit accept-limit
                                                       (waiting-limit :half)))
                            (:conc-name engine-) (:copier nil))
  "The engine for every platform: blocking accepts and blocking reads.")

(setf (documentation 'make-blocking-engine 'function)
      "An engine for SERVICE on LISTENER, not started.  STANDBY workers, an integer above 0, may wait;
THREAD-LIMIT, an integer, may serve at a time, or any number when NIL; ACCEPT-LIMIT says what happens to
others: see ENGINE-ACCEPT-LIMIT; WAITING-LIMIT how many may wait for clients: see ENGINE-WAITING-LIMIT.")

;;; Taking a connection

(defun next-step (engine worker)
  "What WORKER, which has no connection, is to do: :ACCEPT, :END, or a queued connection to
serve."
  (with-engine (engine)
    (cond ((and (engine-queue engine)
                (not (eq (engine-phase engine) :stopping))
                (may-serve-p engine worker))
           (take-queued-connection engine worker))
          ((or (not (engine-accepting-p engine)) (enough-waiting-p engine worker))
           (retire worker)
           :end)
          (t
           (unless (eq (worker-state worker) :waiting)
             (set-worker-state worker :waiting)
             (bt:condition-notify (engine-changed engine)))
           :accept))))

(defun may-serve-p (engine worker)
  "True when WORKER, which has no connection, may serve one.  It may count as serving still, and then gives
its own place up; but the limit may be lower by now.  Under the lock."
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

(defun take-queued-connection (engine worker)
  "Makes WORKER the one that serves the oldest connection in the queue of ENGINE.  Under the lock."
  (prog1 (assign-connection worker (pop (engine-queue engine)))
    (when (unserved-queue-p engine)     ; another worker is missing as well
      (bt:condition-notify (engine-sentinel-wakeup engine)))))

(defmethod worker-needed-p ((engine blocking-engine))
  (or (unserved-queue-p engine)
      (and (engine-accepting-p engine)
           (zerop (standby-count engine)))))

(defun may-queue-p (engine)
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
           (assign-connection worker connection)
           (when (full-p engine)        ; the sentinel may rest
             (bt:condition-notify (engine-sentinel-wakeup engine)))
           (values :serve
                   (when (plusp (missing-workers engine)) (reserve-worker engine))))
          ((may-queue-p engine)
           (counter-add (engine-open-count engine) 1)
           (setf (engine-queue engine) (append (engine-queue engine) (list connection))
                 (engine-overloaded-p engine) t)
           :queued)
          (t
           (incf (engine-refused engine))
           :refused))))

(defun refuse-and-close (engine connection)
  (unwind-protect
       (handler-case (refuse (engine-service engine) connection)
         ((or error storage-condition) () (count-failure engine)))
    (close-unread (connection-handle connection))))

(defmethod acquire-resources ((engine blocking-engine))
  (prepare-listener (engine-listener engine)))

(defun accept-one (engine worker)
  "Waits for a connection.  Returns the one that WORKER is to serve, or NIL."
  (surviving-interrupts (engine))
  (let ((socket (accept-connection (engine-listener engine))))
    (when socket
      (let ((connection (if (integerp socket)
                            (make-connection nil :descriptor socket)
                            (make-connection socket))))
        (multiple-value-bind (decision sibling) (admit engine worker connection)
          (ecase decision
            (:serve
             (when sibling (launch sibling))
             connection)
            (:queued nil)
            (:refused (refuse-and-close engine connection) nil)
            (:late (close-socket socket) nil)))))))

;;; Its connections

(defmethod list-engine-connections ((engine blocking-engine))
  (append
   (loop for (connection . worker) in (worker-connections engine)
         collect (describe-connection connection
                                      (if (eq (worker-state worker) :keep-alive) :idle :active)
                                      worker))
   (loop for connection in (with-engine (engine) (copy-list (engine-queue engine)))
         collect (describe-connection connection :queued))))
