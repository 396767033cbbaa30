(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; Methods called one by one, and notifications when classes and methods change.

(defun sole-method-p (function)
  "True if the generic FUNCTION has only one method."
  (null (rest (sb-mop:generic-function-methods function))))

(defun superclasses (class)
  "A list of CLASS, which has instances, and all its superclasses before STANDARD-OBJECT."
  (loop for super in (sb-mop:class-precedence-list class)
        until (eq super (find-class 'standard-object))
        collect super))

(defun finalize-classes ()
  "Finalizes standard classes, and gives subclasses the layouts that they need then.  SBCL does both
amid dispatch, and a thread that just compiles how to make an instance of a subclass fails then: the
first requests of a new process would meet that."
  (labels ((pcl (name class) (uiop:symbol-call '#:sb-pcl name class))
           (visit (class)
             (dolist (subclass (sb-mop:class-direct-subclasses class))
               (ignore-errors ; a superclass may be undefined, or SBCL another one
                (unless (or (sb-mop:class-finalized-p subclass)
                            (not (eq 'standard-class (type-of subclass))))
                  (sb-mop:finalize-inheritance subclass))
                (when (pcl '#:invalid-wrapper-p (pcl '#:class-wrapper subclass))
                  (pcl '#:%force-cache-flushes subclass)))
               (visit subclass))))      ; again where one of several superclasses is new
    (visit (find-class 'standard-object))))

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
