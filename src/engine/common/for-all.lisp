(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; What is to be done for each of several connections, whatever becomes of one.

(defun call-for-all (function list)
  "Calls FUNCTION with each element of LIST, also with those behind one with which it is left by a non-local exit."
  (unwind-protect (loop while list
                        do (funcall function (pop list)))
    (when list                          ; it was left
      (call-for-all function list))))
