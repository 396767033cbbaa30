(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* conformance/confidence :in conformance
  :description "Hunchentoot's own confidence suite, where its files are present.")

;;; It comes as system hunchentoot-test with 1.2.38, as hunchentoot/test with 1.3.
;;; Debian's package has its system definition but not its files.

(defvar *confidence-dispatch-table* nil
  "The dispatch table that loading the suite leaves behind; it is made only then.")

(defun find-system (name)
  "The system NAME; NIL when ASDF cannot find it.  What ASDF says of the style of the file where it
is defined is no matter of ours."
  (handler-bind ((warning #'muffle-warning))
    (ignore-errors (asdf:find-system name nil))))

(defun system-present-p (name)
  "Whether ASDF finds system NAME, all its files and all systems that it depends on."
  (let ((system (find-system name)))
    (and system
         (every #'component-present-p (asdf:component-children system))
         (every #'find-system (asdf:system-depends-on system)))))

(defun component-present-p (component)
  "Whether all files of COMPONENT, a file or module, exist."
  (if (typep component 'asdf:module)
      (every #'component-present-p (asdf:component-children component))
      (probe-file (asdf:component-pathname component))))

(defun confidence-system ()
  "The name of the system with the suite, or NIL when it can't be loaded."
  (find-if #'system-present-p '("hunchentoot-test" "hunchentoot/test")))

(defun forget-file-name ()
  "Reduces the file where the suite believes to be to its directory.  The suite of 1.2.38
makes it the default pathname, and then SBCL misses system files of type lisp."
  (let ((variable (uiop:find-symbol* '#:*this-file* '#:hunchentoot-test)))
    (setf (symbol-value variable)
          (uiop:pathname-directory-pathname (symbol-value variable)))))

(defun load-confidence-suite (system)
  "Loads SYSTEM quietly and keeps its dispatch table to ourselves."
  (unless *confidence-dispatch-table*
    (let ((*standard-output* (make-broadcast-stream))
          (*error-output* (make-broadcast-stream)))
      (with-globals ((hunchentoot:*dispatch-table* hunchentoot:*dispatch-table*))
        (asdf:load-system system)
        (forget-file-name)
        (setf *confidence-dispatch-table* hunchentoot:*dispatch-table*)))))

(defun confidence-failure ()
  "The name of the condition that the suite signals for a failure, then goes on."
  (flet ((name (name) (uiop:find-symbol* name '#:hunchentoot-test nil)))
    (or (name '#:test-failure)          ; 1.3
        (name '#:assertion-failed))))   ; 1.2.38

(defun run-confidence-suite (url)
  "Runs the suite against the server at URL; returns sentences about its failures."
  (let ((failures '())
        (failure (confidence-failure))
        (*standard-output* (make-broadcast-stream)))
    (handler-bind ((condition (lambda (condition)
                                (when (typep condition failure)
                                  (push (princ-to-string condition) failures)))))
      (uiop:symbol-call '#:hunchentoot-test '#:test-hunchentoot url))
    (uiop:symbol-call '#:hunchentoot-test '#:clean-tmp-dir)
    (nreverse failures)))

(defun confidence-failures ()
  "What fails when the suite is run against an acceptor of *ACCEPTOR-CLASS*."
  (with-globals ((hunchentoot:*dispatch-table* *confidence-dispatch-table*))
    (serving () ()
      (run-confidence-suite (format nil "http://127.0.0.1:~D"
                                    (hunchentoot:acceptor-port *server*))))))

(defun stock-confidence-failures ()
  "What fails when the suite is run against Hunchentoot's own acceptor."
  (let ((*acceptor-class* 'hunchentoot:easy-acceptor)
        (*acceptor-initargs* (constantly '())))
    (confidence-failures)))

(define-server-test hunchentoots-own-confidence-suite-passes
  "The suite of 1.2.38 has a mistake of its own, so it may fail where it also does with
Hunchentoot's own acceptor."
  (let ((system (confidence-system)))
    (if (null system)
        (skip "Hunchentoot's confidence suite, with cl-who and drakma, is not installed.")
        (progn
          (load-confidence-suite system)
          (let ((failures (confidence-failures)))
            (is (or (null failures)
                    (<= (length failures) (length (stock-confidence-failures))))
                "These assertions fail: ~{~A~}" failures))))))
