(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; The methods by which SBCL makes an instance of a class, and notifications when they change.

(defparameter *making-functions*
  (list #'make-instance #'allocate-instance #'initialize-instance #'shared-initialize)
  "The generic functions that make instances.")

(defun class-making (class)
  "A list of the methods that MAKE-INSTANCE of CLASS runs; NIL if more than CLASS and those methods
determines how its instances are made."
  (when (eq (class-of class) (find-class 'standard-class))
    (sb-mop:finalize-inheritance class)
    (multiple-value-bind (initializing sure)
        (sb-mop:compute-applicable-methods-using-classes #'initialize-instance (list class))
      (multiple-value-bind (sharing sure-too)
          (sb-mop:compute-applicable-methods-using-classes
           #'shared-initialize (list class (find-class 'symbol)))
        (and sure sure-too
             (null (sb-mop:class-default-initargs class))
             (append (compute-applicable-methods #'make-instance (list class))
                     (compute-applicable-methods #'allocate-instance (list class))
                     initializing sharing))))))

(defun classes-between (class base)
  "A list of the classes before BASE, a superclass, in the class precedence list of CLASS."
  (sb-mop:finalize-inheritance class)
  (loop for super in (sb-mop:class-precedence-list class)
        until (eq super base)
        collect super))

(defun extra-slots (class base)
  "A list of the names of the slots that CLASS adds to those of BASE, a superclass; and true if it
redefines no slot of BASE."
  (flet ((names (slots) (mapcar #'sb-mop:slot-definition-name slots)))
    (let ((own (loop for super in (classes-between class base)
                     append (names (sb-mop:class-direct-slots super)))))
      (values (remove-duplicates own)
              (null (intersection (names (sb-mop:class-slots base)) own))))))

(defun sole-method-p (function)
  "True if the generic FUNCTION has only one method."
  (null (rest (sb-mop:generic-function-methods function))))

(defun superclasses (class)
  "A list of CLASS and all its superclasses before STANDARD-OBJECT."
  (classes-between class (find-class 'standard-object)))

;;; Calling methods

(defun method-calls-supported-p ()
  "True: methods can be called in an order other than that of their generic function."
  t)

(defun make-calling-method (function)
  "A method that calls FUNCTION with its arguments."
  (make-instance 'standard-method
                 :qualifiers '() :lambda-list '(object &rest arguments)
                 :specializers (list (find-class t))
                 :function (lambda (arguments next-methods)
                             (declare (ignore next-methods))
                             (apply function arguments))))

(defun call-methods (methods arguments)
  "Calls the first of METHODS with the list ARGUMENTS; the others are its next methods."
  (funcall (sb-mop:method-function (first methods)) arguments (rest methods)))

;;; Changes

(defclass watcher ()
  ((function :initarg :function :reader watcher-function))
  (:documentation "A dependent that calls a function when a class or generic function changes."))

(defmethod sb-mop:update-dependent (metaobject (watcher watcher) &rest initargs)
  (declare (ignore metaobject initargs))
  (funcall (watcher-function watcher)))

(defun call-when-redefined (function &rest metaobjects)
  "Makes the system call FUNCTION, without arguments, when one of METAOBJECTS, generic functions and
classes, is redefined, or gets or loses a method.  Returns true: this Lisp can do that."
  (dolist (metaobject metaobjects t)
    (sb-mop:add-dependent metaobject (make-instance 'watcher :function function))))
