(in-package #:clack.handler.recycling)

;;;; Content-Type where an application does not say it: Clack's handler for Hunchentoot has one for
;;;; all text, and all handlers have one for files, by their names, so applications rely on them.

(defparameter *text-type* "text/html; charset=utf-8"
  "That of strings.")

(defun type-of-named-file (pathname)
  "The type of the file PATHNAME, by its name."
  (or (media-type-of-file pathname) "application/octet-stream"))
