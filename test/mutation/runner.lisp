(in-package #:hunchentoot-recycling-taskmaster-mutation)

;;;; One process, made from a saved core, for each mutant; and who starts them and counts.
;;;;
;;;;   what becomes of the process     means
;;;;   0                               unnoticed: all tests passed
;;;;   10                              noticed: a test failed, and again when it was asked again
;;;;   11                              by chance: tests failed, and passed when they were asked again
;;;;   12                              the mutant cannot be compiled or loaded
;;;;   13                              equivalent, and loaded
;;;;   killed after some time          noticed: a hang
;;;;   anything else                   noticed: a crash, or memory that ran out
;;;;
;;;; A mutant that is noticed by chance counts as unnoticed.

(defparameter *patience* 6
  "How many times as long as all tests without a mutant those of one may take, and a minute more.")

(defparameter *megabytes* 1536
  "How large the heap of its process may grow.")

(defparameter *blocks* (* 2 1024 512)
  "How large a file its process may write, in blocks of 512 octets.")

;;; In the process of a mutant

(defun tell-result (name)
  "Leaves NAME, of a test, to the parent."
  (with-open-file (stream (setting "MUTANT_RESULT") :direction :output :if-exists :append
                                                    :if-does-not-exist :create)
    (format stream "~(~A~)~%" name)))

(defun meet (suites)
  "Has SUITES look for what is wrong; returns the status of the process.  With ALL_TESTS they go on
after the first test that fails."
  (loop with status = 0
        for name in (remove-duplicates (mapcan #'tests-of (copy-list suites)) :from-end t)
        unless (passes-p name)
          do (cond ((passes-p name)
                    (setf status (max status 11)))
                   (t
                    (tell-result name)
                    (setf status 10)
                    (unless (setting "ALL_TESTS")
                      (return 10))))
        finally (return (if (and (= status 11) (setting "ALL_TESTS")) 11 status))))

(defun set-mode (parking)
  "Makes the tests' acceptors ones with PARKING, or without."
  (setf hunchentoot-recycling-taskmaster::*parking-by-default* parking
        test::*parking-p* parking))

(defun run-mutant (number)
  (let ((mutant (nth number (wanted-mutants))))
    (set-mode (mutant-parking mutant))
    (handler-case (load-forms (mutant-forms mutant))
      (error (condition)
        (tell-result condition)
        (return-from run-mutant 12)))
    (if (mutant-equivalent mutant)
        13
        (meet (suites-to-meet mutant)))))

(defun run-baseline (parking)
  "The tests of all mutants, with nothing changed, but loaded anew as for a mutant."
  (let ((mutants (remove parking (wanted-mutants) :key #'mutant-parking :test-not #'eq)))
    (set-mode parking)
    (dolist (file (remove-duplicates (mapcar #'mutant-file mutants) :test #'string=))
      (load-forms (forms-to-load file)))
    (meet (remove-duplicates (mapcan (lambda (mutant) (copy-list (suites-to-meet mutant)))
                                     mutants)))))

(defun run-child (what)
  (let ((status (cond ((string= what "parking") (run-baseline t))
                      ((string= what "blocking") (run-baseline nil))
                      (t (run-mutant (parse-integer what))))))
    (finish-output)
    (uiop:quit status nil)))

;;; In the parent

(defun directory-of-logs ()
  (ensure-directories-exist (uiop:subpathname (root) "build/mutation/")))

(defun start-child (what seconds)
  "Runs the process for WHAT, for at most SECONDS; returns its status and what it told."
  (let* ((log (uiop:subpathname (directory-of-logs) (format nil "~A.log" what)))
         (result (uiop:subpathname (directory-of-logs) (format nil "~A.result" what))))
    (uiop:delete-file-if-exists result)
    (let ((status (nth-value 2 (uiop:run-program
                                (list "sh" "-c" "ulimit -f \"$0\"; exec \"$@\""
                                      (princ-to-string *blocks*)
                                      "env" (format nil "MUTANT=~A" what)
                                      (format nil "MUTANT_RESULT=~A" (uiop:native-namestring result))
                                      "timeout" "--signal=KILL" (princ-to-string seconds)
                                      (uiop:native-namestring sb-ext:*runtime-pathname*)
                                      "--core" (uiop:native-namestring sb-ext:*core-pathname*)
                                      "--noinform" "--disable-ldb" "--lose-on-corruption"
                                      "--dynamic-space-size" (princ-to-string *megabytes*)
                                      "--end-runtime-options")
                                :output log :if-output-exists :supersede :error-output :output
                                :ignore-error-status t))))
      (values status
              (if (probe-file result)
                  (uiop:read-file-lines result)
                  '())))))

(defun outcome (status)
  (case status
    (0 :unnoticed) (10 :noticed) (11 :by-chance) (12 :broken) (13 :equivalent)
    ((124 137) :hang)
    (t :crash)))

(defun map-in-parallel (function list count)
  "Calls FUNCTION with each element of LIST, in COUNT threads."
  (let ((lock (bt:make-lock)))
    (flet ((work ()
             (loop for (element . found) = (bt:with-lock-held (lock)
                                             (and list (cons (pop list) t)))
                   while found do (funcall function element))))
      (mapc #'bt:join-thread
            (loop repeat count collect (bt:make-thread #'work :name "mutants"))))))

(defun jobs ()
  (parse-integer (setting "JOBS" (princ-to-string
                                  (hunchentoot-recycling-taskmaster.platform:processor-count)))))

(defun tell (outcome mutant number told)
  (format t "~&~10A ~3D  ~A~@[~%                [~{~A~^ ~}]~]~%" (string-downcase outcome) number
          (describe-mutant mutant)
          (if (eq outcome :equivalent) (list (mutant-equivalent mutant)) told))
  (finish-output))

(defun check-baseline (mutants)
  "Ends all unless the tests pass with nothing changed.  Returns how many seconds a mutant may
take."
  (loop with start = (get-universal-time)
        for (what parking) in '(("parking" t) ("blocking" nil))
        when (find parking mutants :key #'mutant-parking)
          do (format t "~&Without a mutant (~A)~%" what)
             (finish-output)
             (multiple-value-bind (status told) (start-child what 3600)
               (unless (member status '(0 11))
                 (format t "~&The tests do not pass: ~A ~A; see build/mutation/~A.log~%"
                         status told what)
                 (finish-output)
                 (uiop:quit 1 nil)))
        finally (return (+ 60 (* *patience* (- (get-universal-time) start))))))

(defun check-tables (mutants)
  "Ends all if one of MUTANTS does not fit the source."
  (let ((stale (loop for mutant in mutants
                     for problem = (handler-case (progn (mutant-forms mutant) nil)
                                     (stale (condition) condition))
                     when problem collect problem)))
    (when stale
      (format t "~&~{~A~%~}" stale)
      (finish-output)
      (uiop:quit 1 nil))))

(defun run-all-mutants (mutants seconds)
  "Tells what becomes of MUTANTS, each for at most SECONDS; returns how many are of each outcome, a
plist."
  (let ((counts '()) (lock (bt:make-lock)))
    (map-in-parallel
     (lambda (numbered)
       (destructuring-bind (number . mutant) numbered
         (multiple-value-bind (status told) (start-child (princ-to-string number) seconds)
           (bt:with-lock-held (lock)
             (tell (outcome status) mutant number told)
             (incf (getf counts (outcome status) 0))))))
     (loop for mutant in mutants for number from 0 collect (cons number mutant))
     (jobs))
    counts))

(defun run-parent ()
  (let ((mutants (wanted-mutants)))
    (unless mutants
      (format t "~&No mutant is in such a file and concerns such a suite.~%")
      (uiop:quit 1))
    (when (setting "SAMPLE")
      (format t "~&SAMPLE=~A SEED=~D~%" (setting "SAMPLE") (seed)))
    (check-tables mutants)
    (when (setting "CHECK")
      (format t "~&~D mutants fit the source.~%" (length mutants))
      (finish-output)
      (uiop:quit 0 nil))
    (let ((counts (run-all-mutants mutants (check-baseline mutants))))
      (format t "~&~{~(~A~) ~D~^, ~}~%" counts)
      (finish-output)
      (uiop:quit (if (intersection '(:unnoticed :by-chance :broken) counts) 1 0) nil))))

(defun main ()
  (let ((what (setting "MUTANT")))
    (if what (run-child what) (run-parent))))

(defun save-core (file)
  "Saves this Lisp as FILE, which, when it is started, runs what the environment asks for."
  (sb-ext:save-lisp-and-die file :toplevel #'main))
