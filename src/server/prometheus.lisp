(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; Statistics as text for Prometheus: version 0.0.4 of its exposition format.  The names follow
;;;; Prometheus' conventions: base units, and _total for what only grows.

(defparameter *metrics*
  '((:durations :histogram "request_duration_seconds"
     "From the whole head of a request until its reply is over.")
    (:served :counter "requests_total" "Requests served.")
    (:replies :counter "replies_total"
     "Requests served by method and class of status." "method" "status")
    (:in-progress :gauge "requests_in_progress" "Requests whose reply is not over.")
    (:octets-sent :counter "sent_bytes_total" "Octets sent to clients, before TLS.")
    (:rejected-by-status :counter "requests_rejected_total"
     "Requests that the server itself answered with an error." "status")
    (:failed :counter "failures_total" "Errors outside of request handlers.")
    (:stalls :counter "stalls_total" "Connections parked because serving made no progress.")
    (:ready-waits :histogram "thread_wait_seconds"
     "Samples of how long a ready connection waits for a thread.")
    (:ready-wait :gauge "thread_wait_latest_seconds"
     "The latest of these samples, or the current one if that is longer.")
    (:threads :gauge "threads" "Threads that serve or wait to.")
    (:busy :gauge "threads_busy" "Threads that have a connection or run a timer.")
    (:standby :gauge "threads_standby" "Threads that wait for something to do.")
    (:suspended :gauge "threads_suspended" "Threads on standby that sleep until they are needed.")
    (:keep-alive-waiting :gauge "threads_keep_alive"
     "Busy threads that wait for the next request of their connection.")
    (:made :counter "threads_made_total" "Threads made.")
    (:ended :counter "threads_ended_total" "Threads ended.")
    (:suspends :counter "thread_suspends_total" "How often a thread was suspended.")
    (:resumes :counter "thread_resumes_total" "How often a thread was resumed.")
    (:decisions :counter "thread_decisions_total" "Decisions about the number of threads."
     "decision")
    (:accepted :counter "connections_accepted_total" "Connections accepted.")
    (:open :gauge "connections_open" "Open connections.")
    (:parked :gauge "connections_parked" "Connections that wait for a request without a thread.")
    (:deferred :gauge "connections_deferred" "Connections whose reply comes later.")
    (:writing :gauge "connections_writing" "Connections whose client takes the reply slowly.")
    (:queued :gauge "connections_queued" "Connections that wait for a thread.")
    (:refused-by :counter "connections_refused_total"
     "Connections refused when they were accepted." "reason")
    (:expired-by :counter "connections_expired_total"
     "Connections ended because they took too long or held up others." "kind")
    (:handshakes-failed-by :counter "tls_handshakes_failed_total" "TLS handshakes that failed."
     "kind")
    ((:timers :pending) :gauge "timers_pending" "Timers that wait for their time.")
    ((:timers :run) :counter "timers_run_total" "Timers that ran.")
    ((:timers :failed) :counter "timers_failed_total" "Timers ended by an error.")
    ((:timers :cancelled) :counter "timers_cancelled_total" "Timers cancelled.")
    ((:timers :dropped) :counter "timers_dropped_total" "Timers dropped by a stop.")
    (:memory :gauge "client_memory_bytes"
     "Memory reserved for clients of all servers of the process.")
    (:memory-limit :gauge "client_memory_limit_bytes" "How much may be reserved.")
    (:uptime :gauge "uptime_seconds" "Time since the start.")
    (:log-dropped :counter "log_lines_dropped_total" "Lines of logs that were lost."))
  "For each metric, its statistic, a keyword of STATS or a list of one and of a keyword in its
plist; its type; its name without the prefix; a sentence; and where the statistic is a plist, the
name of the label for the keywords of that, and perhaps of those of the plists in it.")

(defparameter *metric-prefix* "http_server_")

