(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; What SBCL does to make an instance of a class, and when that changes.

(defparameter *making-functions*
  (list #'make-instance #'allocate-instance #'initialize-instance #'shared-initialize)
  "The generic functions by which instances are made.")

(defun class-making (class)
  "A list of the methods that MAKE-INSTANCE of CLASS runs; NIL when it depends on more than CLASS
and those methods how its instances are made."
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
  "The classes of which CLASS is made, before BASE, a superclass."
  (sb-mop:finalize-inheritance class)
  (loop for super in (sb-mop:class-precedence-list class)
        until (eq super base)
        collect super))

(defun extra-slots (class base)
  "The names of the slots that CLASS has beyond those of BASE, a superclass, and whether it has
left those of BASE as they are."
  (flet ((names (slots) (mapcar #'sb-mop:slot-definition-name slots)))
    (let ((own (loop for super in (classes-between class base)
                     append (names (sb-mop:class-direct-slots super)))))
      (values (remove-duplicates own)
              (null (intersection (names (sb-mop:class-slots base)) own))))))

(defun sole-method-p (function)
  "True when the generic FUNCTION has one method only."
  (null (rest (sb-mop:generic-function-methods function))))

(defun superclasses (class)
  "CLASS and all classes that it is made of, save those that every class is."
  (classes-between class (find-class 'standard-object)))

;;; Calling methods

(defun method-calls-supported-p ()
  "True: methods can be called in another order than their generic function's."
  t)

(defun make-calling-method (function)
  "A method that calls FUNCTION with the arguments that it is called with."
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
  (:documentation "Calls a function when what it watches is redefined."))

(defmethod sb-mop:update-dependent (metaobject (watcher watcher) &rest initargs)
  (declare (ignore metaobject initargs))
  (funcall (watcher-function watcher)))

(defun call-when-redefined (function &rest metaobjects)
  "Lets FUNCTION be called when one of METAOBJECTS, generic functions and classes, is redefined, or
gets or loses a method.  True: here that can be watched."
  (dolist (metaobject metaobjects t)
    (sb-mop:add-dependent metaobject (make-instance 'watcher :function function))))
