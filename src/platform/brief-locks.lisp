(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; Locks that are held for as long as it takes to change a few slots.

(defmacro with-lock-briefly ((lock) &body body)
  "Evaluates BODY, which is short and waits for nothing, while the current thread holds LOCK, whole:
neither an interrupt nor BT:DESTROY-THREAD leaves it half done, as far as UNINTERRUPTIBLY can do
that here; nor does a program's deadline."
  #+sbcl
  ;; Half of what BT:WITH-LOCK-HELD costs goes into letting interrupts come in between.
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
