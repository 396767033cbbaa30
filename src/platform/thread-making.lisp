(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; No thread is made once the process exits.  SBCL's EXIT takes the lock that a thread needs to
;;;; make another one, unwinds all other threads, and waits for their ends, for a minute by default.
;;;; A thread that tries to make another one meanwhile waits for that lock, where no interrupt can
;;;; reach it, so the exit would take that whole minute.  Therefore an exit hook, which runs before
;;;; EXIT takes the lock, waits for threads that are making one, and prevents it from then on.

(define-condition process-exits (recycling-error)
  ()
  (:report "The process exits, so no thread is made.")
  (:documentation "A thread cannot be made, since the process exits."))

(defvar *thread-making-lock* (bt:make-lock "thread making")
  "Guards the next two variables.")

(defvar *exiting-p* nil
  "True once the process exits.")

(defvar *thread-makers* 0
  "The number of threads that are making another one.")

(defun process-exits-p ()
  "True once the process has begun an orderly exit, after which no thread is made."
  *exiting-p*)

(defun begin-making-thread ()
  "Counts the current thread as one that makes another.  Signals PROCESS-EXITS once the process
exits."
  (with-lock-briefly (*thread-making-lock*)
    (when *exiting-p*
      (error 'process-exits))
    (incf *thread-makers*)))

(defun call-making-thread (function)
  "Calls FUNCTION, a function without arguments that makes a thread, and returns its values.  Once
the process exits, signals PROCESS-EXITS instead."
  (begin-making-thread)
  (unwind-protect (funcall function)
    (with-lock-briefly (*thread-making-lock*)
      (decf *thread-makers*))))

(defun end-thread-making (&optional (seconds 1))
  "Prevents all threads from making another one, and waits up to SECONDS, a real, for those that are
making one.  An exit hook."
  (with-lock-briefly (*thread-making-lock*)
    (setf *exiting-p* t))
  (wait-until (lambda () (zerop *thread-makers*))
              (bt:make-condition-variable) *thread-making-lock* seconds 1/1000))

(defun call-at-exit (name)
  "Registers the function NAME, a symbol, as an exit hook without arguments.  It runs after the
hooks of programs, which may stop servers and need threads for that.  Does nothing except on SBCL."
  #+sbcl
  (unless (member name sb-ext:*exit-hooks*)
    (setf sb-ext:*exit-hooks* (append sb-ext:*exit-hooks* (list name))))
  name)

(call-at-exit 'end-thread-making)
