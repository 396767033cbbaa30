(defpackage #:hunchentoot-recycling-taskmaster-mutation
  (:documentation "Mutation tests: whether the tests notice when the library is changed.")
  (:use #:common-lisp)
  (:local-nicknames (#:test #:hunchentoot-recycling-taskmaster-test))
  (:export #:save-core))

(in-package #:hunchentoot-recycling-taskmaster-mutation)

;;;; The library's source as text, changed in one place, and loaded over what is there.
;;;;
;;;; What is loaded anew for a mutant: every function, method and macro of the changed file, since a
;;;; compiler may build upon what others in that file return; and, where a macro or an inline
;;;; function was changed, whatever mentions it in the files that come later.  Structures, classes
;;;; and variables stay, and with them the state.

(define-condition stale (error)
  ((text :initarg :text :reader stale-text))
  (:report (lambda (condition stream)
             (write-string (stale-text condition) stream)))
  (:documentation "A mutant does not fit the source any more."))

(defun fail-as-stale (control &rest arguments)
  (error 'stale :text (apply #'format nil control arguments)))

;;; Files

(defparameter *systems*
  '("hunchentoot-recycling-taskmaster/server" "hunchentoot-recycling-taskmaster" "clack.handler.recycling")
  "The systems of the library, each after those that it depends on.")

(defun root ()
  (asdf:system-source-directory (first *systems*)))

(defun file-text (name)
  "The text of the file NAME, a string, of the checkout."
  (let ((file (uiop:subpathname (root) name)))
    (unless (probe-file file)
      (fail-as-stale "There is no file ~A." name))
    (uiop:read-file-string file :external-format :utf-8)))

(defun library-files ()
  "The names of the library's source files in the order in which they are loaded here."
  (loop for system in *systems*
        append (loop for component in (asdf:required-components system
                                                                :other-systems nil
                                                                :keep-component 'asdf:cl-source-file
                                                                :goal-operation 'asdf:load-op)
                     collect (uiop:unix-namestring
                              (uiop:enough-pathname (asdf:component-pathname component) (root))))))

(defun later-files (name)
  (rest (member name (library-files) :test #'string=)))

;;; Definitions.  A top-level form begins with a parenthesis and a letter in the first column.

(defun top-level-forms (text)
  "The top-level forms in TEXT, a list of strings; what lies between goes with the one before."
  (let ((starts (cl-ppcre:all-matches "(?m)^\\([a-z]" text)))
    (loop for (start nil next) on starts by #'cddr
          collect (subseq text start next))))

(defun loose-pattern (text)
  "A regular expression for TEXT with any white space where TEXT has some."
  (format nil "~{~A~^\\s+~}"
          (mapcar #'cl-ppcre:quote-meta-chars (cl-ppcre:split "\\s+" text))))

(defun defines-p (form name)
  "True when FORM, a string, defines NAME: a name, or with it what follows and tells it from others,
such as \"close ((stream descriptor-stream)\"."
  (cl-ppcre:scan (format nil "^\\([a-z0-9-]+ \\(?~A(?![^\\s()])" (loose-pattern name))
                 form))

(defun the-definition (forms name file)
  (let ((found (remove-if-not (lambda (form) (defines-p form name)) forms)))
    (case (length found)
      (1 (first found))
      (t (fail-as-stale "~A defines ~A ~:[~D times~;nowhere~*~]." file name (null found)
                        (length found))))))

(defun changed (form from to place)
  "FORM, a string, with TO in place of FROM, which must be there once."
  (let ((matches (cl-ppcre:all-matches (loose-pattern from) form)))
    (unless (= 2 (length matches))
      (fail-as-stale "~A has ~S ~D times, and not once." place from (/ (length matches) 2)))
    (destructuring-bind (start end) matches
      (concatenate 'string (subseq form 0 start) to (subseq form end)))))

;;; What has to be loaded

(defparameter *loaded-anew*
  "
^\\((defun|defmethod|defgeneric|defmacro|define-compiler-macro|declaim|define-phase|define-step|define-frame-step|define-multipart-phase)"
  "What forms may be loaded twice and keep the state.")

(defun package-form (text)
  (or (cl-ppcre:scan-to-strings "(?m)^\\(in-package [^)]*\\)" text)
      (fail-as-stale "A file has no IN-PACKAGE.")))

(defun expanded-where-used-p (name forms)
  "True when NAME, of FORMS, is a macro or an inline function."
  (let ((name (cl-ppcre:quote-meta-chars name)))
    (some (lambda (form)
            (or (cl-ppcre:scan (format nil "^\\(defmacro ~A\\s" name) form)
                (cl-ppcre:scan (format nil "^\\(declaim \\(inline[^)]*(?<=\\s)~A[\\s)]" name) form)))
          forms)))

(defun mentions-p (form name)
  (cl-ppcre:scan (format nil "(?<![\\w*+%<>=-])~A(?![\\w*+%<>=-])" (cl-ppcre:quote-meta-chars name))
                 form))

(defun users (name file)
  "Texts of the forms in files after FILE that mention NAME, or what is expanded there and does."
  (loop with names = (list name)
        for later in (later-files file)
        for text = (file-text later)
        for forms = (remove-if-not (lambda (form) (cl-ppcre:scan *loaded-anew* form))
                                   (top-level-forms text))
        for using = (remove-if-not (lambda (form)
                                     (some (lambda (name) (mentions-p form name)) names))
                                   forms)
        when using
          collect (package-form text)
          and append using
        do (dolist (form using)
             (cl-ppcre:register-groups-bind (used) ("^\\(def[a-z-]+ ([^\\s()]+)" form)
               (when (expanded-where-used-p used forms)
                 (pushnew used names :test #'string=))))))

(defun forms-to-load (file &optional name from to)
  "Texts of what must be loaded so that FILE is as if its definition of NAME had TO in place of
FROM; all functions of the file as they are if no NAME is given."
  (let* ((text (file-text file))
         (forms (top-level-forms text))
         (original (and name (the-definition forms name file)))
         (mutated (and name (changed original from to (format nil "~A, ~A," file name)))))
    (append (list (package-form text))
            (loop for form in forms
                  when (eq form original) collect mutated
                  else when (cl-ppcre:scan *loaded-anew* form) collect form)
            (when (and name (expanded-where-used-p name forms))
              (users name file)))))

(defun load-forms (forms)
  "Compiles and loads FORMS, texts of top-level forms.  Signals an error where that fails."
  (uiop:with-temporary-file (:stream stream :pathname source :type "lisp" :external-format :utf-8)
    (format stream "~{~A~%~}" forms)
    :close-stream
    (let ((fasl (let ((*error-output* *standard-output*))
                  (handler-bind ((warning #'muffle-warning))
                    (compile-file source :external-format :utf-8)))))
      (unless fasl
        (error "The changed source cannot be compiled."))
      (unwind-protect (handler-bind ((warning #'muffle-warning))
                        (load fasl))
        (delete-file fasl)))))
