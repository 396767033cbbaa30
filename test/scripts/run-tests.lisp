(in-package #:hunchentoot-recycling-taskmaster-test)

;;; What `make test` makes of a Lisp that ends, however it ends.

(def-suite scripts :in all
  :description "The commands that the Makefile calls.")

(in-suite scripts)

(defun write-program (path lines)
  "Makes the file PATH a shell script of LINES that can be run."
  (with-open-file (out path :direction :output)
    (format out "#!/bin/sh~%~{~A~%~}" lines))
  (uiop:run-program (list "chmod" "+x" (uiop:native-namestring path))))

(defun run-tests-with (&rest lines)
  "The status of scripts/run-tests with a Lisp that is a shell script of LINES, and what it says."
  (with-directory (directory)
    (let ((lisp (merge-pathnames "sbcl" directory)))
      (write-program lisp lines)
      (multiple-value-bind (output errors status)
          (uiop:run-program (list "env"
                                  (format nil "LISP=~A" (uiop:native-namestring lisp))
                                  (uiop:native-namestring
                                   (merge-pathnames "scripts/run-tests" (source-root))))
                            :output :string :error-output :string :ignore-error-status t)
        (values status output errors)))))

(test a-run-succeeds-where-its-last-line-says-that-something-passed-and-nothing-failed
  (loop for (line status words)
          in '(("echo '12 passed, 0 failed'" 0) ("echo '12 passed, 0 failed, 3 skipped'" 0)
               ("echo '12 passed, 1 failed'" t) ("echo '0 passed, 0 failed'" t)
               ("echo '0 passed, 0 failed, 5 skipped'" t)
               ("echo '12 passed, 0 failed'; exit 7" 7)
               ("exit 0" t "without a result") ("kill -SEGV $$" t "without a result")
               ("echo 'Not 12 passed, 0 failed'" t "without a result")
               ("echo '12 passed, 0 failed'; echo later" t "without a result"))
        do (multiple-value-bind (result output errors) (run-tests-with "echo before" line)
             (is (if (eq t status) (not (eql 0 result)) (eql status result)) "~A" line)
             (is (search "before" output))
             (is (search (or words "") errors)))))

;;; The Lisps themselves

(defparameter *failing-thread*
  "(flet ((fail-here () (error \"In a thread.\")))
     #+sbcl (sb-thread:make-thread #'fail-here)
     #+ecl (mp:process-run-function \"failing\" #'fail-here)
     #+abcl (threads:make-thread #'fail-here))
   (sleep 60)"
  "A script that leaves it to a thread to end the process, before any library is loaded.")

(defun run-script (script &rest settings)
  "The status of SCRIPT, a pathname, run by this Lisp with SETTINGS, strings such as \"PORT=1\", and
all that it says."
  (multiple-value-bind (output errors status)
      (uiop:run-program `("env" ,@settings
                                ,(uiop:native-namestring (merge-pathnames "scripts/lisp"
                                                                          (source-root)))
                                ,(uiop:native-namestring script))
                        :output :string :error-output :string :ignore-error-status t)
    ;; ABCL has one stream.
    (values status (concatenate 'string output errors))))

(defmacro with-script-run ((script &rest settings) &body body)
  "Evaluates BODY with what RUN-SCRIPT gives as STATUS and OUTPUT, where the command is known."
  `(if (uiop:getenvp "LISP")
       (multiple-value-bind (status output) (run-script ,script ,@settings)
         ,@body)
       (skip "Nobody says which command this Lisp is.")))

(test an-error-in-any-thread-ends-a-script-with-failure
  (with-directory (directory)
    (let ((script (merge-pathnames "failing.lisp" directory)))
      (with-open-file (out script :direction :output)
        (write-string *failing-thread* out))
      (with-script-run (script)
        (is (eql 1 status) "The status is ~A after ~A" status output)
        (is (search "In a thread." output))))))

(test a-script-that-gives-up-says-why-in-one-sentence
  (if (slow-lisp-p)
      (skip "It takes a minute to load the demo.")
      (with-script-run ((merge-pathnames "scripts/serve.lisp" (source-root)) "PORT=nonsense")
        (is (eql 1 status) "The status is ~A after ~A" status output)
        (is (search "PORT is \"nonsense\"; it must be a number" output))
        (is (not (search "Unhandled" output)) "~A" output))))

;;; What `make check-distribution` finds without loading anything

(test the-system-definitions-and-the-documents-agree-on-what-distributions-ask-for
  (if (slow-lisp-p)
      (skip "It needs SBCL.")
      (with-script-run ((merge-pathnames "scripts/check-distribution.lisp" (source-root)))
        (is (eql 0 status) "~A" output)
        (is (search (format nil "~%hunchentoot-recycling-taskmaster/server~%") output)))))
