(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; No thread is made once the process exits.  SBCL's EXIT takes the lock that each making of a
;;;; thread needs, has all other threads unwind, and waits for their ends, for a minute by default.
;;;; A thread that tries to make another one meanwhile waits for that lock, where no interrupt
;;;; reaches it, and so the exit lasts that minute.  Therefore an exit hook, which runs before that,
;;;; waits until nobody is about to make a thread, and keeps everybody from it afterwards.

(define-condition process-exits (recycling-error)
  ()
  (:report "The process exits, so no thread is made.")
  (:documentation "Signalled in the place of making a thread."))

(defvar *thread-making-lock* (bt:make-lock "thread making")
  "Guards the next two variables.")

(defvar *exiting-p* nil
  "True once the process exits.")

(defvar *thread-makers* 0
  "How many threads make another one now.")

(defun process-exits-p ()
  "True once the process exits in order: no thread is made any more."
  *exiting-p*)

(defun begin-making-thread ()
  "Counts the current thread among those that make another one.  Signals PROCESS-EXITS when that is
too late."
  (with-lock-briefly (*thread-making-lock*)
    (when *exiting-p*
      (error 'process-exits))
    (incf *thread-makers*)))

(defun call-making-thread (function)
  "Calls FUNCTION, a function without arguments that makes a thread, and returns its values.
Signals PROCESS-EXITS, an error, and does not call it, once the process exits."
  (with-acquired (makers (begin-making-thread)
                         (with-lock-briefly (*thread-making-lock*)
                           (decf *thread-makers*)))
    (when makers
      (funcall function))))

(defun end-thread-making (&optional (seconds 1))
  "Keeps everybody from making threads, and waits up to SECONDS, a real, for those who are at it.
An exit hook."
  (with-lock-briefly (*thread-making-lock*)
    (setf *exiting-p* t))
  (wait-until (lambda () (zerop *thread-makers*))
              (bt:make-condition-variable) *thread-making-lock* seconds 1/1000))

(defun call-at-exit (name)
  "Has the function NAME, a symbol, called without arguments when the process exits in order, behind
the hooks of programs: these may stop servers, and need threads for that.  Does nothing where the
Lisp need not be told."
  #+sbcl
  (unless (member name sb-ext:*exit-hooks*)
    (setf sb-ext:*exit-hooks* (append sb-ext:*exit-hooks* (list name))))
  name)

(call-at-exit 'end-thread-making)
