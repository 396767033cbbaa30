;;;; What every script wants first: a Lisp that fails instead of asking, finds
;;;; this checkout, and keeps what it compiles under build/.  Loaded by
;;;; scripts/lisp before the script itself; SBCL, ECL and ABCL.

(require :asdf)

(defpackage #:hunchentoot-recycling-taskmaster-scripts
  (:documentation "Private to scripts/.")
  (:use #:common-lisp)
  (:export #:*root* #:setting #:load-dependencies #:load-own #:load-tests #:dependencies
           #:load-quicklisp))

(in-package #:hunchentoot-recycling-taskmaster-scripts)

(defvar *root*
  (uiop:pathname-parent-directory-pathname (uiop:pathname-directory-pathname *load-truename*))
  "The directory of this checkout.")

(defvar *stderr* *error-output*
  "Where failures are told, even while a load is kept quiet.")

(defun setting (name &optional default)
  "The environment variable NAME; DEFAULT when it is unset or empty."
  (let ((value (uiop:getenv name)))
    (if (or (null value) (string= value "")) default value)))

(defun give-up (control &rest arguments)
  "Tells why it can't go on, and exits with 1."
  (format *error-output* "~&~?~%" control arguments)
  (finish-output *error-output*)
  (uiop:quit 1))

;;; Nobody sits at a prompt: an unhandled error ends the process.

(defun leave (code)
  "Ends this process at once with CODE, from any thread."
  ;; QUIT, in a thread of ECL that is not the first, ends the process with 0.
  #+ecl (ext:exit code)
  #-ecl (uiop:quit code nil))

(defun fail (condition hook)
  "Tells CONDITION and where it happened, and exits with 1.  HOOK as in *DEBUGGER-HOOK*."
  (declare (ignore hook))
  (ignore-errors
   (format *stderr* "~&Unhandled ~S:~%  ~A~2%" (type-of condition) condition)
   (uiop:print-backtrace :stream *stderr* :condition condition :count 40))
  (ignore-errors (finish-output *standard-output*))
  (ignore-errors (finish-output *stderr*))
  (leave 1))

(setf *debugger-hook* #'fail)
;; What these two look at first, and in threads look at alone.
#+sbcl (setf sb-ext:*invoke-debugger-hook* #'fail)
#+ecl (setf ext:*invoke-debugger-hook* #'fail)


;;; Compiled files of this checkout live under build/, those at safety 3 apart.

(defvar *safety* (setting "SAFETY")
  "\"3\" when our own code is to be compiled with every check; else NIL.")

(defun build-directory ()
  "Where this Lisp's compiled files go."
  (uiop:subpathname *root* (format nil "build/~:[fasl~;safety-~:*~A~]/~A/"
                                   *safety* (uiop:implementation-identifier))))

(push *root* asdf:*central-registry*)

(asdf:initialize-output-translations
 `(:output-translations (,(uiop:wilden *root*) ,(uiop:wilden (build-directory)))
                        :inherit-configuration))

(setf *compile-verbose* nil *compile-print* nil *load-verbose* nil *load-print* nil)


;;; Quicklisp, where it is found and the user's own init file has not loaded it.

(defun load-quicklisp ()
  "Makes Quicklisp available if this machine has it; true if so."
  (let* ((home (setting "QUICKLISP_HOME"))
         (setup (if home
                    (uiop:subpathname (uiop:ensure-directory-pathname home) "setup.lisp")
                    (uiop:subpathname (user-homedir-pathname) "quicklisp/setup.lisp"))))
    (when (and (not (find-package '#:quicklisp)) (probe-file setup))
      (load setup))
    (find-package '#:quicklisp)))

(load-quicklisp)


;;; Loading: other people's systems quietly, ours with every warning shown.

(defun dependency-name (specification)
  "The system that SPECIFICATION, an element of :DEPENDS-ON, asks for here; else NIL."
  (cond ((atom specification) (string-downcase specification))
        ((eq (first specification) :version) (dependency-name (second specification)))
        ((eq (first specification) :feature)
         (when (uiop:featurep (second specification))
           (dependency-name (third specification))))))

(defun ours-p (name)
  "True if the system NAME is defined at the top of this checkout."
  (probe-file (uiop:subpathname *root* (concatenate 'string (asdf:primary-system-name name)
                                                    ".asd"))))

(defun direct-dependencies (name)
  "Names of the systems that our system NAME asks for itself."
  (remove nil (mapcar #'dependency-name
                      (asdf:component-sideway-dependencies (asdf:find-system name)))))

(defun dependencies (name)
  "Names of other people's systems that our system NAME needs, directly or through ours."
  (remove-duplicates
   (loop for each in (direct-dependencies name)
         append (if (ours-p each) (dependencies each) (list each)))
   :test #'string=))

(defun load-quietly (name log)
  "Loads the system NAME; what its compilation says goes to the stream LOG, but not why it failed."
  (let ((failure (let ((*standard-output* log) (*error-output* log) (*trace-output* log))
                   (handler-case (handler-bind ((warning #'muffle-warning))
                                   (asdf:load-system name)
                                   nil)
                     (error (condition) condition)))))
    (when failure
      (error "The system ~A could not be loaded: ~A" name failure))))

(defun load-dependencies (system)
  "Loads what our SYSTEM needs from others, telling what takes so long the first time."
  (let ((log-file (uiop:subpathname (build-directory) "dependencies.log"))
        (names (dependencies system)))
    (ensure-directories-exist log-file)
    (format t "~&Loading ~{~A~^, ~} (compiled at first use; details: ~A)~%"
            names (uiop:enough-pathname log-file (uiop:getcwd)))
    (finish-output)
    (with-open-file (log log-file :direction :output :if-exists :supersede)
      (dolist (name names)
        (load-quietly name log)))))

(defun demand-safety ()
  "Has everything compiled from now on at *SAFETY*, whatever the files themselves declare."
  (let ((level (parse-integer *safety*)))
    #+sbcl (sb-ext:restrict-compiler-policy 'safety level)
    #-sbcl (setf uiop:*optimization-settings* `((safety ,level)))))

(defun load-ours (systems)
  "Loads our SYSTEMS, for which everything of other people's is there."
  (when *safety*
    (demand-safety))
  ;; The compiler's notes on what it could not optimise are for who works on that.
  (handler-bind (#+sbcl (sb-ext:compiler-note #'muffle-warning))
    (mapc #'asdf:load-system systems)))

(defmacro from-user-package (&body body)
  "Evaluates BODY while the current package is not this one.  Files of other projects are compiled
on the way, into a cache that others use too, and some remember the package that is current."
  `(let ((*package* (find-package '#:common-lisp-user)))
     ,@body))

(defun load-own (system)
  "Loads our SYSTEM and, before it, what it needs."
  (from-user-package
    (load-dependencies system)
    (load-ours (list system))))

(defun source-files (system)
  "The files of our SYSTEM alone, in the order in which they are to be loaded."
  (mapcar #'asdf:component-pathname
          (asdf:required-components system :other-systems nil
                                           :keep-operation 'asdf:load-op
                                           :keep-component 'asdf:cl-source-file)))

(defun load-tests (system)
  "Loads our SYSTEM, of tests, and before it what it needs, as LOAD-OWN does."
  #-ecl (load-own system)
  ;; ECL's compiler takes minutes for the tests, more than for all that they test.  So they are
  ;; evaluated, form by form, for which ECL has a compiler to codes of a machine of its own.
  #+ecl
  (from-user-package
    (load-dependencies system)
    (load-ours (remove-if-not #'ours-p (direct-dependencies system)))
    (dolist (file (source-files system))
      (load file :external-format :utf-8))))

(in-package #:common-lisp-user)
