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

(defmacro define-page-tests (&rest pages)
  "Defines a test for each of PAGES: a list of the test's name and the document's, or the name of a
page of the guide."
  `(progn
     ,@(loop for page in pages
             for (name document) = (if (consp page)
                                       page
                                       (list (alexandria:symbolicate 'examples-of- page)
                                             (format nil "docs/guide/~(~A~).md" page)))
             collect `(pushnew ,document *example-pages* :test #'string=)
             collect `(define-server-test (,name :needs :our-engine)
                        (check-page ,document)))))

(define-page-tests (examples-of-the-readme "README.md")
  (examples-of-the-guide "docs/guide/README.md") getting-started migrating configure later listening
  proxies tls http2 logging operating metrics deploy processes clack platforms limits performance
  testing troubleshooting glossary)

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
