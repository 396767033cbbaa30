(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; The statistics of the ready engine, and its list of connections.

(defun writing-p (connection)
  "True if CONNECTION waits, without a worker, until its peer takes output."
  (and (connection-output connection)
       (not (owned-p connection))))

(defun count-without-worker (engine)
  "How many connections of ENGINE wait without a worker: for a request, for an answer that comes
later, and for a peer that is slow to take output.  Three values, counted in one walk: there may be
many."
  (let ((parked 0) (deferred 0) (writing 0))
    (declare (type fixnum parked deferred writing))
    (map-connections (lambda (connection)
                       (when (and (parked-p connection) (not (unfinished-p connection)))
                         (incf parked))
                       (when (eq :answer (connection-awaiting connection))
                         (incf deferred))
                       (when (writing-p connection)
                         (incf writing)))
                     (engine-table engine))
    (values parked deferred writing)))

;;; How long a ready connection waits for a worker, sampled at no cost to requests.  While no
;;; worker waits, the kernel alone knows when a connection became ready.  So a few times a second
;;; the sentinel wakes a worker then: the wakeup takes its place behind all that is ready.  One
;;; sample is under way at a time, so its slots have one writer: the sentinel, and then the worker
;;; that gets the wakeup.

(defun note-wait (engine microseconds)
  (setf (engine-latest-wait engine) microseconds)
  (note-duration (engine-waits engine) microseconds))

(defun sample-wait (engine)
  "Begins a sample, in the sentinel of ENGINE, or sends the one under way again: its worker may have
died."
  (cond ((and (zerop (engine-sampled-since engine)) (somebody-waits-p engine))
         (note-wait engine 0))
        (t
         (when (zerop (engine-sampled-since engine))
           (setf (engine-sampled-since engine) (microseconds)))
         (wake-one (engine-poller engine)))))

(defun sample-under-way (engine)
  "For how many microseconds a sample has been under way; 0 when none is."
  (let ((since (engine-sampled-since engine)))
    (if (zerop since) 0 (- (microseconds) since))))

(defun end-sample (engine)
  "Ends the sample under way, if any: the caller got the wakeup."
  (when (plusp (engine-sampled-since engine))
    (note-wait engine (sample-under-way engine))
    (setf (engine-sampled-since engine) 0)))

(defmethod parking-statistics ((engine ready-engine))
  (multiple-value-bind (parked deferred writing) (count-without-worker engine)
    (list :resumes (tally-resumes (engine-tally engine))
          :suspends (tally-suspends (engine-tally engine))
          :decisions (decision-counts (engine-decisions engine))
          :parked parked
          :deferred deferred
          :writing writing
          :ready-wait (/ (max (sample-under-way engine) (engine-latest-wait engine)) 1000000.0)
          :ready-waits (histogram (add-sheet (make-tally-sheet) (engine-waits engine))))))

(defmethod busy-seconds ((worker ready-worker))
  (if (zerop (ready-worker-stamp worker))
      0.0
      (/ (max 0 (- (milliseconds) (ready-worker-begun worker))) 1000.0)))

(defmethod worker-activity ((worker ready-worker))
  (let ((stamp (ready-worker-stamp worker)))
    (cond ((not (eq :active (worker-state worker))) (worker-state worker))
          ((zerop stamp) :waiting)
          ((= stamp (ready-worker-blocked-stamp worker)) :blocked)
          (t :serving))))

(defun ready-state (connection worker)
  (cond ((connection-linger-octets connection) :draining)
        (worker :active)
        ((connection-output connection) :writing)
        ((eq :turn (connection-awaiting connection)) :queued)
        ((eq :answer (connection-awaiting connection)) :deferred)
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
