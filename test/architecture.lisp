(in-package #:hunchentoot-recycling-taskmaster-test)

;;;; The rules of the house, read off its sources.

(def-suite architecture :in all
  :description "Layers, doors and docstrings.")

(in-suite architecture)

(defparameter *layers* '("base" "platform" "http" "websocket" "engine" "server" "http2"
                           "hunchentoot")
  "The folders and files of src/, from the ground up.")

(defparameter *library-systems*
  '("hunchentoot-recycling-taskmaster/server" "hunchentoot-recycling-taskmaster"
    "clack.handler.recycling"
    #+(and sbcl linux 64-bit) "hunchentoot-recycling-taskmaster/http2"
    #+sbcl "hunchentoot-recycling-taskmaster/postgresql")
  "Its systems, each after those that it depends on.")

(defun hot-files ()
  "The only files that may use the hot policy, as their layers declare them."
  (loop for (layer . names) in `(("http" . ,http::*hot-files*)
                                 ("websocket" . ,websocket::*hot-files*)
                                 ("platform" . ,platform::*hot-files*))
        append (loop for name in names
                     collect (format nil "src/~A/~A.lisp" layer name))))

(defun source-root ()
  (asdf:system-source-directory "hunchentoot-recycling-taskmaster"))

(defun source-files ()
  "Every Lisp file of the library."
  (append (directory (merge-pathnames "src/**/*.lisp" (source-root)))
          (directory (merge-pathnames "clack/*.lisp" (source-root)))
          (directory (merge-pathnames "postgresql/*.lisp" (source-root)))))

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

(defmacro define-source-test (name &body body)
  "Defines the test NAME of what the sources say: SBCL, which reads them fastest, does so for all."
  `(test ,name
     (if (slow-lisp-p)
         (skip "The sources, which SBCL reads, say the same on every Lisp.")
         (progn ,@body))))

(test the-sources-are-found
  (is (< 20 (length (source-files)))))

(define-source-test only-internals-knows-what-hunchentoot-hides
  (is (null (files-that-say (format nil "hunchentoot~A" "::")
                            :except '("src/hunchentoot/internals.lisp")))))

(define-source-test only-the-platform-and-http2-have-reader-conditionals-and-foreign-calls
  (dolist (text '("#+" "#-" "cffi" "sb-alien" "sb-sys" "sb-impl" "sb-unix" "sb-bsd-sockets"
                  "c-inline" "jcall"))
    (is (null (outside "src/http2/" (outside "src/platform/" (files-that-say text)))) "~A" text)))

(define-source-test only-declared-files-are-hot
  (dolist (text '("*hot-policy*" "(safety 0)"))
    (is (null (files-that-say text :except (append '("src/base.lisp"
                                                  "src/http/package.lisp"
                                                  "src/websocket/package.lisp"
                                                  "src/platform/package.lisp")
                                                (hot-files))))
        "~A" text)))

;;; The tests

(defun imported-names ()
  "The symbols that the package of the tests imports one by one."
  (let ((package (find-package '#:hunchentoot-recycling-taskmaster-test)))
    (loop for symbol being the present-symbols of package
          unless (eq package (symbol-package symbol)) collect symbol)))

(define-source-test every-name-that-the-tests-import-is-used-by-a-test
  (let ((words (make-hash-table :test 'equalp)))
    (dolist (file (directory (merge-pathnames "test/**/*.lisp" (source-root))))
      (unless (string= "test/package.lisp" (source-name file))
        (cl-ppcre:do-matches-as-strings (word "[^\\s()'\"\`,;#]+" (source-text file))
          (setf (gethash word words) t))))
    (is-true (imported-names))
    (is (null (remove-if (lambda (symbol) (gethash (symbol-name symbol) words))
                         (imported-names))))))

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
  "The names with which the items of the lists in docs/safety.md begin, which are functions'."
  (loop for line in (uiop:read-file-lines (merge-pathnames "docs/safety.md" (source-root))
                                          :external-format :utf-8)
        when (uiop:string-prefix-p "- `" line)
          collect (subseq line 3 (position #\` line :start 3))))

(define-source-test each-function-without-checks-is-explained
  (let ((hot (loop for file in (source-files)
                   when (member (source-name file) (hot-files) :test #'string=)
                     append (hot-functions file)))
        (explained (explained-functions)))
    (is (< 10 (length hot)))
    (is (null (set-difference hot explained :test #'string=))
        "docs/safety.md lacks ~{~A~^, ~}." (set-difference hot explained :test #'string=))
    (is (null (set-difference explained hot :test #'string=))
        "docs/safety.md has ~{~A~^, ~}, which are no such functions."
        (set-difference explained hot :test #'string=))
    (is (= (length explained) (length (remove-duplicates explained :test #'string=))))))

(define-source-test nobody-sleeps
  (is (null (files-that-say "(sleep "))))

(defun layer-of (file)
  (find-if (lambda (layer) (uiop:string-prefix-p (format nil "src/~A" layer)
                                                 (source-name file)))
           *layers* :from-end t))

(defun layer-package (layer)
  "How a file would name the package of LAYER."
  (if (string= layer "hunchentoot")
      "in-package #:hunchentoot-recycling-taskmaster)"
      (format nil "hunchentoot-recycling-taskmaster.~A" layer)))

(define-source-test no-layer-names-one-above-it
  (dolist (file (source-files))
    (let ((layer (layer-of file)))
      (dolist (above (and layer (rest (member layer *layers* :test #'string=))))
        (is (not (search (layer-package above) (source-text file)))
            "~A names ~A." (source-name file) above)))))

;;; The layers below Hunchentoot's are a system of their own

(defun system-of (specification)
  "The name of the system that SPECIFICATION, an element of :DEPENDS-ON, asks for here, or NIL."
  (cond ((not (consp specification)) (string-downcase specification))
        ((eq :version (first specification)) (system-of (second specification)))
        ((and (eq :feature (first specification)) (uiop:featurep (second specification)))
         (system-of (third specification)))))

(defun needed-systems (name)
  "The names of all systems that the system NAME needs here, itself among them."
  (let ((names '()))
    (labels ((resume (name)
               (unless (member name names :test #'string=)
                 (push name names)
                 (mapc #'resume
                       (remove nil (mapcar #'system-of
                                           (asdf:system-depends-on (asdf:find-system name))))))))
      (resume name))
    names))

(define-source-test only-hunchentoots-layer-knows-it
  (dolist (file (source-files))
    (unless (or (equal "hunchentoot" (layer-of file))
                (string= "src/package.lisp" (source-name file)))
      (is (not (search "(hunchentoot:" (source-text file))) "~A" (source-name file))
      (is (not (search "#'hunchentoot:" (source-text file))) "~A" (source-name file)))))

(test the-server-and-the-handler-of-clack-need-no-hunchentoot
  (let ((needed (needed-systems "clack-handler-recycling")))
    (dolist (name '("usocket" "clack.handler.recycling" "hunchentoot-recycling-taskmaster/server"))
      (is (member name needed :test #'string=) "~A" name))
    (dolist (name '("hunchentoot" "chunga" "rfc2388" "cl-ppcre" "hunchentoot-recycling-taskmaster"))
      (is (not (member name needed :test #'string=)) "~A" name))))

;;; Names

(defparameter *file-names-in-use-twice* '("package")
  "Names of files that several layers have: each its package.")

(test files-have-names-of-their-own
  (let ((names (mapcar #'pathname-name (source-files))))
    (dolist (name (remove-duplicates names :test #'string=))
      (is (or (= 1 (count name names :test #'string=))
              (member name *file-names-in-use-twice* :test #'string=))
          "Several files are called ~A." name))))

(defun loaded-files (systems)
  "The source files of SYSTEMS that this Lisp loads: others define the same for other Lisps."
  (loop for system in systems
        append (mapcar #'asdf:component-pathname
                       (asdf:required-components system
                                                 :other-systems nil
                                                 :keep-component 'asdf:cl-source-file
                                                 :goal-operation 'asdf:load-op))))

(defun definitions-in (file)
  "What FILE defines at top level: texts, those of tests without the operator."
  (let ((found '()))
    (cl-ppcre:do-register-groups (operator name)
       ;; What is read on some Lisps only has a line like "#-linux" above it.
       ("(?m)(?<![a-z]\\n)^\\((def(?:un|macro)|test|define-\\w*-test) \\(?(setf \\S+|[^\\s()]+)"
        (source-text file) found)
      (push (format nil "~:[~A ~;~*~]~A" (search "test" operator) operator name) found))))

(defun check-defined-once (&rest systems)
  "Checks that no file of SYSTEMS defines what another one of its folder, or package, defines."
  (let ((places (make-hash-table :test 'equal)))
    (dolist (file (loaded-files systems))
      (dolist (name (definitions-in file))
        (push (source-name (truename file)) (gethash (cons (layer-of file) name) places))))
    (is (< 500 (hash-table-count places)))
    (maphash (lambda (key files)
               (is (null (rest files)) "~A is defined in ~{~A~^ and in ~}." (rest key) files))
             places)))

(test no-function-and-no-type-is-defined-twice
  (apply #'check-defined-once *library-systems*))

(define-source-test no-test-and-no-tool-of-the-tests-is-defined-twice
  (check-defined-once "hunchentoot-recycling-taskmaster-test"))

;;; Docstrings

(defun interface-packages ()
  "The packages whose exported symbols are to be documented: the public ones."
  (list (find-package '#:clack.handler.recycling)
        (find-package '#:hunchentoot-recycling-taskmaster)
        #+sbcl (find-package '#:hunchentoot-recycling-taskmaster.postgresql)))

(defun exported-symbols (package)
  "The symbols that PACKAGE exports and that are its own."
  (let ((symbols '()))
    (do-external-symbols (symbol package symbols)
      (when (eq package (symbol-package symbol))
        (push symbol symbols)))))

(defun documentation-lost-p (function)
  "Whether this Lisp has lost the docstring of FUNCTION: ECL keeps none of what DEFSTRUCT makes."
  (and (uiop:featurep :ecl)
       (search "compiled-closure" (princ-to-string function))))

(defun documented-p (symbol)
  "True when every definition of SYMBOL has a docstring, and it has one."
  (let ((strings (append
                  (when (and (fboundp symbol) (not (documentation-lost-p (fdefinition symbol))))
                    (list (documentation symbol 'function)))
                  (when (boundp symbol) (list (documentation symbol 'variable)))
                  (when (or (find-class symbol nil)
                            (not (or (fboundp symbol) (boundp symbol))))
                    (list (documentation symbol 'type))))))
    (every #'stringp strings)))

(defparameter *known-restarts* '("RETRY")
  "Exported symbols that name restarts, and so nothing that has a docstring.")

(test every-exported-symbol-is-documented
  (dolist (package (interface-packages))
    (dolist (symbol (exported-symbols package))
      (unless (member (symbol-name symbol) *known-restarts* :test #'string=)
        (is (documented-p symbol) "~S has no docstring." symbol)))))
