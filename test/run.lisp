(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite all
  :description "Everything that is promised.")

(defun names-in (suite)
  "The names of the tests and suites of SUITE, a FiveAM suite."
  ;; Since 1.4.3 FiveAM keeps the table in an object.
  (let* ((tests (fiveam::tests suite))
         (table (if (hash-table-p tests) tests (slot-value tests 'fiveam::tests))))
    (loop for name being the hash-keys of table collect name)))

(defun suite-names (&optional (suite 'all) (depth 0))
  "The names of SUITE and of those in it, in lower case, indented by DEPTH and more."
  (cons (format nil "~V@T~(~A~)" (* 2 (1+ depth)) suite)
        (loop for name in (names-in (get-test suite))
              when (typep (get-test name) 'fiveam::test-suite)
                append (suite-names name (1+ depth)))))

(define-condition unknown-suite (error)
  ((name :initarg :name :reader unknown-name))
  (:report (lambda (condition stream)
             (format stream "There is no test or suite called ~A.  The suites are:~{~%~A~}"
                     (unknown-name condition) (suite-names))))
  (:documentation "Signalled when a test is asked for that does not exist."))

(defun find-suite (name)
  "The FiveAM suite or test called NAME, a symbol or a string in any case.  Signals UNKNOWN-SUITE."
  (let ((symbol (if (stringp name)
                    (find-symbol (string-upcase name)
                                 '#:hunchentoot-recycling-taskmaster-test)
                    name)))
    (or (and symbol (get-test symbol) symbol)
        (error 'unknown-suite :name name))))

(defun result-counts (results)
  "How many of the FiveAM RESULTS passed, failed and were skipped."
  (values (count-if (lambda (result) (typep result 'fiveam::test-passed)) results)
          (count-if (lambda (result) (typep result 'fiveam::test-failure)) results)
          (count-if (lambda (result) (typep result 'fiveam::test-skipped)) results)))

(defun modes ()
  "The values of :PARKING with which the tests of acceptors are to pass here, the default first."
  (if (platform:readiness-supported-p) '(t nil) '(nil)))

(defun call-in-mode (parking function)
  "Calls FUNCTION while the acceptors of tests are made with PARKING."
  (setf recycling::*parking-by-default* parking
        *parking-p* parking)
  (unwind-protect (funcall function)
    (setf recycling::*parking-by-default* t)))

(defun run-in-mode (suites parking)
  "The results of SUITES, their acceptors being made with PARKING."
  (format t "~&~%With ~:[a thread for each connection~;parked connections~]:" parking)
  (call-in-mode parking
                (lambda ()
                  (let ((*on-error* nil) (*on-failure* nil))
                    (loop for suite in suites append (run suite))))))

(defparameter *suites-of-one-mode*
  '(guide demo deployment restarts secrets https postgresql)
  "Suites that test nothing which depends on the mode.")

(defun names-below (suite)
  "SUITE, and the names of all suites and tests in it."
  (cons suite (when (typep (get-test suite) 'fiveam::test-suite)
                (mapcan #'names-below (names-in (get-test suite))))))

(defun suites-of-acceptors ()
  "What of ALL depends on the mode."
  (list* 'taskmaster 'conformance 'a-program-may-have-methods-of-connections-over-tls
         (remove-if (lambda (name) (member name *suites-of-one-mode*))
                    (names-in (get-test 'acceptors)))))

(def-suite processes :description "Those of ALL that wait for processes, and some of both fronts.")
(def-suite waiting :description "Those of both fronts that mostly wait for limits of time.")
(def-suite other-fronts :description "The others of both fronts.")
(def-suite unparked :description "What depends on the mode, with a thread for each connection.")

(defun parts ()
  "The suites of each part of ALL that a process of its own tests, an alist."
  (let ((processes '(process-exits small-heaps until-signalled restarts service-manager
                     fronts/content fronts/streams fronts/races fronts/requests fronts/messages))
        (waiting '(fronts/limits-of-time fronts/slow-clients fronts/crowds fronts/later)))
    (unless (uiop:featurep :abcl)       ; which loads the tests for a minute
      `((processes ,@processes)
        (waiting ,@waiting)
        (other-fronts ,@(set-difference (names-in (get-test 'fronts)) (append processes waiting)))
        ,@(when (rest (modes))
            `((unparked ,@(suites-of-acceptors))))))))

(defun suites-here ()
  "The suites of ALL that the first process tests, in the first mode."
  (set-difference (append (set-difference (names-in (get-test 'all)) '(fronts acceptors))
                          (names-in (get-test 'acceptors))
                          (names-in (get-test 'fronts)))
                  (loop for (part . suites) in (parts)
                        unless (eq part 'unparked) append suites)))

(defun suites-in-mode (suite mode)
  "What of SUITE is to run in MODE."
  (let ((first-p (eq mode (first (modes))))
        (part (assoc suite (parts))))
    (cond (part (and (eq first-p (not (eq suite 'unparked))) (rest part)))
          ((eq suite 'all) (and first-p (suites-here)))
          (first-p (list suite))
          ((or (member suite *suites-of-one-mode*)
               (member suite (names-below 'fronts))) ; its tests say in which modes they run
           '())
          (t (list suite)))))

(defun start-beside (suite)
  "Starts the tests of SUITE, a name, in a process of their own: most tests wait for limits of time,
and leave the processors to others.  Returns a function that waits for them, prints what they did,
and returns a list of how many passed, failed and were skipped."
  (let* ((log (merge-pathnames "tests.log" (fresh-directory)))
         (process (uiop:launch-program
                   (list "env" (format nil "SUITE=~A" suite) (project-file "scripts/run-tests"))
                   :output log :error-output :output)))
    (lambda ()
      (uiop:wait-process process)
      (let ((lines (uiop:read-file-lines log)))
        (delete-tree (uiop:pathname-directory-pathname log))
        (format t "~&~%In another process:~%~{~A~%~}" lines)
        (multiple-value-bind (match groups)
            (cl-ppcre:scan-to-strings "^(\\d+) passed, (\\d+) failed(?:, (\\d+) skipped)?$"
                                      (or (first (last lines)) ""))
          (if match
              (map 'list (lambda (group) (parse-integer (or group "0"))) groups)
              '(0 1 0)))))))            ; it has not come to an end

(defun set-up-engine (&optional processors)
  "Has the engine count on so many PROCESSORS, or on those that there are, and hold nothing when it
stops; and has a stop wait for the thread of a log even where that stands still for long."
  (setf engine::*processors* processors
        engine::*held-seconds* 0        ; or every soft stop would take a second
        server::*log-patience* (* 6 *patience*)))

(defun tell-skipped (skipped)
  "Prints for what reasons tests were SKIPPED, and how many for each."
  (let ((reasons (mapcar #'fiveam::reason skipped)))
    (dolist (reason (remove-duplicates reasons :test #'string= :from-end t))
      (format t "~&~D skipped: ~A~%" (count reason reasons :test #'string=) reason))))

(defun explain-results (results)
  "Prints what the counts do not say of RESULTS, what failed last."
  (flet ((skipped-p (result) (typep result 'fiveam::test-skipped)))
    (tell-skipped (remove-if-not #'skipped-p results))
    (explain! (remove-if #'skipped-p results))))

(defun run-all (&key (suite 'all) processors)
  "Runs SUITE, a suite or a single test, by default all, in every mode, tells what failed, and
prints the counts in the last line.  True when something passed and nothing failed.  Where
PROCESSORS is an integer, the engine counts on so many processors in all of it."
  (set-up-engine processors)
  (let* ((suite (find-suite suite))
         (others (when (eq suite 'all)
                   (loop for (part) in (parts) collect (start-beside part))))
         (results (unwind-protect
                       (loop for mode in (modes)
                             append (run-in-mode (suites-in-mode suite mode) mode))
                    (delete-core)))
         (counts (apply #'mapcar #'+ (multiple-value-list (result-counts results))
                        (mapcar #'funcall others))))
    (explain-results results)
    (destructuring-bind (passed failed skipped) counts
      (format t "~&~D passed, ~D failed~@[, ~D skipped~]~%" passed failed
              (and (plusp skipped) skipped))
      (finish-output)
      (and (plusp passed) (zerop failed)))))
