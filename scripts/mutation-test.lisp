;;;; For `make mutation-test`: tells which of COUNT small changes to the source files that have FILE
;;;; in their names no test notices.  SEED repeats a run, SUITE says which tests are to notice, and
;;;; JOBS how many changes are tried at a time.  SBCL only.

(in-package #:hunchentoot-recycling-taskmaster-scripts)

#-sbcl (give-up "Mutation tests need SBCL.")

(load-own "hunchentoot-recycling-taskmaster-test")
(require :sb-posix)

(defpackage #:hunchentoot-recycling-taskmaster-mutation
  (:use #:common-lisp)
  (:import-from #:hunchentoot-recycling-taskmaster-scripts #:setting #:give-up)
  (:import-from #:hunchentoot-recycling-taskmaster-test
                #:mutations #:body-start #:replaced #:suites-by-folder #:top-level-forms #:loaded-files
                #:*library-systems* #:source-name #:source-root #:find-suite #:names-in #:deadline-after #:seconds-until))

(in-package #:hunchentoot-recycling-taskmaster-mutation)

(defstruct mutant
  "A change of OLD to NEW in the definition NUMBER of FILE, which makes it CHANGED."
  file number old new changed)

;;; What may be changed, and what must be compiled again

(defun library-files ()
  (loaded-files *library-systems*))

(defun file-package (file)
  (find-package (second (uiop:read-file-form file))))

(defun definitions (file)
  "The definitions of functions and macros in FILE."
  (remove-if-not (lambda (form)
                   (and (consp form) (uiop:string-prefix-p "DEF" (first form)) (body-start form)))
                 (top-level-forms file)))

(defun mentions-p (form names)
  (if (consp form)
      (or (mentions-p (car form) names) (mentions-p (cdr form) names))
      (member form names)))

(defun expanded-p (name)
  "True when callers of NAME have what it says in their own code."
  (and (symbolp name)
       (or (macro-function name)
           (string= 'inline (sb-int:info :function :inlinep name)))))

(defun definitions-to-load (mutant)
  "The definitions of MUTANT's file, on which its compiler has built, and the later ones that contain
what the changed macro or inline function expands to."
  (let* ((changed (mutant-changed mutant))
         (names (and (expanded-p (second changed)) (list (second changed)))))
    (append (replaced (definitions (mutant-file mutant)) (mutant-number mutant) changed)
            (loop for file in (and names (rest (member (mutant-file mutant) (library-files) :test #'equal)))
                  append (loop for form in (definitions file)
                               when (mentions-p form names)
                                 collect form
                                 and when (expanded-p (second form))
                                       do (push (second form) names))))))

(defun load-definition (form)
  "Compiles and evaluates FORM; returns true unless the compiler warns of it."
  (handler-bind ((warning #'muffle-warning))
    (multiple-value-bind (function warnings-p failed-p) (compile nil `(lambda () ,form))
      (declare (ignore warnings-p))
      (unless failed-p
        (funcall function)
        t))))

(defun load-mutant (mutant)
  "Makes the change in this process; returns true unless the compiler warns of it."
  (let ((*package* (file-package (mutant-file mutant))))
    (hunchentoot-recycling-taskmaster-system:call-with-own-policy
     (lambda () (every #'load-definition (definitions-to-load mutant))))))

;;; The mutants of a run

(defun files-to-change ()
  (remove-if-not (lambda (file) (search (setting "FILE" "") (source-name file)))
                 (library-files)))

(defun covering-suites (file)
  (let ((suite (setting "SUITE")))
    (if suite
        (list (find-suite suite))
        (rest (find-if (lambda (prefix) (uiop:string-prefix-p prefix (source-name file)))
                       (suites-by-folder) :key #'first)))))

(defun all-mutants ()
  (loop for file in (files-to-change)
        when (covering-suites file)
          append (loop for definition in (definitions file)
                       for number from 0
                       append (loop for (old new changed) in (mutations definition)
                                    collect (make-mutant :file file :number number
                                                         :old old :new new :changed changed)))))

(defun sample (list count seed)
  "COUNT elements of LIST, or all, which SEED chooses."
  (let ((*random-state* (sb-ext:seed-random-state seed)))
    (subseq (alexandria:shuffle (copy-list list)) 0 (min count (length list)))))

;;; The process of a mutant: 0 says that all tests passed, 1 that one failed, and 2 that the compiler
;;; warned.  Other processes have crashed, or taken too long.

(defun tests-in (name)
  (if (typep (fiveam:get-test name) 'fiveam::test-suite)
      (mapcan #'tests-in (names-in (fiveam:get-test name)))
      (list name)))

(defun passes-p (name)
  (let ((results (let ((fiveam:*on-error* nil) (fiveam:*on-failure* nil)) (fiveam:run name))))
    (unless (fiveam:results-status results)
      (fiveam:explain! results))
    (fiveam:results-status results)))

(defun try-mutant (mutant suites)
  "Loads MUTANT, if any, and runs the tests of SUITES until one fails twice; returns the status."
  (cond ((and mutant (not (load-mutant mutant))) 2)
        ((loop for name in (mapcan #'tests-in (copy-list suites))
               thereis (not (or (passes-p name) (passes-p name))))
         1)
        (t 0)))

(defun log-file (number)
  (namestring (ensure-directories-exist
               (uiop:subpathname (source-root) (format nil "build/mutation/~D.log" number)))))

(defun start-process (log function)
  "Starts a process that writes to LOG and ends with the status that FUNCTION returns."
  (finish-output)
  (let ((process (sb-posix:fork)))
    (when (zerop process)
      (sb-posix:setsid)
      (let ((output (sb-posix:open log (logior sb-posix:o-wronly sb-posix:o-creat sb-posix:o-trunc)
                                   #o644)))
        (sb-posix:dup2 output 1)
        (sb-posix:dup2 output 2)
        (sb-posix:close output))
      (let ((status (funcall function)))
        (finish-output)
        (sb-ext:exit :code status :abort t)))
    process))

(defun run-processes (tasks count seconds function)
  "Has a process try each of TASKS, lists of a mutant and suites, COUNT at a time and each for SECONDS
at most; calls FUNCTION with the mutant and the status, or NIL, whenever one ends."
  (let ((running '()))
    (loop while (or tasks running)
          do (loop while (and tasks (< (length running) count))
                   do (destructuring-bind (mutant suites) (pop tasks)
                        (push (list (start-process (log-file (length tasks))
                                                   (lambda () (try-mutant mutant suites)))
                                    mutant (deadline-after seconds))
                              running)))
             (loop for (process mutant deadline) in running
                   when (zerop (seconds-until deadline))
                     do (ignore-errors (sb-posix:kill (- process) sb-posix:sigkill)))
             (multiple-value-bind (process status) (sb-posix:waitpid -1 sb-posix:wnohang)
               (if (zerop process)
                   (sleep 1/20)
                   (let ((entry (assoc process running)))
                     (setf running (remove entry running))
                     (ignore-errors (sb-posix:kill (- process) sb-posix:sigkill)) ; its children
                     (funcall function (second entry)
                              (and (sb-posix:wifexited status) (sb-posix:wexitstatus status)))))))))

;;; The report

(defun tell-survivor (mutant)
  (let* ((*package* (file-package (mutant-file mutant)))
         (*print-case* :downcase) (*print-right-margin* 90) (*print-length* 12) (*print-level* 6)
         (old (mutant-old mutant)) (new (mutant-new mutant))
         (dropped (- (length old) (length new)))
         (start (mismatch old new)))
    (format t "~&~A, ~S~%" (source-name (mutant-file mutant)) (second (mutant-changed mutant)))
    (if (plusp dropped)
        (format t "    without~{ ~S~}~%" (subseq old start (+ start dropped)))
        (format t "    ~S~% -> ~S~%" old new))
    (finish-output)))

(defun seconds-for (tasks)
  "How long a task may take, by what the suites of TASKS take now; gives up when they fail."
  (let ((start (get-universal-time)))
    (run-processes (list (list nil (remove-duplicates (mapcan #'copy-list (mapcar #'second tasks)))))
                   1 3600
                   (lambda (mutant status)
                     (declare (ignore mutant))
                     (unless (eql 0 status)
                       (give-up "The tests fail without a change; see build/mutation/0.log."))))
    (+ 30 (* 4 (- (get-universal-time) start)))))

(let* ((seed (parse-integer (setting "SEED" (format nil "~D" (random 1000000 (make-random-state t))))))
       (tasks (loop for mutant in (sample (all-mutants) (parse-integer (setting "COUNT" "20")) seed)
                    collect (list mutant (covering-suites (mutant-file mutant)))))
       (killed 0) (survived 0) (refused 0))
  (format t "~&~D mutants, SEED=~D~%" (length tasks) seed)
  (run-processes tasks (parse-integer (setting "JOBS" "2")) (seconds-for tasks)
                 (lambda (mutant status)
                   (case status
                     (0 (incf survived) (tell-survivor mutant))
                     (2 (incf refused))
                     (t (incf killed)))))
  (format t "~&~D killed, ~D survived, ~D refused by the compiler~@[: ~D % killed~]~%" killed survived
          refused (and (plusp (+ killed survived)) (round (* 100 killed) (+ killed survived)))))
