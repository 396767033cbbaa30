(in-package #:hunchentoot-recycling-taskmaster-mutation)

;;;; The tables of mutants, *.sexp beside this file.  Each has forms
;;;;
;;;;   (:file "src/..." :suites (suite ...) :mutants (mutant ...))
;;;;
;;;; where SUITES names the suites and tests that the mutants of the file should be met by, and a
;;;; mutant is
;;;;
;;;;   (definition from to &key suites parking equivalent)
;;;;
;;;;   DEFINITION  what defines it, see DEFINES-P; a string
;;;;   FROM, TO    what is replaced in the definition by what, strings; white space matches any
;;;;   SUITES      other ones than those of the file
;;;;   PARKING     NIL: with the blocking engine, where the suites make acceptors
;;;;   EQUIVALENT  a sentence: why nobody could notice it.  It is loaded, but no tests are run.

(defstruct mutant
  "One small change."
  (file nil :type string)
  (definition nil :type string)
  (from nil :type string)
  (to nil :type string)
  (suites '() :type list)
  (parking t)
  (equivalent nil :type (or null string)))

(defun describe-mutant (mutant)
  (format nil "~A, ~A:  ~A  ->  ~A" (mutant-file mutant) (mutant-definition mutant)
          (mutant-from mutant) (if (string= "" (mutant-to mutant)) "(nothing)" (mutant-to mutant))))

(defun parse-mutant (file file-suites entry)
  (destructuring-bind (definition from to &key (suites file-suites) (parking t) equivalent) entry
    (make-mutant :file file :definition definition :from from :to to :suites suites
                 :parking parking :equivalent equivalent)))

(defun table-mutants (table)
  "The mutants that the file TABLE lists."
  (with-open-file (stream table :external-format :utf-8)
    (let ((*read-eval* nil) (*package* (find-package '#:hunchentoot-recycling-taskmaster-test)))
      (loop for form = (read stream nil)
            while form
            append (destructuring-bind (&key file suites mutants) form
                     (loop for entry in mutants
                           collect (parse-mutant file suites entry)))))))

(defun all-mutants ()
  (loop for table in (sort (uiop:directory-files (uiop:subpathname (root) "test/mutation/")
                                                 "*.sexp")
                           #'string< :key #'namestring)
        append (table-mutants table)))

(defun mutant-forms (mutant)
  "What has to be loaded for MUTANT.  Signals STALE where it does not fit the source."
  (forms-to-load (mutant-file mutant) (mutant-definition mutant)
                 (mutant-from mutant) (mutant-to mutant)))

;;; What the person at the keyboard wants

(defun setting (name &optional default)
  (let ((value (uiop:getenv name)))
    (if (member value '(nil "") :test #'equal) default value)))

(defun wanted-suite ()
  (let ((name (setting "SUITE")))
    (and name (test::find-suite name))))

(defun below-p (name suite)
  "True when NAME is SUITE, or a suite or a test in that."
  (or (eq name suite)
      (member name (tests-of suite))
      (subsetp (tests-of name) (tests-of suite))))

(defun seed ()
  "The number that says which mutants a sample has: SEED, or one that every process of this run
gets."
  (unless (setting "SEED")
    (setf (uiop:getenv "SEED") (princ-to-string (random 1000000 (make-random-state t)))))
  (parse-integer (setting "SEED")))

(defun sample (list)
  "As many elements of LIST, in their order, as SAMPLE says, by chance; all, if it says nothing."
  (let ((size (setting "SAMPLE")))
    (if size
        (let ((state (sb-ext:seed-random-state (seed)))
              (left (length list))
              (wanted (parse-integer size)))
          ;; Each is taken with the probability that fills the sample by those that are left.
          (remove-if-not (lambda (element)
                           (declare (ignore element))
                           (prog1 (when (< (random left state) wanted)
                                    (decf wanted)
                                    t)
                             (decf left)))
                         list))
        list)))

(defun wanted-mutants ()
  "Those that FILE, a part of a file's name, and SUITE leave, or a SAMPLE of them."
  (let ((file (setting "FILE" "")) (suite (wanted-suite)))
    (sample (remove-if-not (lambda (mutant)
                             (and (search file (mutant-file mutant))
                                  (or (null suite)
                                      (some (lambda (name)
                                              (or (below-p name suite) (below-p suite name)))
                                            (mutant-suites mutant)))))
                           (all-mutants)))))

(defun suites-to-meet (mutant)
  (let ((suite (wanted-suite)))
    (if suite (list suite) (mutant-suites mutant))))

;;; Tests

(defun tests-of (name)
  "The names of the tests in NAME, a suite or a test, in their order."
  (let ((object (test::find-suite name)))
    (setf object (fiveam:get-test object))
    (if (typep object 'fiveam::test-suite)
        (loop for each in (test::names-in object)
              append (tests-of each))
        (list name))))

(defun passes-p (name)
  "True when the test NAME passes; else why it does not is in the log."
  (let* ((fiveam:*on-error* nil)
         (fiveam:*on-failure* nil)
         (fiveam:*test-dribble* *standard-output*)
         (start (get-internal-real-time))
         (results (fiveam:run name))
         (failed (nth-value 1 (test::result-counts results))))
    (unless (zerop failed)
      (fiveam:explain! results))
    (format t "~&~A: ~:[failed~;passed~], ~,2F s~%" name (zerop failed)
            (/ (- (get-internal-real-time) start) internal-time-units-per-second))
    (finish-output)
    (zerop failed)))
