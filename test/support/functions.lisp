(in-package #:hunchentoot-recycling-taskmaster-test)

;;; Functions that something else stands in for while a test runs, in all threads.

(defun call-with-function (name replacement function)
  "Calls FUNCTION while the function NAME is REPLACEMENT, a function of the one it replaces and of
the arguments."
  (let ((original (fdefinition name)))
    (setf (fdefinition name) (lambda (&rest arguments) (apply replacement original arguments)))
    (unwind-protect (funcall function)
      (setf (fdefinition name) original))))

(defmacro with-function ((name (original &rest arguments) &body replacement) &body body)
  "Evaluates BODY while the function NAME of ARGUMENTS, called ORIGINAL here, is REPLACEMENT."
  `(call-with-function ',name (lambda (,original ,@arguments)
                                (declare (ignorable ,original ,@(set-difference
                                                                 arguments lambda-list-keywords)))
                                ,@replacement)
                       (lambda () ,@body)))

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
