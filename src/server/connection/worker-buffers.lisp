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

(defun call-with-borrowed-worker-buffers (thunk)
  "Calls THUNK, a function without arguments, with worker buffers that no other thread uses.
Returns what THUNK returns."
  (let ((*worker-buffers* (or (take-from-free-list *free-worker-buffers*) (make-worker-buffers))))
    (multiple-value-prog1 (funcall thunk)
      (put-on-free-list *free-worker-buffers* *worker-buffers*))))

;;; Buffers for input and output

(eval-when (:compile-toplevel :load-toplevel :execute)
  (defconstant +vector-header-octets+ 16
    "How many octets of SBCL's heap a vector takes before its elements.  The heap consists of pages
of 32 KiB.  A vector of 16 KiB plus header takes a whole page, and half of that is lost."))
(defconstant +input-size+ (- (* 16 1024) +vector-header-octets+))
(defconstant +output-size+ (- (* 32 1024) +vector-header-octets+))

;; A connection often takes a buffer in one thread and returns it in another.  So each worker keeps
;; at most one of each kind, and all threads share a free list for the others.  Wherever the buffers
;; flow, about as many exist as are in use.

(defvar *input-buffers* (make-free-list 32)
  "Input buffers that neither a connection nor a worker has.")

(defvar *output-buffers* (make-free-list 32)
  "Output buffers that neither a connection nor a worker has.")

(defun take-buffer (kind)
  "A buffer of KIND, :INPUT or :OUTPUT."
  (ecase kind
    (:input (or (and *worker-buffers* (shiftf (worker-buffers-input *worker-buffers*) nil))
                (take-from-free-list *input-buffers*)
                (make-octets +input-size+)))
    (:output (or (and *worker-buffers* (shiftf (worker-buffers-output *worker-buffers*) nil))
                 (take-from-free-list *output-buffers*)
                 (make-octets +output-size+)))))

(defun return-buffer (kind buffer)
  "Keeps BUFFER, to which nothing refers any more, for the next connection that takes one of KIND."
  (ecase kind
    ;; A buffer that grew, for a long head for example, is not kept.
    (:input (cond ((/= (length (the octets buffer)) +input-size+))
                  ((and *worker-buffers* (null (worker-buffers-input *worker-buffers*)))
                   (setf (worker-buffers-input *worker-buffers*) buffer))
                  (t (put-on-free-list *input-buffers* buffer))))
    (:output (if (and *worker-buffers* (null (worker-buffers-output *worker-buffers*)))
                 (setf (worker-buffers-output *worker-buffers*) buffer)
                 (put-on-free-list *output-buffers* buffer)))))
