(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; What SBCL does to make an instance of a class.

(defstruct (making (:constructor %make-making))
  "What MAKE-INSTANCE did for a class when it was asked about."
  (methods '() :type list)              ; that it ran, in their order
  (defined '() :type list)              ; all methods there were, for each function
  (slots '() :type list))               ; of the class

(defparameter *making-functions*
  (list #'make-instance #'allocate-instance #'initialize-instance #'shared-initialize)
  "The generic functions by which instances are made.")

(declaim (inline methods-defined))
(defun methods-defined (function)
  ;; A list that is another one as soon as a method was added, removed or redefined.
  (sb-mop:generic-function-methods function))

(defun methods-run (class)
  "The methods that MAKE-INSTANCE of CLASS, of the usual metaclass, runs.  The second value is
true when that depends on CLASS alone."
  (let ((symbol (find-class 'symbol)) (methods '()) (sure t))
    (loop for (function . classes) in `((,#'initialize-instance ,class)
                                        (,#'shared-initialize ,class ,symbol))
          do (multiple-value-bind (applicable definitive)
                 (sb-mop:compute-applicable-methods-using-classes function classes)
               (setf methods (append methods applicable)
                     sure (and sure definitive))))
    (values (append (compute-applicable-methods #'make-instance (list class))
                    (compute-applicable-methods #'allocate-instance (list class))
                    methods)
            sure)))

(defun class-making (class)
  "A MAKING that tells how instances of CLASS are made; NIL when that depends on more than the
methods of *MAKING-FUNCTIONS*."
  (when (eq (class-of class) (find-class 'standard-class))
    (sb-mop:finalize-inheritance class)
    (multiple-value-bind (methods sure) (methods-run class)
      (and sure
           (null (sb-mop:class-default-initargs class))
           (%make-making :methods methods
                         :defined (mapcar #'methods-defined *making-functions*)
                         :slots (sb-mop:class-slots class))))))

(defun making-current-p (making class)
  "True while instances of CLASS are made as MAKING tells."
  (and (eq (making-slots making) (sb-mop:class-slots class))
       (loop for function in *making-functions*
             for methods in (making-defined making)
             always (eq methods (methods-defined function)))))

(defun extra-slots (class base)
  "The names of the slots that CLASS has beyond those of BASE, a superclass, and whether it has
left those of BASE as they are."
  (let ((inherited (mapcar #'sb-mop:slot-definition-name (sb-mop:class-slots base)))
        (own (loop for super in (sb-mop:class-precedence-list class)
                   until (eq super base)
                   append (mapcar #'sb-mop:slot-definition-name
                                  (sb-mop:class-direct-slots super)))))
    (values (remove-duplicates own)
            (null (intersection inherited own)))))
