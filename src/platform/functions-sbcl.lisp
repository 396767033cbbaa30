(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; Functions of other libraries.

(defun wrap-function (name wrapper)
  "From now on, calls of the global function NAME call WRAPPER, a function designator, with the
function that NAME means otherwise, and the arguments.  Lasts when NAME is defined anew; does
nothing the second time."
  (unless (sb-int:encapsulated-p name 'hunchentoot-recycling-taskmaster)
    (sb-int:encapsulate name 'hunchentoot-recycling-taskmaster
                        (lambda (function &rest arguments)
                          (apply wrapper function arguments)))))
