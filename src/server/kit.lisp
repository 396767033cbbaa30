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

;;; Threads that are no workers, or visit another connection than that which they serve, borrow one.

(defstruct (kit-rack (:include opaque))
  "Kits that nobody uses."
  (kits '() :type list))

(defvar *kit-rack* (make-kit-rack))

(defparameter *most-kits-kept* 16
  "How many kits that nobody uses are kept.")

(defun borrow-kit ()
  (loop for kits = (kit-rack-kits *kit-rack*)
        while kits
        when (compare-and-set (kit-rack-kits *kit-rack*) kits (rest kits))
          return (first kits)
        finally (return (make-kit))))

(defun return-kit (kit)
  (let ((kits (kit-rack-kits *kit-rack*)))
    (when (< (length kits) *most-kits-kept*)
      ;; Where another thread was faster, this one is garbage.
      (compare-and-set (kit-rack-kits *kit-rack*) kits (cons kit kits)))))

(defvar *spare-kit* nil
  "In a thread that visits many connections, one after the other, the kit for the next visit; NIL amid one, and elsewhere.")

(defun call-with-borrowed-kit (thunk)
  "Calls THUNK, a function without arguments, with a kit that nobody else uses meanwhile; returns what that does."
  (let* ((spare (shiftf *spare-kit* nil))
         (*kit* (or spare (borrow-kit))))
    (multiple-value-prog1 (funcall thunk)
      (if spare
          (setf *spare-kit* spare)
          (return-kit *kit*)))))

(defun call-with-spare-kit (thunk)
  "Calls THUNK, a function without arguments that visits many connections, with a kit for their visits; returns what that
does."
  (let ((*spare-kit* (borrow-kit)))
    (multiple-value-prog1 (funcall thunk)
      (when *spare-kit*
        (return-kit *spare-kit*)))))
