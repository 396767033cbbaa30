(in-package #:hunchentoot-recycling-taskmaster-benchmark)

;;;; The doors: one function for each make target.

(defun announce (run)
  "Say what RUN will do, and how long it will take."
  (let ((settings (run-settings run)))
    (format t "~&~a: ~d servers, ~d workloads, ~d round~:p of ~d s: about ~a.~%"
            (settings-command settings)
            (length (settings-rivals settings)) (length (settings-workloads settings))
            (settings-rounds settings) (settings-seconds settings) (duration (run-seconds run)))
    (format t "Results go to ~a~%" (enough-namestring (run-result run) *root*))))

(defparameter *printed-measures* '(:rate :all :p50 :p99 :max :slow-rate :slow-p99 :cpu :each :threads
                                   :memory :errors :wrong :retries :refused :unserved :unresumed
                                   :evenness :in-flight :held :alive)
  "The keys of the measures that are printed after a run; of the first that a workload has, the
ratios, too.")

(defun print-tables (cells)
  "Print a short table of CELLS for each workload."
  (loop for workload in (workload-names cells)
        for these = (cells-under workload cells)
        for measures = (measures-with-figures these (mapcar #'find-measure *printed-measures*))
        for limit = (limit-among these)
        for hunchentoot = (hunchentoot-among these)
        for key = (measure-key (first measures))
        do (format t "~&~%~a~%" (title-of workload))
           (write-markdown-table
            t `("server" ,@(mapcar #'measure-heading measures) "per limit" "per Hunchentoot")
            (loop for cell in these
                  collect (append (list (name-of cell))
                                  (loop for measure in measures collect (cell-text cell measure))
                                  (list (ratio-text cell limit key)
                                        (ratio-text cell hunchentoot key)))))))

(defun write-outputs (result)
  "Make table, charts and report of the directory RESULT from what was measured, and
print the tables."
  (let ((cells (summarize (read-samples result))))
    (unless cells
      (mistake "Nothing was measured; see the notes above and ~a." (result-file result "logs/")))
    (write-table result cells)
    (with-unavailable-noted ((lambda (reason)
                               (record-note result nil nil "charts left out: ~a" reason)))
      (draw-charts result cells))
    (write-report result cells)
    (print-tables cells)
    (format t "~&~%~a~%" (enough-namestring (result-file result "report.md") *root*))))

(defun bench (&optional (settings (settings-from-environment)))
  "Measure what SETTINGS ask for, by default what the environment says, into a new
directory of benchmark/results/, and return that.  What is missing here is named in
the report and left out; an interrupt keeps what was measured."
  (let* ((result (new-result))
         (run (make-run :settings settings :result result)))
    (record-machine result settings)
    (check-tools run)
    (check-rivals run)
    (announce run)
    (setf (run-progress run) (make-instance 'progress :left (run-seconds run)))
    (unwind-protect (call-timing result (lambda () (measure-all run)))
      (discard-certificate run))
    (write-outputs result)
    result))

(defun result-setting (name)
  "The directory of the result that the setting NAME holds."
  (let ((directory (uiop:ensure-directory-pathname
                    (or (setting name) (mistake "~a=directory must be given." name)))))
    (or (probe-file directory)
        (mistake "There is no directory ~a." directory))))

(defun call-door (door)
  "Call the function DOOR for a make target: whoever made a mistake gets a sentence,
and make a failure."
  (handler-case (funcall door)
    ((or mistake unavailable) (condition)
      (format *error-output* "~&~a~%" condition)
      (uiop:quit 1))))

(defun compare-from-environment ()
  "COMPARE the results that the settings A and B hold."
  (compare (result-setting "A") (result-setting "B")))

(defun report-from-environment ()
  "WRITE-OUTPUTS of the result that the setting RESULT holds."
  (write-outputs (result-setting "RESULT")))

(defun readme-from-environment ()
  "UPDATE-DOCUMENTS from the result that the setting RESULT holds."
  (update-documents (result-setting "RESULT")
                    (merge-pathnames "README.md" *root*)
                    (merge-pathnames "docs/guide/performance.md" *root*)))

(defun profile-from-environment ()
  "PROFILE what the settings SERVER, WORKLOAD, MODE and SECONDS say."
  (let ((mode (or (setting "MODE") "cpu")))
    (unless (member mode '("cpu" "alloc") :test #'string=)
      (mistake "MODE is cpu or alloc, not ~a." mode))
    (profile :rival (first (select-rivals (list (or (setting "SERVER") "ours"))))
             :workload (first (select-workloads (list (or (setting "WORKLOAD") "keep-0ms-100"))))
             :mode (if (string= mode "cpu") :cpu :alloc)
             :seconds (integer-setting "SECONDS" 5))))
