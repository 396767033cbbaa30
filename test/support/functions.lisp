(in-package #:hunchentoot-recycling-taskmaster-test)

;;; Data for which functions may not end

(defun circular (&rest elements)
  "A list of ELEMENTS without an end."
  (setf (rest (last elements)) elements))

;;; Errors about arguments

(defun error-of (function)
  "The error that FUNCTION signals; NIL when it returns."
  (handler-case (progn (funcall function) nil)
    (error (condition) condition)))

(defun report-p (condition &rest words)
  "True when CONDITION says that an argument is wrong, in a sentence that has all of WORDS."
  (and (typep condition '(or hunchentoot:parameter-error handler:unfit-argument))
       (let ((*print-pretty* nil))
         (every (lambda (word) (search word (princ-to-string condition))) words))))
