(in-package #:hunchentoot-recycling-taskmaster-test)

;;;; The README and the guide: their examples are run; see support/examples.lisp.

(def-suite guide :in acceptors
  :description "The README and docs/guide: their examples, tables and links.")

(in-suite guide)

(defun check-page (page)
  "Checks that the examples of the document PAGE do what they say."
  (multiple-value-bind (mistakes skipped) (run-page page)
    (dolist (reason skipped)
      (skip "~A" reason))
    (is (null mistakes) "~{~A~%~}" mistakes)))

(defvar *example-pages* '()
  "The documents whose examples are run.")

(defmacro define-page-tests (&body pages)
  "Defines a test for each of PAGES, lists of the test's name and the document's."
  `(progn
     ,@(loop for (name page) in pages
             collect `(pushnew ,page *example-pages* :test #'string=)
             collect `(define-server-test (,name :needs :our-engine)
                        (check-page ,page)))))

(define-page-tests
  (examples-of-the-readme "README.md")
  (examples-of-the-guide "docs/guide/README.md")
  (examples-of-getting-started "docs/guide/getting-started.md")
  (examples-of-migrating "docs/guide/migrating.md")
  (examples-of-configure "docs/guide/configure.md")
  (examples-of-later "docs/guide/later.md")
  (examples-of-listening "docs/guide/listening.md")
  (examples-of-proxies "docs/guide/proxies.md")
  (examples-of-tls "docs/guide/tls.md")
  (examples-of-http2 "docs/guide/http2.md")
  (examples-of-logging "docs/guide/logging.md")
  (examples-of-operating "docs/guide/operating.md")
  (examples-of-metrics "docs/guide/metrics.md")
  (examples-of-deploy "docs/guide/deploy.md")
  (examples-of-processes "docs/guide/processes.md")
  (examples-of-clack "docs/guide/clack.md")
  (examples-of-platforms "docs/guide/platforms.md")
  (examples-of-limits "docs/guide/limits.md")
  (examples-of-performance "docs/guide/performance.md")
  (examples-of-testing "docs/guide/testing.md")
  (examples-of-troubleshooting "docs/guide/troubleshooting.md")
  (examples-of-the-glossary "docs/guide/glossary.md"))

;;; Pages that are wrong

(defun results-of-page (&rest lines)
  "What RUN-PAGE returns for a page of LINES, in each of which ' stands for a back quote."
  (with-directory (directory)
    (run-page (write-file directory "page.md"
                          (substitute #\` #\' (format nil "~{~A~%~}" lines))))))

(defun finds-mistake-p (words &rest lines)
  "True when what is said of the first mistake in a page of LINES has WORDS in it."
  (let ((mistakes (apply #'results-of-page lines)))
    (and mistakes (search words (first mistakes)))))

(define-server-test (wrong-examples-are-noticed-and-skipped-ones-told :needs :our-engine)
  (is (finds-mistake-p "page.md, line 1: (+ 1 2) is 3." "'''lisp" "(+ 1 2) ; => 4" "'''"))
  (is (finds-mistake-p "that" "'''lisp" "(error \"that\")" "'''"))
  (is (finds-mistake-p "\"1\" was printed" "'''lisp" "(princ 1)" "'''" "'''text" "2" "'''"))
  (is (finds-mistake-p "no language" "'''" "(+ 1 2)" "'''"))
  (multiple-value-bind (mistakes skipped)
      (results-of-page "<!-- example: not run, it needs time -->" "" "'''lisp" "(sleep" "'''"
                       "'''lisp" "(princ (1+ 1))" "'''" "'''text" "2" "'''")
    (is (null mistakes))
    (is (search "it needs time" (first skipped)))))
