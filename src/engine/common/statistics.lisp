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

(defconstant +request-kinds+ 48
  "How many kinds of requests there are for the layer above: see COUNT-REQUEST.")

(defconstant +sheet-places+ 67          ; +BUCKETS+ + 2 + +REQUEST-KINDS+
  "How many places of a tally sheet are written.")

(deftype tally-sheet ()
  "The counts of the buckets, the sum of all durations in MICROSECONDS, the sum of all octets sent,
and the counts of the kinds of requests.  The rest of the vector is a cache line that nobody writes,
between this sheet and the next object in memory."
  `(simple-array (unsigned-byte 62) (,(+ +sheet-places+ 8))))

(defun make-tally-sheet ()
  (make-array (+ +sheet-places+ 8) :element-type '(unsigned-byte 62) :initial-element 0))

(defun note-duration (sheet duration)
  "Counts DURATION, in MICROSECONDS, on SHEET, which only the current thread writes.  A reader may
find it in the sum before it is counted, but not the other way round."
  (declare (type tally-sheet sheet) (type (unsigned-byte 62) duration))
  (incf (aref sheet +buckets+) duration)
  (incf (aref sheet (loop with bounds = *bucket-bounds*
                          for index of-type fixnum from 0 below (1- +buckets+)
                          when (<= duration (the (unsigned-byte 62) (svref bounds index)))
                            return index
                          finally (return (1- +buckets+))))))

(defun count-request (connection duration &optional (kind 0))
  "Counts a request of CONNECTION, which the current thread owns, as served in DURATION, an integer
in microseconds, by its worker.  KIND is an integer from 0 below 48, with a meaning for the layer
above."
  (declare (type (mod #.+request-kinds+) kind))
  (incf (connection-served connection))
  (let ((octets (shiftf (send-queue-sent (connection-queue connection)) 0)))
    (when *worker*
      (let ((sheet (worker-durations *worker*)))
        (declare (type tally-sheet sheet))
        (incf (aref sheet (+ +buckets+ 2 kind)))
        (incf (aref sheet (1+ +buckets+)) octets)
        (note-duration sheet duration)))))

(defun add-sheet (sheet other)
  "Adds the counts of the sheet OTHER to SHEET, and returns SHEET."
  (map-into sheet #'+ sheet other))

(defun durations-of-requests (engine)
  "How long the requests of ENGINE took: a fresh tally sheet."
  (let ((sheet (copy-seq (engine-served-before engine))))
    (dolist (worker (engine-workers engine) sheet)
      (add-sheet sheet (worker-durations worker)))))

(defun durations-counted (sheet)
  "How many durations SHEET has counted."
  (loop for index below +buckets+ sum (aref sheet index)))

(defun kinds-counted (sheet)
  "How many requests of each kind SHEET has counted, a vector."
  (subseq sheet (+ +buckets+ 2) +sheet-places+))

(defun histogram (sheet)
  "A plist for people of SHEET, which nobody writes any more: the :COUNT of durations, their :SUM in
seconds, and in :BUCKETS, a list, each bound in seconds and how many durations were not longer."
  (list :count (durations-counted sheet)
        :sum (/ (aref sheet +buckets+) 1000000d0)
        :buckets (loop for bound across *bucket-bounds*
                       for index from 0
                       sum (aref sheet index) into count
                       collect (/ bound 1000000.0)
                       collect count)))

;;; The statistics

(defparameter *statistics*
  '(:threads :standby :busy :keep-alive-waiting :suspended :made :ended :resumes :suspends
    :accepted :open :parked :deferred :writing :queued :refused :refused-by :expired :expired-by
    :failed :stalls :served :durations :replies :octets-sent
    :ready-wait :ready-waits :decisions :timers :memory :memory-limit :uptime)
  "The names of the statistics of ENGINE-STATISTICS, in order.")

(defun no-statistics ()
  "The statistics of an engine that has done nothing."
  (loop for name in *statistics*
        collect name
        collect (case name
                  (:refused-by (zeros *refusal-reasons*))
                  (:expired-by (zeros *deadline-kinds*))
                  (:timers (timer-statistics))
                  (:durations (histogram (make-tally-sheet)))
                  (:replies (kinds-counted (make-tally-sheet)))
                  ((:ready-wait :ready-waits :decisions :memory-limit) nil)
                  (t 0))))

(defgeneric parking-statistics (engine)
  (:documentation "A plist of those statistics of ENGINE that have to do with parked connections.
Not under the lock.")
  (:method ((engine engine))
    '()))

(defun counted-statistics (engine)
  "A plist of the counts under the lock of ENGINE, all of one moment."
  (flet ((sum (counts)
           (loop for (nil count) on counts by #'cddr sum count)))
    (with-engine (engine)
      (let ((durations (durations-of-requests engine)))
        (list :threads (pool-size engine)
              :standby (standby-count engine)
              :busy (busy-count engine)
              :keep-alive-waiting (worker-count engine :keep-alive)
              :suspended (worker-count engine :suspended)
              :made (engine-made engine)
              :ended (worker-count engine :ended)
              :accepted (counter-count (engine-accepted engine))
              :open (open-count engine)
              :queued (length (engine-queue engine))
              :refused (sum (engine-refused-by engine))
              :refused-by (copy-list (engine-refused-by engine))
              :expired (sum (engine-expired-by engine))
              :expired-by (copy-list (engine-expired-by engine))
              :failed (engine-failed engine)
              :stalls (engine-stalls engine)
              :served (durations-counted durations)
              :durations (histogram durations)
              :replies (kinds-counted durations)
              :octets-sent (+ (aref durations (1+ +buckets+))
                              (counter-count (engine-sent engine)))
              :uptime (if (engine-started engine)
                          (/ (- (or (engine-stopped engine) (milliseconds))
                                (engine-started engine))
                             1000.0)
                          0))))))

(defun engine-statistics (engine)
  "A plist of the statistics of ENGINE; *STATISTICS* lists their names.  :REPLIES is a vector of the
numbers of requests of each kind."
  (let ((known (append (counted-statistics engine) (parking-statistics engine)
                       (list :timers (timer-statistics (engine-timers engine))
                             :memory (client-memory-reserved)
                             :memory-limit (client-memory-budget))
                       (no-statistics))))
    (loop for name in *statistics* collect name collect (getf known name))))

;;; The list of its connections

(defun describe-connection (connection state &optional worker)
  "A plist about CONNECTION, which is in STATE, with WORKER where it has one."
  (let ((peer (handler-case
                  (multiple-value-bind (address port) (connection-peer-name connection)
                    (cond ((zerop port) address) ; of a Unix-domain socket
                          ((find #\: address) (format nil "[~A]:~D" address port))
                          (t (format nil "~A:~D" address port))))
                (error () nil))))       ; it is gone
    ;; Its owner may close it meanwhile: then the name may be that of another connection's peer.
    (list :peer (if (gone-p connection) nil peer)
          :state state
          :age (/ (- (milliseconds) (connection-opened connection)) 1000.0)
          :served (connection-served connection)
          :worker (and worker (worker-number worker))
          :seconds (and worker (busy-seconds worker)))))

(defgeneric list-engine-connections (engine)
  (:documentation "A list of plists, one for each open connection of ENGINE: :PEER, a string;
:STATE, :NEW before its first request, :ACTIVE while it is served, :IDLE or :PARKED between two
requests, with its worker or without, :DEFERRED while its answer is to come later, :WRITING while
its peer takes its time to take the answer, :QUEUED for a worker, :DRAINING after its last answer;
:AGE in seconds; requests :SERVED; the number of its :WORKER, and for how many :SECONDS that has
been at the request, or NIL.  Connections that come or go meanwhile may be missed."))

(defun worker-connections (engine)
  "An alist of the connections of ENGINE that have a worker, and these."
  (with-engine (engine)
    (loop for worker in (engine-workers engine)
          for connection = (worker-connection worker)
          when connection collect (cons connection worker))))

;;; The list of its workers

(defgeneric busy-seconds (worker)
  (:documentation "For how many seconds WORKER has been at its request.")
  (:method ((worker worker))
    (/ (worker-milliseconds worker) 1000.0)))

(defgeneric worker-activity (worker)
  (:documentation "What WORKER does, a keyword: :WAITING for something to do; :SERVING a request, or
calling the function of a timer; :BLOCKED, the same where the pool has found that its thread sleeps
or has computed for long; :KEEP-ALIVE, waiting for the next request of its connection; :SUSPENDED;
or :STARTING.")
  (:method ((worker worker))
    (worker-state worker)))

(defun list-workers (engine)
  "A list of plists, one for each worker of ENGINE, by number: its :NUMBER; its :ACTIVITY, a keyword
as WORKER-ACTIVITY returns it; for how many :SECONDS it has been at its request, or NIL; its :TASK,
as NOTE-TASK was told, or NIL; :CURRENT-P, true for the worker whose thread this is; and its
:THREAD.  The facts about one worker may be of different moments."
  (loop for worker in (sort (with-engine (engine) (copy-list (engine-workers engine)))
                            #'< :key #'worker-number)
        for activity = (worker-activity worker)
        for busy-p = (member activity '(:serving :blocked))
        unless (eq :ended activity)
          collect (list :number (worker-number worker)
                        :activity activity
                        :seconds (and busy-p (busy-seconds worker))
                        :task (and busy-p (worker-task worker))
                        :current-p (eq worker *worker*)
                        :thread (worker-thread worker))))
