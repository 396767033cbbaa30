(in-package #:hunchentoot-recycling-taskmaster.base)

;;; Structures with documented slots, since the slots are part of an interface.

(eval-when (:compile-toplevel :load-toplevel :execute)

  (defun accessor-name (structure options slot)
    "The name of the accessor of SLOT that DEFSTRUCT makes for STRUCTURE with OPTIONS."
    (let ((conc-name (find-if (lambda (option) (and (consp option) (eq :conc-name (first option))))
                              options)))
      (intern (format nil "~A~A"
                      (if conc-name (second conc-name) (format nil "~A-" structure))
                      slot)
              (symbol-package structure))))

  (defun slot-without-documentation (slot)
    "The slot description SLOT without its :DOCUMENTATION, which DEFSTRUCT does not accept."
    (destructuring-bind (name initial-value &rest options) slot
      (let ((options (copy-list options)))
        (remf options :documentation)
        (list* name initial-value options)))))

(defmacro define-record (name-and-options documentation &rest slots)
  "Like DEFSTRUCT of NAME-AND-OPTIONS with DOCUMENTATION and SLOTS, but each slot may have a
:DOCUMENTATION, which becomes the docstring of its accessor."
  (destructuring-bind (name &rest options)
      (if (consp name-and-options) name-and-options (list name-and-options))
    `(progn
       (defstruct ,name-and-options
         ,documentation
         ,@(mapcar #'slot-without-documentation slots))
       ,@(loop for (slot nil . slot-options) in slots
               for text = (getf slot-options :documentation)
               when text
                 collect `(setf (documentation ',(accessor-name name options slot) 'function)
                                ,text))
       ',name)))
