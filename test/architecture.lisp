(in-package #:hunchentoot-recycling-taskmaster-test)

;;;; The rules of the house, read off its sources.

(def-suite architecture :in all
  :description "Storeys, doors and docstrings.")

(in-suite architecture)

(defparameter *storeys* '("base" "platform" "http" "engine" "server" "hunchentoot")
  "The folders of src/, from the ground up.")

(defun hot-files ()
  "The only files that may use the hot policy, as their storeys declare them."
  (append (mapcar (lambda (name) (format nil "src/http/~A.lisp" name)) http::*hot-files*)
          (mapcar (lambda (name) (format nil "src/platform/~A.lisp" name))
                  platform::*hot-files*)))

(defun source-root ()
  (asdf:system-source-directory "hunchentoot-recycling-taskmaster"))

(defun source-files ()
  "Every Lisp file of the library."
  (directory (merge-pathnames "src/**/*.lisp" (source-root))))

(defun source-name (file)
  "FILE as it is named from the root of the project."
  (uiop:unix-namestring (uiop:enough-pathname file (truename (source-root)))))

(defvar *source-texts* (make-hash-table :test 'equal)
  "The texts of files, and when each was written: ABCL takes long to read them.")

(defun source-text (file)
  (let ((known (gethash file *source-texts*)) (written (file-write-date file)))
    (if (eql written (car known))
        (cdr known)
        (cdr (setf (gethash file *source-texts*)
                   (cons written (uiop:read-file-string file :external-format :utf-8)))))))

(defun files-that-say (text &key (except '()))
  "The names of the source files that contain TEXT, without those in EXCEPT."
  (loop for file in (source-files)
        when (and (search text (source-text file) :test #'char-equal)
                  (not (member (source-name file) except :test #'string=)))
          collect (source-name file)))

(defun outside (folder names)
  (remove-if (lambda (name) (uiop:string-prefix-p folder name)) names))

(test the-sources-are-found
  (is (< 20 (length (source-files)))))

(test only-internals-knows-what-hunchentoot-hides
  (is (null (files-that-say (format nil "hunchentoot~A" "::")
                            :except '("src/hunchentoot/internals.lisp")))))

(test only-the-platform-has-reader-conditionals-and-foreign-calls
  (dolist (text '("#+" "#-" "cffi" "sb-alien" "sb-sys" "sb-impl" "sb-unix" "sb-bsd-sockets"
                  "c-inline" "jcall"))
    (is (null (outside "src/platform/" (files-that-say text))) "~A" text)))

(test only-declared-files-are-hot
  (dolist (text '("*hot-policy*" "(safety 0)"))
    (is (null (files-that-say text :except (append '("src/base/policies.lisp"
                                                  "src/base/package.lisp"
                                                  "src/http/package.lisp"
                                                  "src/platform/package.lisp")
                                                (hot-files))))
        "~A" text)))

;;; Functions that check nothing, and the document that says why they need not

(defun hot-functions (file)
  "The names of the functions in FILE that are under the hot policy, in lower case."
  (let ((name nil) (names '()))
    (dolist (line (uiop:read-file-lines file :external-format :utf-8) (reverse names))
      (when (uiop:string-prefix-p "(defun " line)
        (setf name (subseq line 7 (if (char= #\( (char line 7)) ; of (SETF NAME)
                                      (1+ (position #\) line))
                                      (position #\Space line :start 7)))))
      (let ((declaration (search "#.*hot-policy*" line)))
        (when (and declaration (not (find #\; line :end declaration)))
          (pushnew name names :test #'equal))))))

(defun explained-functions ()
  "The names in the first column of the tables of docs/safety.md that are functions'."
  (loop for line in (uiop:read-file-lines (merge-pathnames "docs/safety.md" (source-root))
                                          :external-format :utf-8)
        when (uiop:string-prefix-p "| `" line)
          collect (subseq line 3 (position #\` line :start 3))))

(test who-checks-nothing-is-explained
  (let ((hot (loop for file in (source-files)
                   when (member (source-name file) (hot-files) :test #'string=)
                     append (hot-functions file)))
        (explained (explained-functions)))
    (is (< 30 (length hot)))
    (is (null (set-difference hot explained :test #'string=))
        "docs/safety.md lacks ~{~A~^, ~}." (set-difference hot explained :test #'string=))
    (is (null (set-difference explained hot :test #'string=))
        "docs/safety.md has ~{~A~^, ~}, which are no such functions."
        (set-difference explained hot :test #'string=))
    (is (= (length explained) (length (remove-duplicates explained :test #'string=))))))

(test nobody-sleeps
  (is (null (files-that-say "(sleep "))))

(defun storey-of (file)
  (find-if (lambda (storey) (uiop:string-prefix-p (format nil "src/~A/" storey)
                                                  (source-name file)))
           *storeys*))

(defun storey-package (storey)
  "How a file would name the package of STOREY."
  (if (string= storey "hunchentoot")
      "in-package #:hunchentoot-recycling-taskmaster)"
      (format nil "hunchentoot-recycling-taskmaster.~A" storey)))

(test no-storey-names-one-above-it
  (dolist (file (source-files))
    (let ((storey (storey-of file)))
      (dolist (above (and storey (rest (member storey *storeys* :test #'string=))))
        (is (not (search (storey-package above) (source-text file)))
            "~A names ~A." (source-name file) above)))))

(test the-engine-knows-nothing-of-http
  (dolist (file (source-files))
    (when (equal (storey-of file) "engine")
      (is (not (search "hunchentoot:" (source-text file))) "~A" (source-name file)))))

;;; The command line

(test who-asks-for-an-unknown-suite-is-told-the-known-ones
  (handler-case (progn (find-suite "nonsense") (fail "It was found."))
    (unknown-suite (condition)
      (dolist (name '("nonsense" "architecture" "conformance/cookies"))
        (is (search name (princ-to-string condition)))))))

;;; Docstrings

(defun documented-p (symbol)
  "True when every definition of SYMBOL has a docstring, and it has one."
  (let ((strings (append
                  (when (find-class symbol nil) (list (documentation symbol 'type)))
                  (when (fboundp symbol) (list (documentation symbol 'function)))
                  (when (boundp symbol) (list (documentation symbol 'variable))))))
    (and strings (every #'stringp strings))))

(defun parameter-names (symbol)
  "The names of the required, optional and keyword parameters of the function SYMBOL."
  (loop for parameter in (function-parameters symbol)
        for name = (if (consp parameter) (first parameter) parameter)
        for symbol-name = (if (consp name) (first name) name)
        unless (member symbol-name lambda-list-keywords)
          collect (string symbol-name)))

(defparameter *known-restarts* '("RETRY")
  "Exported symbols that name restarts, and so nothing that has a docstring.")

(test every-exported-symbol-is-documented
  (do-external-symbols (symbol '#:hunchentoot-recycling-taskmaster)
    (unless (member (symbol-name symbol) *known-restarts* :test #'string=)
      (is (documented-p symbol) "~A has no docstring." symbol))))

(test docstrings-of-functions-name-their-arguments
  (dolist (package '(#:hunchentoot-recycling-taskmaster
                     #:hunchentoot-recycling-taskmaster.engine
                     #:hunchentoot-recycling-taskmaster.platform))
    (do-external-symbols (symbol package)
      (when (and (fboundp symbol)
                 (not (macro-function symbol))
                 (eq (symbol-package symbol) (find-package package))
                 (documentation symbol 'function))
        (dolist (name (parameter-names symbol))
          (is (search name (documentation symbol 'function))
              "The docstring of ~A does not speak of ~A." symbol name))))))
