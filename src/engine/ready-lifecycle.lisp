(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; How the ready engine starts and stops.

(defmethod open-doors ((engine ready-engine))
  (setf (pace-now (engine-pace engine)) (milliseconds)
        (pace-target (engine-pace engine)) (processor-count))
  (note-idle-seconds engine)
  (set-non-blocking (engine-listener-descriptor engine))
  (set-no-delay (engine-listener-descriptor engine)) ; what is accepted inherits it
  (watch (engine-poller engine) (engine-listener-descriptor engine)
         (engine-listener-descriptor engine)))

(defmethod wake-workers ((engine ready-engine))
  (unwatch (engine-poller engine) (engine-listener-descriptor engine))
  ;; Who comes now is refused by the system, or waits for others where the listener is theirs too.
  (wake-listener (engine-listener engine) 0)
  (ring (engine-poller engine))
  (with-engine (engine)
    (bt:condition-notify (engine-bell engine))
    (dolist (worker (engine-benched engine))
      (bt:condition-notify (ready-worker-bell worker)))))

(defmethod end-input ((engine ready-engine) &rest states)
  (map-connections (lambda (connection)
                     (cond ((and (member (if (unfinished-p connection) :writing :idling)
                                         states)
                                 (become-owner-if-parked connection))
                            (drop-connection engine connection))
                           ((member :serving states)
                            (call-while-expiring
                             connection
                             (lambda ()
                               (shut-descriptor (connection-descriptor connection) :input))))))
                   (engine-table engine)))

(defmethod close-doors ((engine ready-engine))
  (end-input engine :idling :writing)   ; whatever is left
  (close-status-descriptors engine)
  (close-poller (engine-poller engine)))

;;; A soft stop.  The workers have ended, or will with their requests, and wait for nothing more;
;;; so the sentinel is told in their place of those connections whose peers take their time.

(defparameter *finish-milliseconds* 50
  "How long the sentinel of an engine that drains waits for a peer before looking around.")

(defun finish-one (engine)
  "Waits a moment for a connection of ENGINE to be ready, and goes on with it.  What is no answer
under way is not begun any more."
  (let ((token (or (take-from-tray engine)
                   (await-ready (engine-poller engine) *finish-milliseconds*))))
    (cond ((eq token :bell)
           ;; It was rung for the workers.
           (if (somebody-waits-p engine)
               (nap *tick-microseconds*)
               (silence (engine-poller engine))))
          ((and (integerp token) (/= token (engine-listener-descriptor engine)))
           (let ((connection (own-connection engine token)))
             (cond ((null connection))
                   ((unfinished-p connection) (tend-connection engine nil connection))
                   (t (drop-connection engine connection))))
           (with-engine (engine)
             (bt:condition-notify (engine-changed engine)))))))

(defmethod await-end-of-work ((engine ready-engine) seconds)
  (wait-for-change engine seconds
                   (lambda ()
                     (and (zerop (pool-size engine))
                          (or (not (draining-p engine))
                              (zerop (count-connections #'unfinished-p engine)))))))
