(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; Objects that are not to become garbage while something else is done.

#-sbcl
(declaim (notinline keep))

#-sbcl
(defun keep (object)
  "Returns OBJECT, which is no garbage before that."
  object)

(defmacro keeping ((object) &body body)
  "Evaluates BODY; the value of OBJECT, a variable, is no garbage before it has returned."
  #+sbcl `(sb-sys:with-pinned-objects (,object) ,@body)
  #-sbcl `(multiple-value-prog1 (progn ,@body) (keep ,object)))
