(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; What a worker needs to serve any connection, and lends to the one it serves.

(defstruct (worker-buffers (:include opaque) (:constructor make-worker-buffers ()))
  "The tools of a worker."
  (input nil)                           ; a buffer that no buffered connection uses, or NIL
  (output nil)
  (parser nil)                          ; of request heads, between two requests
  (reply (make-output) :read-only t)    ; where replies are made
  (line (make-output) :read-only t))    ; where a line of a journal is made

(defvar *worker-buffers* nil
  "In the thread of a worker, its worker buffers; elsewhere NIL.")

(defun call-with-worker-buffers (thunk)
  "Calls THUNK, which is the life of a worker, with worker buffers."
  (let ((*worker-buffers* (make-worker-buffers)))
    (funcall thunk)))

;;; What no thread uses

(defstruct (free-list (:include opaque) (:constructor make-free-list (most)) (:copier nil))
  "Objects that no thread uses, MOST at most, for any thread that wants one."
  (most 0 :type index :read-only t)
  (items '() :type list))

(setf (documentation 'make-free-list 'function)
      "A free list, empty, of MOST objects at most, an integer, that no thread uses.")

(defun take-from-free-list (free-list)
  "An object of FREE-LIST, the caller's from now on; NIL when it has none."
  (loop for items = (free-list-items free-list)
        while items
        when (compare-and-set (free-list-items free-list) items (rest items))
          return (first items)))

(defun put-on-free-list (free-list object)
  "Leaves OBJECT to FREE-LIST; it becomes garbage when the free list is full, or another thread was
faster."
  (let ((items (free-list-items free-list)))
    (when (< (length items) (free-list-most free-list))
      (compare-and-set (free-list-items free-list) items (cons object items)))))

;;; Threads that are no workers, or visit another connection than that which they serve, borrow
;;; worker buffers.

(defvar *free-worker-buffers* (make-free-list 16)
  "Worker buffers that no thread uses.")

(defun borrow-worker-buffers ()
  (or (take-from-free-list *free-worker-buffers*) (make-worker-buffers)))

(defun return-worker-buffers (worker-buffers)
  (put-on-free-list *free-worker-buffers* worker-buffers))

(defvar *spare-worker-buffers* nil
  "In a thread that visits many connections, one after the other, the worker buffers for the next
visit; NIL amid one, and elsewhere.")

(defun call-with-borrowed-worker-buffers (thunk)
  "Calls THUNK, a function without arguments, with worker buffers that nobody else uses meanwhile;
returns what that does."
  (let* ((spare (shiftf *spare-worker-buffers* nil))
         (*worker-buffers* (or spare (borrow-worker-buffers))))
    (multiple-value-prog1 (funcall thunk)
      (if spare
          (setf *spare-worker-buffers* spare)
          (return-worker-buffers *worker-buffers*)))))

(defun call-with-spare-worker-buffers (thunk)
  "Calls THUNK, a function without arguments that visits many connections, with worker buffers for
their visits; returns what that does."
  (let ((*spare-worker-buffers* (borrow-worker-buffers)))
    (multiple-value-prog1 (funcall thunk)
      (when *spare-worker-buffers*
        (return-worker-buffers *spare-worker-buffers*)))))
