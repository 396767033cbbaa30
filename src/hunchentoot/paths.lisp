(in-package #:hunchentoot-recycling-taskmaster)

;;;; The pathname that a request asks for.
;;;;
;;;; Folder dispatchers and acceptors with a document root call HUNCHENTOOT:REQUEST-PATHNAME.  It
;;;; makes a pathname of the request's path by regular expressions, and checks it, which is more
;;;; work than to open and read a small file.  Its value depends only on the two strings and the
;;;; default pathname, so we cache it.  A definition of the program's may depend on more, and is
;;;; called each time.

(defparameter *known-path-limit* 256
  "Longer paths are not cached, since clients choose them, and could fill the memory.")

(defstruct (known-path (:include opaque)
                       (:constructor make-known-path (path prefix defaults pathname)))
  "The PATHNAME that Hunchentoot makes of PATH without PREFIX, after its checks."
  (path "" :type string :read-only t)   ; our copy, since programs may change theirs
  (prefix nil :read-only t)             ; likewise; NIL for none
  (defaults nil :read-only t)           ; of pathnames
  (pathname nil :type pathname :read-only t))

(defvar *known-paths* (make-array 1024 :initial-element nil)
  "A cache: each known path is at the index that its path hashes to, until another one replaces
it.")

(defun find-path (function request path prefix)
  "The cached or new value of FUNCTION for REQUEST with PATH and PREFIX."
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
  "Hunchentoot's definition, whose values can be cached.")

(defun known-request-pathname (function &optional (request hunchentoot:*request*) prefix)
  "The value of FUNCTION, a definition of REQUEST-PATHNAME, for REQUEST and PREFIX."
  (let ((path (hunchentoot:script-name request)))
    (if (and (eq function *hunchentoots-request-pathname*)
             (simple-string-p path)
             (typep prefix '(or null string))
             (<= (length path) *known-path-limit*))
        (find-path function request path prefix)
        (funcall function request prefix))))

(wrap-function 'hunchentoot:request-pathname 'known-request-pathname)
