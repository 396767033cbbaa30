(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; The default initargs of a class: MAKE-INSTANCE uses them, but CHANGE-CLASS and the redefinition
;;;; of a class do not.

(defun default-arguments (class)
  "An alist of the default initargs of CLASS, which has instances: their names, keywords or other
symbols, and functions without arguments that return their values.  Empty on Lisps other than SBCL,
ECL and ABCL."
  #-(or sbcl ecl abcl) (progn class '())
  #+(or sbcl ecl abcl)
  (loop for (name nil function) in (#+sbcl sb-mop:class-default-initargs
                                    #+ecl clos:class-default-initargs
                                    #+abcl mop:class-default-initargs
                                    class)
        collect (cons name function)))

(defun slots-filled (class)
  "An alist of the slots of CLASS: their names, and lists of the initargs that fill them."
  #-(or sbcl ecl abcl) (progn class '())
  #+sbcl
  (loop for slot in (sb-mop:class-slots class)
        collect (cons (sb-mop:slot-definition-name slot) (sb-mop:slot-definition-initargs slot)))
  #+ecl
  (loop for slot in (clos:class-slots class)
        collect (cons (clos:slot-definition-name slot) (clos:slot-definition-initargs slot)))
  #+abcl
  (loop for slot in (mop:class-slots class)
        collect (cons (mop:slot-definition-name slot) (mop:slot-definition-initargs slot))))

(defun missing-arguments (instance &key slotless)
  "A plist of the default initargs of the class of INSTANCE that would fill unbound slots; if
SLOTLESS is true, also of those that fill no slot."
  (let ((slots (slots-filled (class-of instance))))
    (loop for (name . function) in (default-arguments (class-of instance))
          for filled = (loop for (slot . initargs) in slots
                             when (member name initargs) collect slot)
          when (if filled
                   (notevery (lambda (slot) (slot-boundp instance slot)) filled)
                   slotless)
            collect name and collect (funcall function))))
