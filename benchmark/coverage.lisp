(in-package #:hunchentoot-recycling-taskmaster-benchmark)

;;;; What a result covers, and what not: nobody should have to guess whether figures were picked.

(defun words-of-fact (name result)
  "The words of the fact NAME of RESULT."
  (split (or (fact name result) "")))

(defun set-of (result)
  "Which set RESULT is a run of: \"quick\", \"standard\", \"full\" or \"selection\"; NIL if that was
not recorded."
  (fact "set" result))

(defun finished-p (result)
  "Did the run of RESULT end by itself?"
  (and (fact "took" result) t))

(defun left-out (result)
  "The names of the servers that RESULT was to measure and that have no figures at all."
  (let ((measured (remove-duplicates (mapcar #'sample-server (read-samples result))
                                     :test #'string=)))
    (remove-if (lambda (name) (member name measured :test #'string=))
               (words-of-fact "servers asked for" result))))

(defun labels-of (names)
  "The labels of the servers called NAMES, in one string; or nobody."
  (format nil "~:[nobody~;~:*~{~a~^, ~}~]" (mapcar #'label-of names)))

(defparameter *set-sentences*
  `(("quick" . ,(format nil "**This is the quick run**: few cells, little time. It shows that all ~
                             works and where things stand, roughly; for figures to quote make the ~
                             standard one."))
    ("standard" . "This is the standard run, which is what the README shows.")
    ("full" . "This is the full run: all servers and workloads that there are.")
    ("selection" . ,(format nil "**This is a selection** made on the command line, not the standard ~
                                 run that the README shows.")))
  "What kind of run a result is of, for the reader of its report.")

(defun set-sentence (result)
  "The one of *SET-SENTENCES* for RESULT."
  (or (cdr (assoc (set-of result) *set-sentences* :test #'equal))
      "What was asked for was not recorded."))

(defun write-partly-measured (stream names)
  "Write which of the servers called NAMES the standard run measures under few workloads."
  (loop for name in names
        for rival = (find-rival name)
        for workloads = (and rival (rival-standard-workloads rival))
        when workloads
          do (format stream "- ~a: under ~{`~a`~^, ~} only.~%" (label-of name) workloads)))

(defun write-coverage (stream result)
  "Write what was asked for in RESULT, and what not."
  (format stream "~%## What this run covers~%~%~a~%~%" (set-sentence result))
  (when (set-of result)
    (format stream "- Command: `~a`, at commit ~a. ~:[It did not end by itself.~;~:*It took ~a.~]~%~
                    - Servers asked for: ~a.~%~
                    - Servers not asked for: ~a.~%~
                    - Workloads asked for: ~{`~a`~^, ~}.~%~
                    - Workloads not asked for: ~:[none~;~:*~{`~a`~^, ~}~].~%"
            (fact "command" result) (fact "commit" result) (fact "took" result)
            (labels-of (words-of-fact "servers asked for" result))
            (labels-of (words-of-fact "servers not asked for" result))
            (words-of-fact "workloads asked for" result)
            (words-of-fact "workloads not asked for" result))
    (when (equal "standard" (set-of result))
      (write-partly-measured stream (words-of-fact "servers asked for" result)))))

(defun busy-p (result)
  "Was more than a quarter of the machine busy with something else before RESULT?"
  (let ((load-average (parse-number (or (fact "load average before" result) "")))
        (cores (parse-number (or (fact "cores" result) ""))))
    (and load-average cores (> load-average (/ cores 4)))))

(defun write-limits (stream result)
  "Write what the figures of RESULT do not show."
  (format stream "What this does not show: the clients run on the same ~a processors as the ~
                  servers, so throughput is also a figure of how a server shares them with the load tool, and ~
                  servers that schedule their threads for that (`SCHED_BATCH`: ours and the limit) ~
                  gain most here; with clients on other machines, or with more processors, order ~
                  and distances may differ. Handlers that do nothing, or only sleep, over the ~
                  loopback device tell what a server adds to a request, not how fast an ~
                  application will be.~%"
          (fact "cores" result)))
