(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; How workers come and go, the sentinel that makes them, and how many may wait for clients.

(defun set-worker-state (worker state)
  "Changes WORKER to STATE.  Under the lock."
  (setf (worker-state worker) state
        (worker-since worker) (milliseconds)))

(defgeneric spare-room (engine)
  (:documentation "How many more workers ENGINE may have: below 0 where it has too many, NIL for no
limit.")
  (:method ((engine engine))
    (let ((limit (engine-thread-limit engine)))
      (and limit (- limit (pool-size engine))))))

(defun room-p (engine)
  "True when the pool of ENGINE may grow."
  (plusp (or (spare-room engine) 1)))

(defun full-p (engine)
  "True when as many connections of ENGINE are attended as may be."
  (let ((limit (engine-thread-limit engine)))
    (and limit (>= (busy-count engine) limit))))

(defgeneric worker-needed-p (engine)
  (:documentation "True when ENGINE should make another worker at once.  Under the lock.")
  (:method ((engine engine))
    nil))                               ; the sentinel of the ready engine adds workers

(defun worker-missing-p (engine)
  "True if ENGINE should make a worker now.  Under the lock."
  (and (serving-p engine)
       (not (engine-launch-failed-p engine))
       (or (worker-needed-p engine)
           (and (room-p engine)
                (engine-accepting-p engine)
                (< (pool-size engine) (engine-standby engine))))))

(defun retire (worker)
  "Takes WORKER out of its pool.  Under the lock; does nothing the second time."
  (unless (eq (worker-state worker) :ended)
    (let ((engine (worker-engine worker)))
      (set-worker-state worker :ended)
      (map-into (engine-served-before engine) #'+
                (engine-served-before engine) (worker-durations worker))
      ;; Other threads read the list without the lock, so the list itself never changes.
      (setf (engine-workers engine) (remove worker (engine-workers engine)))
      (bt:condition-notify (engine-changed engine))
      (when (worker-missing-p engine)
        (notify-sentinel engine)))))

(defun run-worker (worker)
  "The life of WORKER in its own thread, from here to its end, however that comes."
  (let ((engine (worker-engine worker))
        (*worker* worker))
    (setf (worker-thread worker) (bt:current-thread))
    (unwind-protect-whole
        (call-as-worker (engine-service engine)
                        (lambda ()
                          (handler-case (uninterruptibly (worker-loop engine worker))
                            (serious-condition (condition) ; of an interrupt
                              (count-failure engine)
                              (log-message engine :error "A thread ends, and is replaced: ~A"
                                           condition)))))
      (clear-stack)                     ; another thread may get it
      (with-engine (engine)
        (retire worker)))))

(defun make-workers (engine needed-p &optional (most most-positive-fixnum))
  "Makes up to MOST workers of ENGINE, while NEEDED-P, a function of that, is true under the lock.
A worker counts as :STARTING before its thread exists.  If no thread can be made, the sentinel tries
again.  Never call it with the lock held."
  (loop repeat most
        while (let ((worker (with-engine (engine)
                              (when (and (serving-p engine)
                                         (not (engine-launch-failed-p engine))
                                         (funcall needed-p engine))
                                (let ((worker (make-worker engine (incf (engine-made engine)))))
                                  (push worker (engine-workers engine))
                                  worker)))))
                (and worker
                     (or (thread-made-p engine
                                        (lambda ()
                                          (make-engine-thread (engine-service engine)
                                                              (worker-number worker)
                                                              (lambda () (run-worker worker)))))
                         (with-engine (engine)
                           (retire worker)
                           nil))))))

(defun resize-pool (engine &key (standby (engine-standby engine))
                             (thread-limit (engine-thread-limit engine)))
  "Lets ENGINE keep STANDBY workers, an integer above 0, when there is nothing to do, and have up to
THREAD-LIMIT, an integer not below STANDBY or NIL for no limit: from now on."
  (with-engine (engine)
    (setf (engine-standby engine) standby
          (engine-thread-limit engine) thread-limit)
    (notify-sentinel engine)))

;;; The sentinel.  Each engine has one, a thread for work that no worker can do: it makes workers in
;;; place of those that died or could not be made, and ends connections whose time is over.

(defun run-sentinel (engine)
  "The life of the sentinel of ENGINE in its own thread.  Its last act is to release the resources
of ENGINE, once no worker is left."
  (unwind-protect
      (progn
        (with-engine (engine)
          (setf (engine-sentinel engine) (bt:current-thread))
          (bt:condition-notify (engine-changed engine)))
        (list-engine engine)
        (uninterruptibly
          ;; It heeds no interrupt, and SBCL's exit would wait a minute for that.
          (loop until (or (engine-stopped-p engine) (process-exits-p))
                do (handler-case (progn (look engine)
                                        (forget-trouble engine :sentinel))
                     (serious-condition (condition)
                       (note-trouble engine :sentinel condition "The sentinel failed: ~A")
                       (rest-until-woken engine *tick*))))
          (interruptibly (wait-for-change engine nil (lambda () (zerop (pool-size engine)))))
          (list-engine engine #'remove)
          (release-resources engine)))
    (with-engine (engine)
      (setf (engine-sentinel engine) nil))))

(defun rest-until-woken (engine period &optional (needed-p (constantly nil)))
  "Lets the sentinel of ENGINE wait until it is woken, for at most PERIOD, a number of seconds, a
real, or a function that returns it under the lock; not at all if ENGINE has stopped, or if
NEEDED-P, called with the lock held, is true."
  (interruptibly
    (bt:with-lock-held ((engine-lock engine))
      (unless (or (engine-stopped-p engine) (funcall needed-p))
        (wait-on (engine-sentinel-wakeup engine) (engine-lock engine)
                 (if (functionp period) (funcall period) period))))))

;;; Workers that wait for their clients, to send content or to take a reply.  Only half of the
;;; threads may, so that slow clients do not hold all of them.  When one worker more begins
;;; to wait, the client that a worker has waited for longest is given up: its connection is shut
;;; down; that worker wakes, and learns it.
;;;
;;; A fast client is never waited for long.  A connection between two requests does not count: it
;;; is parked.  In the blocking engine it keeps its thread, and is closed when other connections
;;; wait.

(defun wait-for-client (connection direction function)
  "Calls FUNCTION, which waits for the client of CONNECTION in DIRECTION, :INPUT or :OUTPUT.
Returns true unless that client was given up meanwhile, because workers wait for too many.  Threads
that are no workers wait without a limit, and so does a worker if CONNECTION is NIL."
  (unless (and *worker* connection)
    (funcall function)
    (return-from wait-for-client t))
  (let* ((engine (worker-engine *worker*))
         (threads (engine-thread-limit engine))
         (wait (cons connection direction))
         (longest nil)
         (waited-p nil))
    (unwind-protect
         (progn
           (with-engine (engine)
             (push wait (engine-client-waits engine))
             (when (and threads
                        (> (length (engine-client-waits engine)) (max 1 (floor threads 2))))
               (setf longest (first (last (engine-client-waits engine)))
                     (engine-client-waits engine) (butlast (engine-client-waits engine)))))
           (when longest
             (count-late engine (if (eq :input (cdr longest)) :body :write))
             (wake-from-client engine (car longest) (if (eq :input (cdr longest)) :input :io)))
           (funcall function))
      (with-engine (engine)
        (setf waited-p (find wait (engine-client-waits engine))
              (engine-client-waits engine) (delete wait (engine-client-waits engine)))))
    (and waited-p t)))
