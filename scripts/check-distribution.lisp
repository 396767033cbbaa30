;;;; For scripts/check-distribution, which has the rules.  With SYSTEM, loads that system, to which
;;;; no warning may occur.  Else checks what the system definitions and the documents say, and
;;;; prints the names of all our systems.

(in-package #:hunchentoot-recycling-taskmaster-scripts)

(defvar *version*
  (uiop:read-file-form (uiop:subpathname *root* "version.sexp")))

(defun definition-files ()
  "The .asd files of this checkout."
  (uiop:directory-files *root* "*.asd"))

(defun systems-of (file)
  "The systems that FILE defines."
  (let ((before (asdf:registered-systems)))
    (asdf:load-asd file)
    (mapcar #'asdf:find-system
            (sort (set-difference (asdf:registered-systems) before :test #'string=) #'string<))))

;;; What definitions say

(defun simple-dependency-p (dependency)
  "True when Quicklisp understands DEPENDENCY, an element of :DEPENDS-ON."
  (flet ((name-p (thing) (typep thing '(or string symbol))))
    (or (name-p dependency)
        (name-p (ecase (first dependency)
                  ((:version :require) (second dependency))
                  (:feature (third dependency)))))))

(defun check-definition (system file)
  "Gives up unless SYSTEM, which FILE defines, says what it must."
  (let ((name (asdf:component-name system)))
    (flet ((must (truth rule)
             (unless truth
               (give-up "~A: the system ~A ~A." (file-namestring file) name rule))))
      (must (string= (pathname-name file) (asdf:primary-system-name system))
            "is not called as its file")
      (loop for (reader what) in '((asdf:system-description "description")
                                   (asdf:system-author "author")
                                   (asdf:system-license "licence"))
            do (must (plusp (length (funcall reader system))) (format nil "has no ~A" what)))
      (must (equal *version* (asdf:component-version system))
            (format nil "is not of version ~A" *version*))
      (must (null (asdf:system-defsystem-depends-on system)) "loads others to be read")
      (must (every #'simple-dependency-p (asdf:component-sideway-dependencies system))
            "has dependencies that Quicklisp does not understand"))))

(defun check-definitions ()
  "Checks all .asd files of this checkout; returns the names of the systems that they define."
  (loop for file in (definition-files)
        for systems = (systems-of file)
        do (dolist (system systems) (check-definition system file))
        append (mapcar #'asdf:component-name systems)))

;;; What documents say

(defun check-release (document prefix end)
  "Gives up unless the first line of DOCUMENT with PREFIX, up to END, has the version."
  (let ((line (find prefix (uiop:read-file-lines (uiop:subpathname *root* document))
                    :test (lambda (prefix line) (uiop:string-prefix-p prefix line))))
        (start (length prefix)))
    (unless (and line
                 (equal *version*
                        (subseq line start
                                (position-if (lambda (character) (find character end))
                                             line :start start))))
      (give-up "~A: ~S has not the version ~A." document line *version*))))

(defun check-documents ()
  (dolist (name '("README.md" "LICENSE"))
    (unless (probe-file (uiop:subpathname *root* name))
      (give-up "There is no ~A." name)))
  (check-release "CHANGELOG.md" "## [" "]")
  (check-release "debian/changelog" "cl-hunchentoot-recycling-taskmaster (" "-)"))

;;; Loading

(defun missing-dependencies (name)
  "Names of other people's systems that our system NAME needs and that are not here."
  (remove-if (lambda (each) (asdf:find-system each nil)) (dependencies name)))

(defun load-without-warnings (name)
  "Loads our system NAME, after what it needs; gives up at the first warning."
  (from-user-package
    (load-dependencies name)
    (handler-bind ((warning (lambda (warning)
                              ;; SBCL prints none of the latter.
                              (unless (typep warning sb-ext:*muffled-warnings*)
                                (give-up "~A: a warning: ~A" name warning)))))
      (load-ours (list name)))))

(defun check-loading (name)
  "Loads our system NAME, if what it needs is here."
  (let ((missing (missing-dependencies name)))
    (cond (missing
           (format t "~&~A: not loaded, for want of ~{~A~^, ~}~%" name missing))
          (t
           (load-without-warnings name)
           (format t "~&~A: loaded~%" name)))))

(let ((system (setting "SYSTEM")))
  (cond (system
         (check-loading system))
        (t
         (check-documents)
         (format t "~&~{~A~%~}" (check-definitions)))))
(finish-output)
