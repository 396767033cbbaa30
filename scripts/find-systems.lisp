;;;; For scripts/install-dependencies: names the Lisp libraries that are not here.
;;;; SYSTEMS holds names of our systems.  Where there is Quicklisp, it is asked to
;;;; bring what is missing; what is missing all the same is printed, one
;;;; "missing-system NAME" a line.

(in-package #:hunchentoot-recycling-taskmaster-scripts)

(defun present-p (name)
  "True if ASDF knows where the system NAME is."
  (asdf:find-system name nil))

(defun bring (name)
  "Lets Quicklisp download the system NAME; tells why when it can't."
  (handler-case (uiop:symbol-call '#:quicklisp '#:quickload name :silent t)
    (error (condition)
      (format t "~&Quicklisp could not bring ~A: ~A~%" name condition))))

(defun missing ()
  "Names of libraries that SYSTEMS need and ASDF can't find."
  (remove-if #'present-p
             (remove-duplicates
              (mapcan #'dependencies (uiop:split-string (setting "SYSTEMS")))
              :test #'string=)))

(when (find-package '#:quicklisp)
  (dolist (name (missing))
    (format t "~&Quicklisp brings ~A~%" name)
    (finish-output)
    (bring name)))

(format t "~&~{missing-system ~A~%~}" (missing))
(finish-output)
(uiop:quit 0)
