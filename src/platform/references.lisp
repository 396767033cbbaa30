(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; Objects that must not become garbage while a form is evaluated.

#-sbcl
(declaim (notinline keep))

#-sbcl
(defun keep (object)
  "Returns OBJECT, which is referenced until this call."
  object)

(defmacro keeping ((object) &body body)
  "Evaluates BODY.  The value of OBJECT, a variable, does not become garbage before BODY has
returned."
  #+sbcl `(sb-sys:with-pinned-objects (,object) ,@body)
  #-sbcl `(multiple-value-prog1 (progn ,@body) (keep ,object)))
