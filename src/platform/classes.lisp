(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; Lisps that we do not ask how they make instances.

(defun class-making (class)
  "NIL: how instances of CLASS are made is not known."
  (declare (ignore class))
  nil)

(macrolet ((unsupported (&rest names)
             `(progn ,@(loop for name in names
                             collect `(defun ,name (&rest arguments)
                                        (declare (ignore arguments))
                                        (error "~A needs a CLASS-MAKING." ',name))))))
  (unsupported making-methods making-current-p extra-slots))
