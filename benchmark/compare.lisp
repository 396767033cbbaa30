(in-package #:hunchentoot-recycling-taskmaster-benchmark)

;;;; Two results side by side, so that a change can be judged.

(defun common-cells (before after)
  "Pairs of cells, one of BEFORE and one of AFTER, with the same server and workload."
  (loop for cell in before
        for other = (find-cell after (cell-server cell) (cell-workload cell))
        when other collect (list cell other)))

(defun change-text (before after key)
  "The figure KEY of AFTER divided by that of BEFORE, or -."
  (ratio-text after before key))

(defun limit-of (cell cells)
  "The cell of the limit, among CELLS, under the workload of CELL, or NIL."
  (find-cell cells "limit" (cell-workload cell)))

(defun steady-change-text (before after key all-before all-after)
  "Like CHANGE-TEXT, but of the ratios to the limit, which a faster or busier machine
changes less; ALL-BEFORE and ALL-AFTER are the cells among which the limit is."
  (let ((one (quotient before (limit-of before all-before) key))
        (two (quotient after (limit-of after all-after) key)))
    (if (and one two (plusp one)) (format nil "~,2f" (/ two one)) "-")))

(defun comparison-row (before after all-before all-after)
  "The row of the comparison for the cells BEFORE and AFTER."
  (append (list (cell-workload before) (name-of before))
          (loop for key in '(:rate :p50 :p99 :cpu :memory)
                collect (change-text before after key))
          (loop for key in '(:rate :cpu)
                collect (steady-change-text before after key all-before all-after))))

(defun compare (before-result after-result &optional (stream *standard-output*))
  "Print to STREAM, for all cells that the directories BEFORE-RESULT and AFTER-RESULT
have in common, the later figure divided by the earlier one."
  (let* ((before (summarize (read-samples before-result)))
         (after (summarize (read-samples after-result)))
         (pairs (common-cells before after)))
    (unless pairs
      (mistake "The two results have no cell in common."))
    (format stream "~&Later / earlier.  Throughput is better above 1, all else below 1.  The last ~
                    two~%columns compare ratios to the limit.~%~%")
    (write-markdown-table stream '("workload" "server" "requests/s" "p50" "p99" "CPU" "memory"
                                   "requests/s per limit" "CPU per limit")
                          (loop for (one two) in pairs
                                collect (comparison-row one two before after)))))
