(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; What a worker needs to serve any connection, and lends to the one it serves.

(defstruct (kit (:include opaque) (:constructor make-kit ()))
  "The tools of a worker."
  (input nil)                           ; a buffer that no wire uses, or NIL
  (output nil)
  (parser nil)                          ; of request heads, between two requests
  (reply (make-output) :read-only t)    ; where replies are made
  (line (make-output) :read-only t))    ; where a line of a journal is made

(defvar *kit* nil
  "In the thread of a worker, its kit; elsewhere NIL.")

(defun call-with-kit (thunk)
  "Calls THUNK, which is the life of a worker, with a kit."
  (let ((*kit* (make-kit)))
    (funcall thunk)))

;;; What no thread uses

(defstruct (rack (:include opaque) (:constructor make-rack (most)) (:copier nil))
  "Objects that no thread uses, MOST at most, for any thread that wants one."
  (most 0 :type index :read-only t)
  (items '() :type list))

(setf (documentation 'make-rack 'function)
      "A rack, empty, of MOST objects at most, an integer, that no thread uses.")

(defun take-from-rack (rack)
  "An object of RACK, the caller's from now on; NIL when it has none."
  (loop for items = (rack-items rack)
        while items
        when (compare-and-set (rack-items rack) items (rest items))
          return (first items)))

(defun put-on-rack (rack object)
  "Leaves OBJECT to RACK; it becomes garbage when the rack is full, or another thread was faster."
  (let ((items (rack-items rack)))
    (when (< (length items) (rack-most rack))
      (compare-and-set (rack-items rack) items (cons object items)))))

;;; Threads that are no workers, or visit another connection than that which they serve, borrow a kit.

(defvar *kits* (make-rack 16)
  "Kits that no thread uses.")

(defun borrow-kit ()
  (or (take-from-rack *kits*) (make-kit)))

(defun return-kit (kit)
  (put-on-rack *kits* kit))

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
