(in-package #:hunchentoot-recycling-taskmaster)

;;;; The pathname that a request asks for.
;;;;
;;;; Folder dispatchers and acceptors with a document root call HUNCHENTOOT:REQUEST-PATHNAME, which
;;;; makes a pathname of the request's path by regular expressions, and checks it: more work than
;;;; the opening and reading of a small file.  Its answer depends on nothing but the two strings and
;;;; the default pathname, so it is remembered.  Where the program has defined the function anew,
;;;; that might depend on more, and is called each time.

(defparameter *known-path-limit* 256
  "Longer paths are not remembered: clients choose them, and must not fill the memory.")

(defstruct (known-path (:include opaque)
                       (:constructor make-known-path (path prefix defaults pathname)))
  "What Hunchentoot makes of PATH without PREFIX: a PATHNAME that it takes for safe."
  (path "" :type string :read-only t)   ; our copy, since programs may change theirs
  (prefix nil :read-only t)             ; likewise; NIL for none
  (defaults nil :read-only t)           ; of pathnames
  (pathname nil :type pathname :read-only t))

(defvar *known-paths* (make-array 1024 :initial-element nil)
  "Each in the place that its path hashes to, until another takes that.")

(defun find-path (function request path prefix)
  "What FUNCTION answers for REQUEST with PATH and PREFIX."
  (let* ((place (mod (sxhash path) (length *known-paths*)))
         (known (svref *known-paths* place)))
    (if (and known
             (string= path (known-path-path known))
             (equal prefix (known-path-prefix known))
             (eq *default-pathname-defaults* (known-path-defaults known)))
        (known-path-pathname known)
        (let ((pathname (funcall function request prefix)))
          (when pathname
            (set-published (svref *known-paths* place)
                     (make-known-path (copy-seq path) (and prefix (copy-seq prefix))
                                      *default-pathname-defaults* pathname)))
          pathname))))

(defvar *hunchentoots-request-pathname* (fdefinition 'hunchentoot:request-pathname)
  "The function whose answers are known to depend on its strings alone.")

(defun known-request-pathname (function &optional (request hunchentoot:*request*) prefix)
  "As FUNCTION, a definition of REQUEST-PATHNAME, answers for REQUEST and PREFIX."
  (let ((path (hunchentoot:script-name request)))
    (if (and (eq function *hunchentoots-request-pathname*)
             (simple-string-p path)
             (typep prefix '(or null string))
             (<= (length path) *known-path-limit*))
        (find-path function request path prefix)
        (funcall function request prefix))))

(wrap-function 'hunchentoot:request-pathname 'known-request-pathname)
