(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; Classes on Lisps whose methods are called by generic functions only.

(defun sole-method-p (function)
  "NIL: the number of methods of FUNCTION is unknown."
  (declare (ignore function))
  nil)

(defun finalize-classes ()
  "Does nothing: on this Lisp a class may be finalized at any time.")

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

(defun call-methods (methods arguments)
  "Not called here, for METHODS and ARGUMENTS: METHOD-CALLS-SUPPORTED-P is false."
  (error "~S cannot be called with ~S." methods arguments))

(defun call-when-redefined (function &rest metaobjects)
  "NIL: this Lisp cannot watch METAOBJECTS for redefinitions, so FUNCTION is never called."
  (declare (ignore function metaobjects))
  nil)
