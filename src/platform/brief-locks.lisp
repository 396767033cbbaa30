(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; Locks that a thread holds only while it changes a few slots.
;;;;
;;;; A thread of an engine or of a log defers interrupts (UNINTERRUPTIBLY), and lets them run
;;;; (INTERRUPTIBLY) only while functions of programs run, and in waits.  A thread of a program, and
;;;; a handler, may be interrupted anywhere, by a time limit for one; so our functions defer
;;;; interrupts while they hold a lock, or own a connection.

(defmacro with-lock-briefly ((lock) &body body)
  "Evaluates BODY, which must be short and wait for nothing, while the current thread holds LOCK.
As far as UNINTERRUPTIBLY works in this Lisp, no interrupt, BT:DESTROY-THREAD or deadline of a
program ends BODY half done."
  #+sbcl
  ;; BT:WITH-LOCK-HELD takes twice the time, since it enables interrupts in between.
  (let ((mutex (gensym "MUTEX")))
    `(uninterruptibly
       (let ((,mutex ,lock))
         (sb-thread:grab-mutex ,mutex)
         (unwind-protect (progn ,@body)
           (sb-thread:release-mutex ,mutex)))))
  #-sbcl
  `(uninterruptibly
     (bt:with-lock-held (,lock)
       ,@body)))
