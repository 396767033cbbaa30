(in-package #:recycling-benchmark)

;;;; What the make targets call.  Their variables come as BENCH_ and the name in the environment.

(defun setting (name &optional default)
  "The setting NAME, a string; DEFAULT where it is empty or not there."
  (let ((value (uiop:getenv (format nil "BENCH_~a" name))))
    (if (or (null value) (string= value "")) default value)))

(defun integer-setting (name default)
  "The setting NAME, an integer above 0."
  (let ((value (parse-integer (setting name (princ-to-string default)) :junk-allowed t)))
    (if (and value (plusp value))
        value
        (unavailable "~a is ~s; it must be an integer above 0" name (setting name)))))

(defun chosen (setting all name-of)
  "Those of ALL whose names, by NAME-OF, the SETTING lists, with commas between them; ALL without
it."
  (let ((names (and (setting setting) (uiop:split-string (setting setting) :separator ","))))
    (dolist (name names)
      (unless (find name all :key name-of :test #'string=)
        (unavailable "there is no ~s; ~a can have ~{~a~^, ~}" name setting (mapcar name-of all))))
    (if names
        (remove-if-not (lambda (each) (member (funcall name-of each) names :test #'string=)) all)
        all)))

(defun chosen-one (setting default all name-of)
  "The one of ALL whose name, by NAME-OF, the SETTING is, or DEFAULT."
  (or (find (setting setting default) all :key name-of :test #'string=)
      (unavailable "~a can be one of ~{~a~^, ~}" setting (mapcar name-of all))))

(defun chosen-workloads ()
  "The workloads that the setting WORKLOADS lists.  With the setting CONNECTIONS they have as many,
and names that say so."
  (let ((workloads (chosen "WORKLOADS" *workloads* #'workload-name)))
    (if (setting "CONNECTIONS")
        (loop with count = (integer-setting "CONNECTIONS" nil)
              for workload in (mapcar #'copy-workload workloads)
              do (setf (workload-connections workload) count
                       (workload-name workload)
                       (format nil "~a-~d" (workload-name workload) count))
              collect workload)
        workloads)))

(defun new-result ()
  "The folder of a new result, named by the time."
  (source-file (format nil "results/~a/" (fact "date" "-u" "+%Y-%m-%d-%H%M%S"))))

(defun bench-from-make ()
  "Runs, and reports also what was measured before a Ctrl-C."
  (let ((*result* (new-result)))
    (handler-case (run (chosen "SERVERS" *servers* #'server-name)
                       (chosen-workloads)
                       (integer-setting "ROUNDS" 3)
                       (integer-setting "SECONDS" 2))
      (sb-sys:interactive-interrupt () (format t "~&Interrupted.~%")))
    (report)))

(defun report-from-make ()
  "Makes the report of the setting RESULT anew."
  (let ((*result* (uiop:ensure-directory-pathname
                   (merge-pathnames (setting "RESULT" "") (uiop:getcwd)))))
    (report)))

(defun profile-from-make ()
  "Profiles."
  (profile (chosen-one "SERVER" "ours" *servers* #'server-name)
           (chosen-one "WORKLOAD" "hello" *workloads* #'workload-name)
           (integer-setting "SECONDS" 5)
           (if (string= (setting "MODE" "cpu") "alloc") :alloc :cpu)))

(defun call-from-make (function)
  "Calls FUNCTION; where something is UNAVAILABLE, prints why and exits with 1."
  (handler-case (funcall function)
    (unavailable (condition)
      (format *error-output* "~&~a~%" condition)
      (uiop:quit 1))))
