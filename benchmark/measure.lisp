(in-package #:hunchentoot-recycling-taskmaster-benchmark)

;;;; The figures of a cell: one server under one workload.

(defstruct (measure (:constructor make-measure (key column title unit better &optional sum-p)))
  "One kind of figure.  KEY names it in property lists, COLUMN in tables of tabs;
TITLE and UNIT are for people.  BETTER is :HIGHER or :LOWER, or NIL for a figure
that only describes.  A cell has the median of its rounds, or their sum if SUM-P: no failure
is to be lost because most rounds had none."
  key column title unit better sum-p)

(defparameter *measures*
  (list
   (make-measure :rate "requests_per_s" "throughput" "requests/s" :higher)
   (make-measure :p50 "p50_ms" "p50" "ms" :lower)
   (make-measure :p90 "p90_ms" "p90" "ms" :lower)
   (make-measure :p99 "p99_ms" "p99" "ms" :lower)
   (make-measure :p999 "p99.9_ms" "p99.9" "ms" :lower)
   (make-measure :max "max_ms" "max" "ms" :lower)
   (make-measure :cpu "cpu_us_per_request" "CPU per request" "us" :lower)
   (make-measure :slow-rate "slow_requests_per_s" "throughput of the slow ones" "requests/s"
                 :higher)
   (make-measure :slow-p99 "slow_p99_ms" "p99 of the slow ones" "ms" :lower)
   (make-measure :all "all_ms" "time until all are answered" "ms" :lower)
   (make-measure :each "kib_each" "memory of each" "KiB" :lower)
   (make-measure :threads "threads" "threads" "" :lower)
   (make-measure :memory "rss_mib" "memory" "MiB" :lower)
   (make-measure :requests "requests" "requests" "" nil t)
   (make-measure :errors "socket_errors" "socket errors" "" nil t)
   (make-measure :retries "retries" "asked again" "" nil t)
   (make-measure :non-2xx "non_2xx" "non-2xx" "" nil t)
   (make-measure :wrong "wrong" "wrong" "" nil t)
   (make-measure :counted "counted" "counted" "" nil t)
   (make-measure :refused "refused" "refused" "" nil t)
   (make-measure :unserved "unserved" "in vain" "" nil t)
   (make-measure :unresumed "not_resumed" "not resumed" "" nil t)
   (make-measure :evenness "least_per_most" "least/most served" "" nil)
   (make-measure :in-flight "in_flight" "in flight at once" "" nil)
   (make-measure :held "held" "idle held" "" nil)
   (make-measure :alive "alive" "idle still alive" "" nil))
  "All figures, in the order of columns.")

(defun find-measure (key)
  "The measure of KEY."
  (find key *measures* :key #'measure-key))

(defun compared-measures ()
  "The measures of which one value is better than another."
  (remove nil *measures* :key #'measure-better))

(defun better-p (measure value other)
  "Is VALUE better than OTHER by MEASURE?"
  (ecase (measure-better measure)
    (:higher (> value other))
    (:lower (< value other))))

(defun figures-row (figures)
  "The values of FIGURES, a property list, in the order of *MEASURES*."
  (loop for measure in *measures* collect (getf figures (measure-key measure))))

(defun row-figures (header row)
  "The inverse of FIGURES-ROW, for a ROW of strings under HEADER, the names of its columns, which
need not be those of today."
  (loop for column in header
        for text in row
        for measure = (find column *measures* :key #'measure-column :test #'string=)
        for value = (and measure (parse-number text))
        when value
          append (list (measure-key measure) value)))
