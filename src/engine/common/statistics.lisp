(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; What an engine counts, and its lists of connections and workers, for people.
;;;;
;;;; A TALLY-SHEET counts durations by their length.  Each worker has one of its own: so a request
;;;; takes no lock, and writes to no cache line that another processor writes to.  A reader adds the
;;;; sheets up.  The number of durations comes from the same counts, so both always agree.

(declaim (type simple-vector *bucket-bounds*))
(defparameter *bucket-bounds*
  (vector 100 250 500 1000 2500 5000 10000 25000 50000 100000 250000 500000
          1000000 2500000 5000000 10000000)
  "The upper bounds of the buckets of all histograms, in MICROSECONDS.  One more bucket counts what
takes longer.")

(defconstant +buckets+ 17
  "How many buckets a histogram has.")

(defconstant +sheet-places+ 25          ; +BUCKETS+, 2, and 6 kinds of requests: see COUNT-REQUEST
  "How many places of a tally sheet are written.")

(deftype tally-sheet ()
  "The counts of the buckets, the sum of all durations in MICROSECONDS, the sum of all octets sent,
and the counts of the kinds of requests.  The rest of the vector is a cache line that nobody writes,
between this sheet and the next object in memory."
  `(simple-array (unsigned-byte 62) (,(+ +sheet-places+ 8))))

(defun make-tally-sheet ()
  (make-array (+ +sheet-places+ 8) :element-type '(unsigned-byte 62) :initial-element 0))

(defun count-request (connection duration &optional (kind 0))
  "Counts a request of CONNECTION, which the current thread owns, as served in DURATION, an integer
in microseconds, by its worker.  KIND is an integer from 0 below 6, with a meaning for the layer
above."
  (declare (type (mod 6) kind) (type (unsigned-byte 62) duration))
  (incf (connection-served connection))
  (let* ((queue (connection-queue connection))
         (octets (- (send-queue-sent queue)
                    (shiftf (send-queue-counted queue) (send-queue-sent queue)))))
    (when *worker*
      (let ((sheet (worker-durations *worker*)))
        (declare (type tally-sheet sheet))
        (incf (aref sheet (+ +buckets+ 2 kind)))
        (incf (aref sheet (1+ +buckets+)) octets)
        ;; A reader may find it in the sum before it is counted, but not the other way round.
        (incf (aref sheet +buckets+) duration)
        (incf (aref sheet (loop with bounds = *bucket-bounds* ; POSITION takes ten times as long
                                for index of-type fixnum from 0 below (1- +buckets+)
                                when (<= duration (the (unsigned-byte 62) (svref bounds index)))
                                  return index
                                finally (return (1- +buckets+)))))))))

;;; The connections and the statistics

(defgeneric map-open-connections (function engine)
  (:documentation "Calls FUNCTION with each open connection of ENGINE and its state, a keyword as
LIST-ENGINE-CONNECTIONS has them.  It may miss some that come or go meanwhile."))

(defun connection-count (engine &rest states)
  "How many open connections of ENGINE are in one of STATES."
  (let ((count 0))
    (map-open-connections (lambda (connection state)
                            (declare (ignore connection))
                            (when (member state states)
                              (incf count)))
                          engine)
    count))

(defun list-engine-connections (engine)
  "A list of plists, one for each open connection of ENGINE: :PEER, a string; :STATE, :NEW before
its first request, :ACTIVE while it is served, :IDLE or :PARKED between two requests, with its
worker or without, :DEFERRED while its answer is to come later, :WRITING while its peer takes its
time to take the answer, :QUEUED for a worker, :DRAINING after its last answer; :AGE in seconds;
requests :SERVED; the number of its :WORKER, and for how many :SECONDS that has been at the request,
or NIL.  Connections that come or go meanwhile may be missed."
  (let ((plists '()))
    (map-open-connections
     (lambda (connection state)
       (let ((worker (find connection (engine-workers engine) :key #'worker-connection))
             (peer (handler-case
                       (multiple-value-bind (address port) (connection-peer-name connection)
                         (cond ((zerop port) address) ; of a Unix-domain socket
                               ((find #\: address) (format nil "[~A]:~D" address port))
                               (t (format nil "~A:~D" address port))))
                     (error () nil))))  ; it is gone
         (push (list :peer peer
                     :state state
                     :age (/ (- (milliseconds) (connection-opened connection)) 1000.0)
                     :served (connection-served connection)
                     :worker (and worker (worker-number worker))
                     :seconds (and worker (nth-value 1 (worker-activity worker))))
               plists)))
     engine)
    plists))

(defun engine-statistics (engine)
  "A plist of the statistics of ENGINE, or of none for NIL.  :REPLIES is a vector of the numbers of
requests of each kind; docs/guide/operating.md explains the others."
  (let ((engine (or engine (make-blocking-engine nil nil))))
    (flet ((sum (counts)
             (loop for (nil count) on counts by #'cddr sum count)))
      (append
       (with-engine (engine)            ; so these counts are all of one moment
         (let* ((sheet (reduce (lambda (sheet worker)
                                 (map-into sheet #'+ sheet (worker-durations worker)))
                               (engine-workers engine)
                               :initial-value (copy-seq (engine-served-before engine))))
                (served (reduce #'+ sheet :end +buckets+)))
           (list :threads (pool-size engine)
                 :standby (standby-count engine)
                 :busy (busy-count engine)
                 :keep-alive-waiting (worker-count engine :keep-alive)
                 :suspended (worker-count engine :suspended)
                 :made (engine-made engine)
                 :ended (- (engine-made engine) (pool-size engine))
                 :accepted (counter-count (engine-accepted engine))
                 :open (open-count engine)
                 :refused (sum (engine-refused-by engine))
                 :refused-by (copy-list (engine-refused-by engine))
                 :expired (sum (engine-expired-by engine))
                 :expired-by (copy-list (engine-expired-by engine))
                 :failed (engine-failed engine)
                 :served served
                 :durations (list :count served
                                  :sum (/ (aref sheet +buckets+) 1000000d0)
                                  :buckets (loop for bound across *bucket-bounds*
                                                 for index from 0
                                                 sum (aref sheet index) into count
                                                 collect (/ bound 1000000.0)
                                                 collect count))
                 :replies (subseq sheet (+ +buckets+ 2) +sheet-places+)
                 :octets-sent (+ (aref sheet (1+ +buckets+))
                                 (counter-count (engine-sent engine))))))
       (list :parked (connection-count engine :new :parked)
             :deferred (connection-count engine :deferred)
             :writing (connection-count engine :writing)
             :queued (connection-count engine :queued)
             :timers (let ((timers (engine-timers engine)))
                       (list :pending (timers-pending timers)
                             :run (timers-run timers)
                             :failed (timers-failed timers)))
             :memory (client-memory-reserved)
             :memory-limit (client-memory-budget)
             :uptime (if (engine-started engine)
                         (/ (- (milliseconds) (engine-started engine)) 1000.0)
                         0))))))

;;; The list of its workers

(defun worker-activity (worker)
  "What WORKER does, a keyword: :WAITING for something to do; :SERVING a request, or calling the
function of a timer; :BLOCKED, the same where the pool has found that its thread sleeps or has
computed for long; :KEEP-ALIVE, waiting for the next request of its connection; :SUSPENDED; or
:STARTING.  The second value is for how many seconds, if that is known."
  (let ((state (worker-state worker)) (stamp (worker-stamp worker)))
    (cond ((not (eq :active state)) (values state (/ (worker-milliseconds worker) 1000.0)))
          ((zerop stamp) :waiting)
          (t (values (if (= stamp (worker-blocked-stamp worker)) :blocked :serving)
                     (/ (- (microseconds) stamp) 1000000.0))))))

(defun list-workers (engine)
  "A list of plists, one for each worker of ENGINE: its :NUMBER; its :ACTIVITY, a keyword as
WORKER-ACTIVITY returns it; for how many :SECONDS it has been at its request, or NIL; its :TASK, as
NOTE-TASK was told, or NIL; :CURRENT-P, true for the worker whose thread this is; and its :THREAD.
The facts about one worker may be of different moments."
  (loop for worker in (engine-workers engine)
        collect (multiple-value-bind (activity seconds) (worker-activity worker)
                  (let ((busy-p (member activity '(:serving :blocked))))
                    (list :number (worker-number worker)
                          :activity activity
                          :seconds (and busy-p seconds)
                          :task (worker-task worker)
                          :current-p (eq worker *worker*)
                          :thread (worker-thread worker))))))
