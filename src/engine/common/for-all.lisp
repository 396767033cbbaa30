(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; What is to be done for each of several connections, whatever becomes of one.

(defun call-to-end (step)
  "Calls STEP, a function without arguments, until that returns NIL, also after it was left by a non-local exit.  That goes
on when all is done; it is the first where there are several."
  (unwind-protect (loop while (funcall step))
    ;; It was left.  Thousands of exits, each amid the one before, would need more stack than there is.
    (loop with more-p = t
          while more-p
          do (block nil
               (unwind-protect (setf more-p (funcall step))
                 (return))))))

(defun call-for-all (function list)
  "Calls FUNCTION with each element of LIST, also with those behind one with which it is left; see CALL-TO-END."
  (flet ((call-for-next ()
           (when list
             (funcall function (pop list))
             t)))
    (declare (dynamic-extent #'call-for-next))
    (call-to-end #'call-for-next)))
