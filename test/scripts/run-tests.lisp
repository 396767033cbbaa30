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
                                  (project-file "scripts/run-tests"))
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

;;; What `make check-distribution` finds without loading anything

(test the-system-definitions-and-the-documents-agree-on-what-distributions-ask-for
  (if (slow-lisp-p)
      (skip "It needs SBCL.")
      (multiple-value-bind (output errors status)
          (uiop:run-program (list (project-file "scripts/lisp")
                                  (project-file "scripts/check-distribution.lisp"))
                            :output :string :error-output :output :ignore-error-status t)
        (is (eql 0 status) "~A~A" output errors)
        (is (search (format nil "~%hunchentoot-recycling-taskmaster/server~%") output)))))
