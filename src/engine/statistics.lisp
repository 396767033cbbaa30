(in-package #:hunchentoot-recycling-taskmaster.engine)

(defun requests-served (engine)
  (+ (engine-served-before engine)
     (reduce #'+ (engine-workers engine) :key #'worker-served)))

(defun uptime (engine)
  "Seconds from the start of ENGINE to its stop or to now."
  (if (engine-started engine)
      (/ (- (or (engine-stopped engine) (milliseconds)) (engine-started engine)) 1000.0)
      0))

(defparameter *statistics*
  '(:threads :standby :busy :idling :benched :made :ended
    :accepted :open :writing :queued :refused :expired :failed :served :uptime)
  "The names of what ENGINE-STATISTICS tells, in its order.")

(defun engine-statistics (engine)
  "A plist of what ENGINE did and does: counts of threads, of connections and of requests, all
taken at one moment, and its uptime in seconds."
  (with-engine (engine)
    (list :threads (pool-size engine)
          :standby (coming-count engine)
          :busy (attended-count engine)
          :idling (worker-count engine :idling)
          :benched (worker-count engine :benched)
          :made (engine-made engine)
          :ended (worker-count engine :ended)
          :accepted (engine-accepted engine)
          :open (engine-open engine)
          :writing (writing-count engine)
          :queued (length (engine-queue engine))
          :refused (engine-refused engine)
          :expired (engine-expired engine)
          :failed (engine-failed engine)
          :served (requests-served engine)
          :uptime (uptime engine))))
