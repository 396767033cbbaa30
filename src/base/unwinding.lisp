(in-package #:hunchentoot-recycling-taskmaster.base)

(defmacro unless-returned (form &body cleanup)
  "Evaluates FORM and returns its values.  If a non-local exit leaves FORM, evaluates CLEANUP on the
way."
  (let ((returned-p (gensym "RETURNED-P")))
    `(let ((,returned-p nil))
       (unwind-protect (multiple-value-prog1 ,form
                         (setf ,returned-p t))
         (unless ,returned-p
           ,@cleanup)))))
