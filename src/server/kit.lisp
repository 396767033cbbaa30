(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; What a worker needs to serve any connection, and lends to the one it serves.

(defstruct (kit (:include opaque) (:constructor make-kit ()))
  "The tools of a worker."
  (inputs '() :type list)               ; buffers that no wire uses
  (outputs '() :type list)
  (parser nil)                          ; of request heads, between two requests
  (reply (make-output) :read-only t)    ; where replies are made
  (line (make-output) :read-only t))    ; where a line of a journal is made

(defvar *kit* nil
  "In the thread of a worker, its kit; elsewhere NIL.")

(defun call-with-kit (thunk)
  "Calls THUNK, which is the life of a worker, with a kit."
  (let ((*kit* (make-kit)))
    (funcall thunk)))
