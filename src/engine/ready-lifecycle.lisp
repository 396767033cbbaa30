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

(defmethod end-accepting ((engine ready-engine))
  (when (shiftf (engine-accepting-p engine) nil)
    (unwatch (engine-poller engine) (engine-listener-descriptor engine))
    (wake-listener (engine-listener engine) 0)))

(defmethod wake-workers ((engine ready-engine))
  (ring (engine-poller engine))
  (with-engine (engine)
    (bt:condition-notify (engine-bell engine))
    (dolist (worker (engine-benched engine))
      (bt:condition-notify (ready-worker-bell worker)))))

(defmethod end-input ((engine ready-engine) &rest states)
  (map-connections (lambda (connection)
                     (cond ((and (member (if (unfinished-p connection) :writing :idling)
                                         states)
                                 (claim-parked connection))
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
