(in-package #:hunchentoot-recycling-taskmaster.base)

;;; Structures whose slots are part of an interface, and so have docstrings.

(eval-when (:compile-toplevel :load-toplevel :execute)

  (defun accessor-name (structure options slot)
    "The name of the accessor of SLOT that DEFSTRUCT makes for STRUCTURE with OPTIONS."
    (let ((conc-name (find-if (lambda (option) (and (consp option) (eq :conc-name (first option))))
                              options)))
      (intern (format nil "~A~A" (if conc-name (second conc-name) (format nil "~A-" structure)) slot)
              (symbol-package structure))))

  (defun slot-without-documentation (slot)
    "The slot description SLOT as DEFSTRUCT wants it."
    (destructuring-bind (name initial-value &rest options) slot
      (let ((options (copy-list options)))
        (remf options :documentation)
        (list* name initial-value options)))))

(defmacro define-record (name-and-options documentation &rest slots)
  "DEFSTRUCT of NAME-AND-OPTIONS, with a DOCUMENTATION, and with the one that each of SLOTS may
have, after :DOCUMENTATION, given to its accessor."
  (destructuring-bind (name &rest options)
      (if (consp name-and-options) name-and-options (list name-and-options))
    `(progn
       (defstruct ,name-and-options
         ,documentation
         ,@(mapcar #'slot-without-documentation slots))
       ,@(loop for (slot nil . slot-options) in slots
               for text = (getf slot-options :documentation)
               when text
                 collect `(setf (documentation ',(accessor-name name options slot) 'function) ,text))
       ',name)))
