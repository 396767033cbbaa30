(in-package #:hunchentoot-recycling-taskmaster-benchmark)

;;;; The performance section of the README, made from one result.

(defparameter *section-begin* "<!-- performance:begin -->"
  "The line of the README after which the section begins.")

(defparameter *section-end* "<!-- performance:end -->"
  "The line of the README before which the section ends.")

(defun readme-row (workload cells)
  "The row of the README's table for WORKLOAD, a name: throughput as a ratio to the
limit, for each server."
  (let* ((these (cells-under workload cells))
         (limit (first (of-family :limit these))))
    (cons (title-of workload)
          (loop for server in (readme-servers cells)
                for cell = (find-cell these server workload)
                collect (format nil "~a~:[~;*~]" (ratio-text cell limit :rate)
                                (and cell (disqualification cell)))))))

(defun readme-servers (cells)
  "The names of the servers of CELLS that the README's table shows: all but the limit, which
is its unit, and parts of ours."
  (remove-if (lambda (name) (member (family-of name) '(:limit :part)))
             (servers-among cells)))

(defun readme-workloads (cells)
  "The names of the workloads of CELLS that the README's table shows: those in which the limit
has a throughput."
  (remove-if-not (lambda (workload)
                   (value-of (find-cell cells "limit" workload) :rate))
                 (workload-names cells)))

(defun relative-name (result file)
  "The name of FILE in the directory RESULT, as seen from the checkout."
  (format nil "benchmark/results/~a/~a" (result-name result) file))

(defun readme-charts (cells)
  "The charts that the README shows, lists of title and name: the curves if CELLS have
enough connection counts for some, else the bars of the quick run's workloads."
  (or (loop for scale in (scales cells)
            for first = (first scale)
            collect (list (series-title first) (format nil "~a-scaling" (series-name first))))
      (loop for workload in *quick-workloads*
            collect (list (title-of workload) (format nil "~a-rate" workload)))))

(defun write-readme-section (stream result cells)
  "Write the section for RESULT, whose cells are CELLS."
  (format stream "~%Throughput as a part of what the machine can give (a C program with a fixed ~
                  answer), load and server on the same ~a cores (~a), ~a. A star: some clients ~
                  were refused or not served.~%~%"
          (fact "cores" result) (fact "processor" result) (subseq (result-name result) 0 10))
  (write-markdown-table stream (cons "" (mapcar #'label-of (readme-servers cells)))
                        (loop for workload in (readme-workloads cells)
                              collect (readme-row workload cells)))
  (terpri stream)
  (loop for (title chart) in (readme-charts cells)
        for file = (format nil "charts/~a.svg" chart)
        when (probe-file (result-file result file))
          do (format stream "![~a](~a)~%" title (relative-name result file)))
  (format stream "~%Latency, CPU time, memory, fairness, who won what and where we lose: ~
                  [the whole report](~a). `make bench` makes it on your machine.~%~%"
          (relative-name result "report.md")))

(defun replace-section (text section)
  "TEXT with what is between the two marker lines replaced by SECTION.  An error when
TEXT has no such lines."
  (let* ((begin (search *section-begin* text))
         (end (search *section-end* text)))
    (unless (and begin end (< begin end))
      (mistake "The README needs two lines to put the section between:~%~a~%~a"
             *section-begin* *section-end*))
    (format nil "~a~%~a~a" (subseq text 0 (+ begin (length *section-begin*)))
            section (subseq text end))))

(defun update-readme (result readme)
  "Rewrite the performance section of the file README from the directory RESULT."
  (let* ((cells (summarize (read-samples result)))
         (section (with-output-to-string (stream)
                    (write-readme-section stream result cells)))
         (text (replace-section (uiop:read-file-string readme) section)))
    (with-open-file (stream readme :direction :output :if-exists :supersede)
      (write-string text stream))))
