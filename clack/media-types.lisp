(in-package #:clack.handler.recycling)

;;;; The Content-Type of responses for which the application sets none.  Applications rely on it:
;;;; Clack's handler for Hunchentoot has one for all text, and all handlers derive one for files
;;;; from their names.

(defparameter *text-type* "text/html; charset=utf-8"
  "The type of strings.")

(defun type-of-named-file (pathname)
  "The type of the file PATHNAME, derived from its name."
  (or (media-type-of-file pathname) "application/octet-stream"))
