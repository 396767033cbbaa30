(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; The statistics of the ready engine, and its list of connections.

(defun writing-p (connection)
  "True if CONNECTION waits, without a worker, until its peer takes output."
  (and (connection-output connection)
       (not (owned-p connection))))

(defmethod parking-statistics ((engine ready-engine))
  (let ((probe (engine-probe engine)))
    (list :resumes (tally-resumes (engine-tally engine))
          :suspends (tally-suspends (engine-tally engine))
          :decisions (decision-counts (engine-decisions engine))
          :parked (length (parked-connections (engine-table engine)))
          :deferred (count-connections #'connection-deferred-p engine)
          :writing (count-connections #'writing-p engine)
          :ready-wait (probe-wait probe)
          :ready-waits (histogram (add-sheet (make-tally-sheet) (probe-waits probe))))))

(defmethod busy-seconds ((worker ready-worker))
  (if (zerop (ready-worker-stamp worker))
      0.0
      (/ (max 0 (- (milliseconds) (ready-worker-begun worker))) 1000.0)))

(defun ready-state (connection worker)
  (cond ((connection-lingering-p connection) :draining)
        (worker :active)
        ((connection-output connection) :writing)
        ((connection-turn-over-p connection) :queued)
        ((connection-deferred-p connection) :deferred)
        ((zerop (connection-served connection)) :new)
        (t :parked)))

(defmethod list-engine-connections ((engine ready-engine))
  (let ((workers (worker-connections engine))
        (plists '()))
    (map-connections (lambda (connection)
                       (let ((worker (cdr (assoc connection workers))))
                         (push (describe-connection connection
                                                    (ready-state connection worker) worker)
                               plists)))
                     (engine-table engine))
    plists))