(defun statistic-of (stats statistic)
  "The value of STATISTIC, as *METRICS* names it, in the plist STATS."
  (if (consp statistic)
      (getf (getf stats (first statistic)) (second statistic))
      (getf stats statistic)))

(defun escaped-label (value)
  "VALUE, a string, as it stands between the quotation marks of a label."
  (with-output-to-string (out)
    (loop for char across value
          do (case char
               ((#\\ #\") (write-char #\\ out) (write-char char out))
               (#\Newline (write-string "\\n" out))
               (t (write-char char out))))))

(defun write-sample (out name labels value)
  "Writes to OUT the line of a sample of the metric NAME with LABELS, an alist of strings, and
VALUE, a real."
  (format out "~A~@[{~{~A=\"~A\"~^,~}}~] ~A~%"
          name
          (loop for (label . text) in labels collect label collect (escaped-label text))
          (decimal-text value)))

(defun write-histogram (out name labels histogram)
  "Writes to OUT the lines of the metric NAME with LABELS for HISTOGRAM, a plist as in STATS."
  (destructuring-bind (&key count sum buckets) histogram
    (flet ((write-bucket (bound count)
             (write-sample out (format nil "~A_bucket" name)
                           (append labels (list (cons "le" bound))) count)))
      (loop for (bound count) on buckets by #'cddr
            do (write-bucket (decimal-text bound) count))
      (write-bucket "+Inf" count))
    (write-sample out (format nil "~A_sum" name) labels sum)
    (write-sample out (format nil "~A_count" name) labels count)))

(defun write-metric (out type name label-names labels value)
  "Writes to OUT the lines of the metric NAME of TYPE, with LABELS, an alist, for VALUE, a
statistic.  LABEL-NAMES are those of the labels for the keywords of VALUE and of the plists in it."
  (cond ((eq type :histogram)
         (write-histogram out name labels value))
        (label-names
         (loop for (kind part) on value by #'cddr
               do (write-metric out type name (rest label-names)
                                (append labels (list (cons (first label-names)
                                                           (format nil "~(~A~)" kind))))
                                part)))
        (t (write-sample out name labels value))))

(defun write-family (out name type help)
  "Writes to OUT what is said of the metric NAME of TYPE, with the sentence HELP."
  (format out "# HELP ~A ~A~%# TYPE ~A ~(~A~)~%" name help name type))

(defun prometheus-text (servers)
  "The statistics of SERVERS, an alist from their places, strings, to the plists of STATS, as text
for Prometheus.  A statistic that is NIL is left out."
  (with-output-to-string (out)
    (loop for (statistic type suffix help . label-names) in *metrics*
          for name = (format nil "~A~A" *metric-prefix* suffix)
          for samples = (loop for (place . stats) in servers
                              for value = (statistic-of stats statistic)
                              when value collect (cons place value))
          when samples
            do (write-family out name type help)
               (loop for (place . value) in samples
                     do (write-metric out type name label-names
                                      (list (cons "server" place)) value)))))

;;; The process

(defparameter *process-metrics*
  '(("process_cpu_seconds_total" :counter "Processor time of this process.")
    ("process_resident_memory_bytes" :gauge "Memory of this process in RAM.")
    ("process_virtual_memory_bytes" :gauge "Address space of this process.")
    ("process_open_fds" :gauge "Open descriptors of this process.")
    ("process_max_fds" :gauge "How many descriptors this process may have open.")
    ("process_start_time_seconds" :gauge "When this process started, in Unix time."))
  "The name, the type and a sentence for each metric of the process, as Prometheus' clients have
them.")

(defun process-text ()
  "The metrics of this process as text for Prometheus.  What the system does not tell is left out."
  (with-output-to-string (out)
    (loop for (name type help) in *process-metrics*
          for value in (list* (/ (get-internal-run-time) internal-time-units-per-second)
                              (multiple-value-list (process-figures)))
          when value
            do (write-family out name type help)
               (write-sample out name '() value))))

