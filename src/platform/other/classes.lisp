(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; Lisps that we do not ask how they make instances.

(defparameter *making-functions* '()
  "The generic functions by which instances are made, where that matters.")

(defun class-making (class)
  "NIL: how instances of CLASS are made is not known."
  (declare (ignore class))
  nil)

(defun sole-method-p (function)
  "NIL: how many methods FUNCTION has is not known."
  (declare (ignore function))
  nil)

(defun superclasses (class)
  "NIL: redefinitions of the classes that CLASS is made of cannot be watched."
  (declare (ignore class))
  '())

(defun method-calls-supported-p ()
  "NIL: methods cannot be called by themselves."
  nil)

(defun make-calling-method (function)
  "NIL: there would be nobody to call a method that calls FUNCTION."
  (declare (ignore function))
  nil)

(macrolet ((unsupported (&rest names)
             `(progn ,@(loop for name in names
                             collect `(defun ,name (&rest arguments)
                                        (declare (ignore arguments))
                                        (error "~A needs a CLASS-MAKING." ',name))))))
  (unsupported classes-between extra-slots call-methods))

(defun call-when-redefined (function &rest metaobjects)
  "NIL: redefinitions of METAOBJECTS cannot be watched, so FUNCTION will not be called."
  (declare (ignore function metaobjects))
  nil)
