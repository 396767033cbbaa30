(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; Classes on Lisps where this library does not optimize the making of instances.

(defparameter *making-functions* '()
  "The generic functions that make instances; empty where that does not matter.")

(defun class-making (class)
  "NIL: the methods that make instances of CLASS are unknown."
  (declare (ignore class))
  nil)

(defun sole-method-p (function)
  "NIL: the number of methods of FUNCTION is unknown."
  (declare (ignore function))
  nil)

(defun superclasses (class)
  "NIL: this Lisp cannot watch the superclasses of CLASS for redefinitions."
  (declare (ignore class))
  '())

(defun method-calls-supported-p ()
  "NIL: this Lisp cannot call methods without their generic function."
  nil)

(defun make-calling-method (function)
  "NIL: no caller could use a method that calls FUNCTION."
  (declare (ignore function))
  nil)

(macrolet ((unsupported (&rest names)
             `(progn ,@(loop for name in names
                             collect `(defun ,name (&rest arguments)
                                        (declare (ignore arguments))
                                        (error "~A needs a CLASS-MAKING." ',name))))))
  (unsupported classes-between extra-slots call-methods))

(defun call-when-redefined (function &rest metaobjects)
  "NIL: this Lisp cannot watch METAOBJECTS for redefinitions, so FUNCTION is never called."
  (declare (ignore function metaobjects))
  nil)
