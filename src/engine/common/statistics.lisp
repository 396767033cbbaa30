(in-package #:hunchentoot-recycling-taskmaster.engine)

(defun durations-of-requests (engine)
  "How long the requests of ENGINE took: a fresh tally sheet."
  (let ((sheet (copy-seq (tally-served-before (engine-tally engine)))))
    (dolist (worker (engine-workers engine) sheet)
      (add-sheet sheet (worker-durations worker)))))

(defun note-request-elsewhere (engine duration kind octets)
  "Counts a request of ENGINE that no worker has served, as NOTE-REQUEST does."
  (with-engine (engine)
    (note-request (tally-served-before (engine-tally engine)) duration kind octets)))

(defun uptime (engine)
  "Seconds from the start of ENGINE to its stop or to now."
  (let ((tally (engine-tally engine)))
    (if (tally-started tally)
        (/ (- (or (tally-stopped tally) (milliseconds)) (tally-started tally)) 1000.0)
        0)))

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
                  (:timers (no-timer-statistics))
                  (:durations (histogram (make-tally-sheet)))
                  (:replies (kinds-counted (make-tally-sheet)))
                  ((:ready-wait :ready-waits :decisions :memory-limit) nil)
                  (t 0))))

(defgeneric parking-statistics (engine)
  (:documentation "A plist of those statistics of ENGINE that have to do with parked connections.
Not under the lock.")
  (:method ((engine engine))
    '()))

(defun sum-of-counts (counts)
  "The sum of the numbers in COUNTS, a plist."
  (loop for (nil count) on counts by #'cddr sum count))

(defun counted-statistics (engine)
  "A plist of the counts under the lock of ENGINE, all of one moment."
  (with-engine (engine)
    (let ((tally (engine-tally engine))
          (durations (durations-of-requests engine)))
      (list :threads (pool-size engine)
            :standby (standby-count engine)
            :busy (busy-count engine)
            :keep-alive-waiting (worker-count engine :keep-alive)
            :suspended (worker-count engine :suspended)
            :made (tally-made tally)
            :ended (worker-count engine :ended)
            :accepted (counter-count (tally-accepted tally))
            :open (open-count engine)
            :queued (length (engine-queue engine))
            :refused (sum-of-counts (tally-refused-by tally))
            :refused-by (copy-list (tally-refused-by tally))
            :expired (sum-of-counts (tally-expired-by tally))
            :expired-by (copy-list (tally-expired-by tally))
            :failed (tally-failed tally)
            :stalls (tally-stalls tally)
            :served (durations-counted durations)
            :durations (histogram durations)
            :replies (kinds-counted durations)
            :octets-sent (+ (octets-counted durations) (counter-count (tally-sent tally)))
            :uptime (uptime engine)))))

(defun engine-statistics (engine)
  "A plist of the statistics of ENGINE; *STATISTICS* lists their names.  :REPLIES is a vector of the
numbers of requests of each kind."
  (let ((known (append (counted-statistics engine) (parking-statistics engine)
                       (list :timers (timer-statistics (engine-timers engine))
                             :memory (client-memory-reserved)
                             :memory-limit (client-memory-budget))
                       (no-statistics))))
    (loop for name in *statistics* collect name collect (getf known name))))
