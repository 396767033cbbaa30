(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; What is to be done for each of several connections, whatever becomes of one.

(defun call-for-all (function list)
  "Calls FUNCTION with each element of LIST, also with those behind one with which it is left by a non-local exit.  That goes
on when all are done; it is the first where there are several."
  (unwind-protect (loop while list
                        do (funcall function (pop list)))
    ;; It was left.  Thousands of exits, each amid the one before, would need more stack than there is.
    (loop while list
          do (block nil
               (unwind-protect (funcall function (pop list))
                 (return))))))
