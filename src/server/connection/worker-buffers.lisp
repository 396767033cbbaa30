(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; The buffers of a worker, which it lends to the connection that it serves.

(defstruct (worker-buffers (:include opaque) (:constructor make-worker-buffers ()))
  "The buffers and the parser of a worker."
  (input nil)                           ; a buffer that no connection uses, or NIL
  (output nil)
  (parser nil)                          ; of request heads, between two requests
  (reply (make-output) :read-only t)    ; replies are composed here
  (line (make-output) :read-only t))    ; lines of a journal are composed here

(defvar *worker-buffers* nil
  "The worker buffers of the current thread, if it is a worker; otherwise NIL.")

(defun call-with-worker-buffers (thunk)
  "Calls THUNK, the main function of a worker, with worker buffers."
  (let ((*worker-buffers* (make-worker-buffers)))
    (funcall thunk)))

;;; Objects that no thread uses

(defstruct (free-list (:include opaque) (:constructor make-free-list (most)) (:copier nil))
  "At most MOST objects that no thread uses, for any thread to take."
  (most 0 :type index :read-only t)
  (items '() :type list))

(setf (documentation 'make-free-list 'function)
      "An empty free list of at most MOST objects, an integer.")

(defun take-from-free-list (free-list)
  "Removes an object from FREE-LIST and returns it; NIL when it has none."
  (loop for items = (free-list-items free-list)
        while items
        when (compare-and-set (free-list-items free-list) items (rest items))
          return (first items)))

(defun put-on-free-list (free-list object)
  "Adds OBJECT to FREE-LIST.  OBJECT becomes garbage when the free list is full, or when another
thread changes it at the same time."
  (let ((items (free-list-items free-list)))
    (when (< (length items) (free-list-most free-list))
      (compare-and-set (free-list-items free-list) items (cons object items)))))

;;; A thread borrows worker buffers when it is no worker, or when it resumes another connection than
;;; the one that it serves.

(defvar *free-worker-buffers* (make-free-list 16)
  "Worker buffers that no thread uses.")

(defun borrow-worker-buffers ()
  "Worker buffers that no thread uses, perhaps new."
  (or (take-from-free-list *free-worker-buffers*) (make-worker-buffers)))

(defun return-worker-buffers (worker-buffers)
  "Keeps WORKER-BUFFERS, which the caller has borrowed, for other threads."
  (put-on-free-list *free-worker-buffers* worker-buffers))

(defvar *spare-worker-buffers* nil
  "In a thread that resumes many connections one after the other, the worker buffers for the next
one; NIL during one, and in other threads.")

(defun call-with-borrowed-worker-buffers (thunk)
  "Calls THUNK, a function without arguments, with worker buffers that no other thread uses.
Returns what THUNK returns."
  (let* ((spare (shiftf *spare-worker-buffers* nil))
         (*worker-buffers* (or spare (borrow-worker-buffers))))
    (multiple-value-prog1 (funcall thunk)
      (if spare
          (setf *spare-worker-buffers* spare)
          (return-worker-buffers *worker-buffers*)))))

(defun call-with-spare-worker-buffers (thunk)
  "Calls THUNK, a function without arguments that resumes many connections, with worker buffers for
all of them.  Returns what THUNK returns."
  (let ((*spare-worker-buffers* (borrow-worker-buffers)))
    (multiple-value-prog1 (funcall thunk)
      (when *spare-worker-buffers*
        (return-worker-buffers *spare-worker-buffers*)))))
