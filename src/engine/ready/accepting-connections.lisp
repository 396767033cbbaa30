(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; How connections come into the ready engine.
;;;;
;;;; The poller is edge-triggered: the listener makes one event when connections come.  So the
;;;; worker that gets the event makes sure that all of them are accepted:
;;;;
;;;;   after it accepted one, it finds          and before it serves that, it
;;;;   a worker waits                           arms the listener anew: if a second connection is
;;;;                                            there, that worker gets an event
;;;;   no worker waits                          queues the listener, first: behind connections that
;;;;                                            never pause, one would be accepted in each round
;;;;   it has taken many events off the queue   arms the listener anew: that event comes after all
;;;;   since it asked the poller                that is ready now
;;;;
;;;; To accept all connections first, and park them, would cost two system calls more for each, and
;;;; most often another processor than the one that has the connection in its cache.

(defun accept-connections (engine worker)
  "Accepts a connection and serves it in WORKER, since its request has most often come already.
The table above says what happens to the connections that came with it."
  (multiple-value-bind (connection more-p) (take-connection engine t)
    (when more-p
      (if (or (somebody-waits-p engine) (>= (worker-taken worker) +turn+))
          (rearm-listener engine)
          (queue-events engine (list (engine-listener-descriptor engine)) t)))
    (when connection
      (serve-connection engine worker connection))))

(defun rearm-listener (engine)
  "Makes another event of the listener of ENGINE if connections wait there.  The sentinel does so at
each look, whatever kept connections from being accepted."
  (let ((listener (engine-listener-descriptor engine)))
    (rearm (engine-poller engine) listener listener)))

(defun take-connection (engine worker-p)
  "Accepts a connection, which the caller owns; returns NIL if there is none, or it was refused.
WORKER-P is true if a worker may serve it.  The second value is true if there may be more
connections, which the poller will not report."
  (multiple-value-bind (descriptor peer) (accept-descriptor (engine-listener-descriptor engine))
    (when (minusp descriptor)
      (let ((kind (accept-error-kind (- descriptor))))
        (cond ((eq :none kind)
               (forget-trouble engine :accept))
              (t
               (when (engine-accepting-p engine)
                 (note-trouble engine :accept
                               (make-condition 'accept-failed :cause (error-text (- descriptor)))))
               (when (and (eq :exhausted kind) (evict-for-descriptor engine))
                 (rearm-listener engine)))) ; behind the ends that are left to workers
        (return-from take-connection nil)))
    (let ((connection (make-connection nil :descriptor descriptor :peer peer :parkable-p t))
          (limit (engine-accept-limit engine))) ; of those that are served, or wait for a worker
      (setf (send-queue-arm (connection-queue connection))
            (lambda () (watch-under-lock engine connection t)))
      (enter-connection (engine-table engine) connection)
      (counter-add (engine-accepted engine) 1)
      (counter-add (engine-open engine) 1)
      (let ((reason (cond ((not (enter-address engine connection)) :address)
                          ((or worker-p (eq :unlimited limit)) nil)
                          ((or (null limit) (> (connection-count engine :active :queued) limit))
                           :threads))))
        (when reason
          (refuse-with-notice engine connection reason)
          (finish-connection engine connection :close))
        (values (unless reason connection) t)))))

(defun accept-overflow (engine)
  "Accepts connections when no worker may, only to refuse or queue them, if connections are limited,
or would be reset with the listener of ENGINE, which drains.  The sentinel calls this."
  (when (and (engine-accepting-p engine)
             (not (and (eq (engine-accept-limit engine) :unlimited) (running-p engine)))
             (with-engine (engine)
               (not (or (room-p engine) (plusp (standby-count engine))))))
    (loop repeat +turn+
          for (connection more-p) = (multiple-value-list (take-connection engine nil))
          when connection
            do (requeue-connection engine connection)
          while more-p
          finally (rearm-listener engine))))
