(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; The blocking engine: workers share ACCEPT, and the worker that accepts a connection serves it.
;;;;
;;;;   a worker that ...           and finds that ...                    does this
;;;;   accepted a connection       no other worker waits, and one may    makes a sibling
;;;;   accepted a connection       as many serve as may                  queues or refuses it
;;;;   is done with a connection   a connection is queued, and fewer     takes it
;;;;                               serve than may
;;;;   is done with a connection   a timer is due, and no worker sees    calls the functions of due
;;;;                               to those                              timers
;;;;   is done with a connection   enough siblings wait                  ends
;;;;   is done with a connection   otherwise                             accepts again
;;;;
;;;; A connection keeps its worker between two requests.  If all workers are kept and a connection
;;;; waits in the queue or in the kernel, the engine is overloaded: connections end with their
;;;; current request, and idle ones a tick later.
;;;;
;;;; Workers that wait in ACCEPT cannot hear an alarm.  So when a timer is due, the sentinel makes
;;;; a worker for it, beyond the limit if need be.
;;;;
;;;; No other thread can close or count a connection that a worker accepted or took off the queue.
;;;; So a thread that is to be destroyed dies only where it says INTERRUPTIBLY: while it has no
;;;; connection, and while its connection is served, waited for or flushed, which HANDLE-CONNECTION
;;;; survives.  The waits in between are short.

(defstruct (blocking-engine (:include engine)
                            (:constructor make-blocking-engine
                                (service listener
                                 &key standby thread-limit accept-limit idle))
                            (:conc-name engine-) (:copier nil))
  "The engine for every platform: blocking accepts and blocking reads.")

(defmethod acquire-resources ((engine blocking-engine))
  (prepare-listener (engine-listener engine))
  (setf (timers-set-clock (engine-timers engine))
        (lambda (moment)
          (declare (ignore moment))     ; the sentinel reads it from the timers
          (with-engine (engine)
            (notify-sentinel engine)))))

(defmethod leave-listener ((engine blocking-engine))
  (wake-listener (engine-listener engine) (worker-count engine :waiting)))

;;; The life of a worker: it accepts, and serves what it accepted

(defmethod worker-loop ((engine blocking-engine) worker)
  (loop
    (interruptibly)
    (let ((step
            (with-engine (engine)
              (unless (eq :waiting (worker-state worker))
                (set-worker-state worker :starting)) ; it gives up its place
              (cond ((due-timers-wait-p engine)
                     (set-worker-state worker :active) ; it takes no connection's place
                     (setf (worker-stamp worker) (microseconds))
                     :timers)
                    ((and (engine-queue engine) (not (full-p engine)))
                     (assign-connection worker (pop (engine-queue engine))))
                    ((or (not (engine-accepting-p engine))
                         (minusp (or (spare-room engine) 0))
                         (> (standby-count engine) (engine-standby engine)))
                     (retire worker)
                     (return))
                    (t
                     (unless (eq :waiting (worker-state worker))
                       (set-worker-state worker :waiting)
                       (bt:condition-notify (engine-changed engine)))
                     :accept)))))
      (if (eq :timers step)
          (loop for function = (take-due-timer (engine-timers engine) (microseconds))
                while function
                do (run-timer engine function))
          (let ((connection (if (eq :accept step) (accept-one engine worker) step)))
            (when connection
              (handle-connection engine worker connection)))))
    (clear-stack)))                     ; a worker that waits must not keep the last one alive

(defun due-timers-wait-p (engine)
  "True if a timer of ENGINE is due, and no worker sees to that.  Under the lock."
  (let ((timers (engine-timers engine)))
    (and (timers-first timers)
         (<= (timers-alarm timers) (microseconds))
         (zerop (worker-count engine :active)))))

(defun assign-connection (worker connection)
  "Makes WORKER the one that serves CONNECTION, and returns it.  Under the lock."
  (setf (worker-connection worker) connection)
  (set-worker-state worker :serving)
  connection)

(defmethod spare-room ((engine blocking-engine))
  "One more while it needs a worker, besides those that may serve, that accepts connections only to
queue or to refuse them.  A draining engine does: connections that wait in the kernel would be reset
with the listener."
  (let ((room (call-next-method)))
    (if (and room
             (engine-accepting-p engine)
             (not (and (eq (engine-accept-limit engine) :unlimited) (running-p engine))))
        (1+ room)
        room)))

(defmethod worker-needed-p ((engine blocking-engine))
  (or (and (zerop (worker-count engine :starting)) ; else that sees to it first
           (due-timers-wait-p engine))
      (and (room-p engine)
           (engine-accepting-p engine)
           (zerop (standby-count engine)))))

(defun accept-one (engine worker)
  "Waits for a connection, and decides about it.  Returns it if WORKER is to serve it, else NIL."
  (let* ((socket (handler-case (accept-connection (engine-listener engine))
                   (accept-failed (condition)
                     (when (engine-accepting-p engine)
                       (note-trouble engine :accept condition)
                       (wait-for-change engine *tick*
                                        (lambda () (not (engine-accepting-p engine)))))
                     nil)))
         (connection (cond ((null socket) (return-from accept-one nil))
                           ((integerp socket) (make-connection nil :descriptor socket))
                           (t (make-connection socket))))
         (limit (engine-accept-limit engine))
         (reason nil))
    (counter-add (engine-accepted engine) 1)
    (counter-add (engine-open engine) 1)
    (forget-trouble engine :accept)
    (if (enter-address engine connection)
        (with-engine (engine)
          (cond ((not (serving-p engine))
                 (setf reason :stop))
                ((not (full-p engine))
                 (assign-connection worker connection))
                ;; A worker that waited when the thread limit changed, or that drains, may have
                ;; accepted it.
                ((or (eq :unlimited limit) (and limit (<= (open-count engine) limit)))
                 (setf (engine-queue engine) (append (engine-queue engine) (list connection))))
                (t
                 (setf reason :threads))))
        (setf reason :address))
    (when reason
      (unless (eq :stop reason)
        (refuse-with-notice engine connection reason))
      (note-closed engine connection)
      ;; Unread input would reset the connection, and the client might lose the answer.
      (close-gently (connection-handle connection) nil 0))
    (when (worker-connection worker)
      (make-workers engine #'worker-missing-p 1)
      connection)))

;;; Serving a connection

(defun handle-connection (engine worker connection)
  "Serves the requests of CONNECTION, which WORKER has taken up, and ends it, gently after an
orderly end, unless it was given away."
  (let ((outcome nil))                  ; stays so after a non-local exit
    (unwind-protect-whole
        (handler-case
            (loop
              (setf (connection-outcome connection) nil)
              (let ((next (interruptibly (serve (engine-service engine) connection))))
                (case next
                  (:next)
                  (:park
                   (unless (next-request-comes-p engine worker connection)
                     (return (setf outcome :close))))
                  (t (return (setf outcome next))))))
          ((or error storage-condition) (condition)
            (count-failure engine)
            (log-message engine :error "Serving a connection failed: ~A" condition)
            (setf outcome :close)))
      (detach engine connection)
      (let ((end (or (given-away-outcome connection) outcome))
            (socket (connection-handle connection))
            (more-p nil))
        (unless (eq :detached end)
          (unwind-protect (setf more-p (interruptibly (ask engine t #'release connection)))
            (if (eq :close end)
                (close-gently socket more-p)
                (close-socket socket))))))))

(defun next-request-comes-p (engine worker connection)
  "Waits until CONNECTION, which WORKER keeps, has another request, or the end of its input: true
then.  NIL when it is to end, since it idles for too long, or others wait, or the engine stops."
  (with-engine (engine)
    (set-worker-state worker :keep-alive))
  (prog1 (loop with end = (and (engine-idle engine) (+ (milliseconds) (engine-idle engine)))
               for until = (earlier end (end-after *tick*))
               while (serving-p engine)
                 thereis (interruptibly
                           (await-input (connection-handle connection) :until until))
               do (when (engine-overloaded-p engine)
                    (count-late engine :evicted)
                    (return nil))
               until (or (eql until end) (drain-over-p engine until)))
    (with-engine (engine)
      (set-worker-state worker :serving))))

(defmethod detach ((engine blocking-engine) connection)
  ;; From here on the sentinel does not touch the socket, so closing it is safe.
  (when (eq connection (with-engine (engine)
                         (shiftf (worker-connection *worker*) nil)))
    (note-closed engine connection)))

(defmethod map-open-connections (function (engine blocking-engine))
  (dolist (worker (engine-workers engine))
    (let ((connection (worker-connection worker)))
      (when connection
        (funcall function connection
                 (if (eq (worker-state worker) :keep-alive) :idle :active)))))
  (dolist (connection (engine-queue engine))
    (funcall function connection :queued)))

;;; The sentinel.  Under the lock no socket can be closed, nor its descriptor reused: a worker that
;;; learns of the end releases its connection itself.

(defmethod look ((engine blocking-engine))
  "Ends the connections of ENGINE that are overdue, and does what else is due at a tick."
  (let ((now (milliseconds))
        (late '()))                     ; those whose handlers have run for too long
    (with-engine (engine)
      (setf (engine-overloaded-p engine)
            (and (running-p engine)
                 (or (getf (engine-troubles engine) :accept)
                     (and (full-p engine)
                          (or (engine-queue engine)
                              (pending-connection-p (engine-listener engine)))))))
      (dolist (worker (engine-workers engine))
        (let ((connection (worker-connection worker)))
          (when (and connection (overdue-p connection now))
            (cond ((awaits-p connection :handler)
                   (push connection late))
                  ;; One that is to be served at its deadline has a worker, which looks after the
                  ;; time itself, and may be late.
                  ((not (awaits-p connection :deferred))
                   (incf (getf (engine-expired-by engine) (connection-deadline-kind connection) 0))
                   (setf (connection-deadline connection) nil)
                   (shut-down (connection-handle connection) (direction-to-end connection))))))))
    (dolist (connection late)
      (time-out-handler (engine-service engine) connection)))
  (setf (engine-launch-failed-p engine) nil)
  (make-workers engine #'worker-missing-p)
  (clear-stack)
  (rest-until-woken engine
                    (lambda ()
                      (let ((alarm (- (timers-alarm (engine-timers engine)) (microseconds))))
                        (if (plusp alarm) (min *tick* (/ alarm 1000000)) *tick*)))
                    (lambda () (worker-missing-p engine))))

(defmethod end-input ((engine blocking-engine))
  (with-engine (engine)
    (dolist (worker (engine-workers engine))
      (when (worker-connection worker)
        (shut-down (connection-handle (worker-connection worker)) :input)))))

(defmethod wake-from-client ((engine blocking-engine) connection direction)
  (with-engine (engine)
    (when (find connection (engine-workers engine) :key #'worker-connection)
      (shut-down (connection-handle connection) direction))))
