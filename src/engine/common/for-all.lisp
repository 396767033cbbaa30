(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; Doing something for each of several connections, even if one fails.

(defun call-for-all (function list)
  "Calls FUNCTION with each element of LIST.  If one call exits non-locally, the others still
happen, and the first of these exits then goes on."
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
