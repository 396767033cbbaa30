;;;; For `make mutation-test`: tells which of COUNT small changes to the source files that have FILE
;;;; in their names no test notices.  SEED repeats a run, SUITE says which tests are to notice, and
;;;; JOBS how many changes are tried at a time.  SBCL only.
;;;;
;;;; A process of its own tries each change, and writes its log to build/mutation/.  It runs the
;;;; tests in each mode in which continuous integration runs them.  The programs that tests start
;;;; have the change, too: scripts/prelude.lisp loads the file that MUTANT names.

(in-package #:hunchentoot-recycling-taskmaster-scripts)

#-sbcl (give-up "Mutation tests need SBCL.")

(load-own "hunchentoot-recycling-taskmaster-test")
(require :sb-posix)

(defpackage #:hunchentoot-recycling-taskmaster-mutation
  (:use #:common-lisp)
  (:import-from #:hunchentoot-recycling-taskmaster-scripts #:setting #:give-up)
  (:import-from #:hunchentoot-recycling-taskmaster-test
                #:mutations #:body-start #:replaced #:covering-suites #:top-level-forms
                #:loaded-files #:*library-systems* #:source-name #:source-root #:find-suite
                #:set-up-engine #:tests-with-modes #:call-in-mode #:delete-core))

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

(defun parameters-to-set (mutant files)
  "The DEFPARAMETERs in FILES whose values MUTANT's function helps to compute."
  (loop with names = (list (second (mutant-changed mutant)))
        for file in files
        append (remove-if-not (lambda (form)
                                (and (consp form)
                                     (eq 'defparameter (first form))
                                     (mentions-p (third form) names)))
                              (top-level-forms file))))

(defun definitions-to-load (mutant)
  "The definitions of MUTANT's file, on which its compiler has built; the later ones that contain
what the changed macro or inline function expands to; and the parameters that depend on it."
  (let* ((changed (mutant-changed mutant))
         (names (and (expanded-p (second changed)) (list (second changed))))
         (files (member (mutant-file mutant) (library-files) :test #'equal)))
    (append (replaced (definitions (mutant-file mutant)) (mutant-number mutant) changed)
            (loop for file in (and names (rest files))
                  append (loop for form in (definitions file)
                               when (mentions-p form names)
                                 collect form
                                 and when (expanded-p (second form))
                                       do (push (second form) names)))
            (parameters-to-set mutant files))))

(defun write-definitions (forms package file)
  "Writes FORMS to FILE, to be read in PACKAGE."
  (with-open-file (stream file :direction :output :if-exists :supersede :external-format :utf-8)
    (with-standard-io-syntax
      (let ((*print-readably* nil)
            (*print-pretty* t))         ; or backquotes could not be read
        (format stream "(in-package ~S)~%" (package-name package))
        (let ((*package* package))
          (format stream "~{~S~%~}" forms))))))

(defun load-mutant (mutant file)
  "Makes the change in this process, and in the programs that it starts, by way of FILE; returns
true unless the compiler warns of it."
  (write-definitions (definitions-to-load mutant) (file-package (mutant-file mutant)) file)
  (handler-bind ((warning #'muffle-warning))
    (multiple-value-bind (compiled warnings-p failed-p)
        (hunchentoot-recycling-taskmaster-system:call-with-own-policy
         (lambda () (compile-file file :external-format :utf-8)))
      (declare (ignore warnings-p))
      (unless failed-p
        (load compiled)
        (setf (uiop:getenv "MUTANT") (namestring file))
        t))))

;;; The mutants of a run

(defun files-to-change ()
  (remove-if-not (lambda (file) (search (setting "FILE" "") (source-name file)))
                 (library-files)))

(defun suites-for (file)
  (if (setting "SUITE")
      (list (find-suite (setting "SUITE")))
      (covering-suites (source-name file))))

(defun all-mutants ()
  (loop for file in (files-to-change)
        when (suites-for file)
          append (loop for definition in (definitions file)
                       for number from 0
                       append (loop for (old new changed) in (mutations definition)
                                    collect (make-mutant :file file :number number
                                                         :old old :new new :changed changed)))))

(defun sample (list count seed)
  "COUNT elements of LIST, or all, which SEED chooses."
  (let ((*random-state* (sb-ext:seed-random-state seed)))
    (subseq (alexandria:shuffle (copy-list list)) 0 (min count (length list)))))

(defun tell-mutant (mutant)
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

;;; The process of a mutant.  Its status says that all tests passed, that one failed, or that the
;;; compiler warned; a Lisp ends with none of these by itself.

(defparameter *passed* 10)
(defparameter *failed* 11)
(defparameter *refused* 12)

(defun passes-p (name mode)
  (format t "~&~A, ~:[a thread for each connection~;parked connections~]~%" name mode)
  (finish-output)                       ; the process that waits for this one sees progress
  (let ((results (call-in-mode mode (lambda ()
                                      (let ((fiveam:*on-error* nil) (fiveam:*on-failure* nil))
                                        (fiveam:run name))))))
    (unless (fiveam:results-status results)
      (fiveam:explain! results))
    (fiveam:results-status results)))

(defun try-mutant (mutant file suites)
  "Loads MUTANT, if any, by way of FILE, and runs the tests of SUITES until one fails twice; returns
the status."
  (set-up-engine)
  (when mutant
    (tell-mutant mutant))
  (cond ((and mutant (not (load-mutant mutant file))) *refused*)
        ((loop for (name mode) in (tests-with-modes suites)
               thereis (not (or (passes-p name mode) (passes-p name mode))))
         *failed*)
        (t *passed*)))

(defun mutation-file (number type)
  (namestring (ensure-directories-exist
               (uiop:subpathname (source-root) (format nil "build/mutation/~D.~A" number type)))))

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
      (let ((status (unwind-protect (funcall function)
                      (delete-core))))
        (finish-output)
        (sb-ext:exit :code status :abort t)))
    process))

(defstruct attempt
  "A PROCESS that tries MUTANT and has written SIZE octets to LOG, the last of them at the time
SINCE.  SILENCE is the longest time, in seconds, in which it wrote nothing."
  mutant process log (size 0) (since (get-universal-time)) (silence 0))

(defun start-attempt (number mutant suites)
  (let ((log (mutation-file number "log")))
    (make-attempt :mutant mutant :log log
                  :process (start-process log
                                          (lambda ()
                                            (try-mutant mutant (mutation-file number "lisp")
                                                        suites))))))

(defun kill-processes (attempt)
  "Ends the process of ATTEMPT and those that it started."
  (ignore-errors (sb-posix:kill (- (attempt-process attempt)) sb-posix:sigkill)))

(defun note-progress (attempt)
  "Sees whether ATTEMPT has written more; returns for how many seconds it has not."
  (let ((size (handler-case (sb-posix:stat-size (sb-posix:stat (attempt-log attempt)))
                (sb-posix:syscall-error () 0)))
        (now (get-universal-time)))
    (unless (eql size (attempt-size attempt))
      (setf (attempt-size attempt) size
            (attempt-since attempt) now))
    (let ((silence (- now (attempt-since attempt))))
      (setf (attempt-silence attempt) (max silence (attempt-silence attempt)))
      silence)))

(defun run-processes (tasks count limit function)
  "Has a process try each of TASKS, lists of a mutant and suites, COUNT at a time, and ends one that
writes nothing for LIMIT seconds; calls FUNCTION with the attempt and the status, or NIL, whenever
one ends."
  (let ((running '()))
    (loop while (or tasks running)
          do (loop while (and tasks (< (length running) count))
                   do (destructuring-bind (mutant suites) (pop tasks)
                        (push (start-attempt (length tasks) mutant suites) running)))
             (dolist (attempt running)
               (when (< limit (note-progress attempt))
                 (kill-processes attempt)))
             (multiple-value-bind (process status) (sb-posix:waitpid -1 sb-posix:wnohang)
               (if (zerop process)
                   (sleep 1/20)
                   (let ((attempt (find process running :key #'attempt-process)))
                     (setf running (remove attempt running))
                     (kill-processes attempt) ; what it has left running
                     (funcall function attempt
                              (and (sb-posix:wifexited status)
                                   (sb-posix:wexitstatus status)))))))))

;;; The report

(defun silence-for (tasks)
  "For how many seconds a process may write nothing, by how long the suites of TASKS do now; gives
up when they fail."
  (let ((suites (remove-duplicates (mapcan #'copy-list (mapcar #'second tasks)) :from-end t))
        (silence 0))
    (run-processes (list (list nil suites)) 1 3600
                   (lambda (attempt status)
                     (setf silence (attempt-silence attempt))
                     (unless (eql *passed* status)
                       (give-up "The tests fail without a change; see build/mutation/0.log."))))
    (+ 60 (* 4 silence))))

(let* ((seed (parse-integer (setting "SEED"
                                     (format nil "~D" (random 1000000 (make-random-state t))))))
       (tasks (loop for mutant in (sample (all-mutants) (parse-integer (setting "COUNT" "20")) seed)
                    collect (list mutant (suites-for (mutant-file mutant)))))
       (killed 0) (survived 0) (refused 0))
  (format t "~&~D mutants, SEED=~D~%" (length tasks) seed)
  (run-processes tasks (parse-integer (setting "JOBS" "2")) (silence-for tasks)
                 (lambda (attempt status)
                   (cond ((member status (list *passed* 0)) ; 0 after a signal from elsewhere
                          (incf survived)
                          (tell-mutant (attempt-mutant attempt)))
                         ((eql *refused* status) (incf refused))
                         (t (incf killed)))))
  (format t "~&~D killed, ~D survived, ~D refused by the compiler~@[: ~D % killed~]~%"
          killed survived refused
          (and (plusp (+ killed survived)) (round (* 100 killed) (+ killed survived)))))
