(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; What is to be done for each of several connections, whatever becomes of one.

(defun call-for-all (function list)
  "Calls FUNCTION with each element of LIST, also with those behind one with which it is left by a
non-local exit.  That goes on when all is done; it is the first where there are several."
  (flet ((call-for-next ()
           (when list
             (funcall function (pop list))
             t)))
    (declare (dynamic-extent #'call-for-next))
    (unwind-protect (loop while (call-for-next))
      ;; It was left.  Thousands of nested exits would need more stack than there is.
      (loop with more-p = t
            while more-p
            do (block nil
                 (unwind-protect (setf more-p (call-for-next))
                   (return)))))))
