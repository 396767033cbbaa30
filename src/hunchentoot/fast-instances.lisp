(in-package #:hunchentoot-recycling-taskmaster)

;;;; Making instances of classes that the program chooses: requests and replies.
;;;;
;;;;   the class                                           its instances are made by
;;;;   is initialised as Hunchentoot's, as far as          ALLOCATE-INSTANCE and our own code, which
;;;;   CLASS-MAKING can tell                               gives its slots the same values
;;;;   is another, given by its name                       a function with a constant class, which
;;;;                                                       is compiled once
;;;;   is given as an object                               MAKE-INSTANCE
;;;;
;;;; Hunchentoot fills a request by regular expressions and streams, which costs more than all other
;;;; work for a short request.  MAKE-INSTANCE with a class that is known only at run time is slow;
;;;; with a constant class it is compiled to direct code, which follows redefinitions of the class.

(defvar *constructors* '()
  "An alist of symbols that name classes, and their constructors; replaced whole.")

(defun compiled-constructor (class initargs)
  "A function of the values of INITARGS, keywords, that makes an instance of CLASS, a symbol."
  (let ((values (loop for nil in initargs collect (gensym "VALUE"))))
    (compile nil `(lambda ,values
                    (make-instance ',class ,@(mapcan #'list initargs values))))))

(defun constructor (class initargs)
  "A function of the values of INITARGS, always the same keywords for the same CLASS, that makes
an instance of CLASS, a symbol or a class."
  (let ((known (cdr (assoc class *constructors* :test #'eq))))
    (cond (known)
          ((and class (symbolp class))
           (let ((new (compiled-constructor class initargs)))
             (push (cons class new) *constructors*)
             new))
          (t
           (lambda (&rest values)
             (apply #'make-instance class (mapcan #'list initargs values)))))))

;;; Instance makers

(defstruct (instance-maker (:include opaque))
  "How to make instances of CLASS."
  (class nil :read-only t)
  (allocator nil :read-only t)          ; a function; NIL where ALLOCATE-INSTANCE must not be used
  (own-slots '() :type list :read-only t)) ; slots that Hunchentoot's class has not got

;;; Invariant: an instance maker in *INSTANCE-MAKERS* holds, since they are all forgotten when a
;;; class that one of them depends on, or a function that makes instances, is redefined.

(defun no-instance-makers ()
  "An alist without instance makers that is EQ to no other, so that one can tell whether it was
forgotten meanwhile."
  (list (cons nil nil)))

(defvar *instance-makers* (no-instance-makers)
  "An alist of symbols that name classes, and their instance makers; replaced whole.")

(defun forget-instance-makers ()
  (setf *instance-makers* (no-instance-makers)))

(defvar *watched-classes* '()
  "The classes whose redefinition empties *INSTANCE-MAKERS*.")

(apply #'call-when-redefined 'forget-instance-makers *making-functions*)

(defun watch-class (class base)
  (dolist (class (classes-between class base))
    (unless (member class *watched-classes*)
      (push class *watched-classes*)
      (call-when-redefined 'forget-instance-makers class))))

(defvar *known-makings* '()
  "An alist of Hunchentoot's classes and how they are made, NIL where that cannot be known.")

(defun know-making (name)
  "Stores how instances of NAME, a class of Hunchentoot's, are initialised now.  Our own code does
the same."
  (let ((class (find-class name)))
    (setf *known-makings* (acons class (class-making class)
                                 (remove class *known-makings* :key #'car)))))

(defun compiled-allocator (class)
  "A function that allocates an instance of CLASS, which is built in."
  (compile nil `(lambda () (allocate-instance ,class))))

(defun new-instance-maker (class base)
  "An instance maker for CLASS, which is to be made as BASE is if it can."
  (let ((making (and (subtypep class base) (class-making class))))
    (when making
      (watch-class class base))
    (if (and making (equal making (cdr (assoc base *known-makings*))))
        (multiple-value-bind (own-slots inherits) (extra-slots class base)
          (make-instance-maker :class class :own-slots own-slots
                               :allocator (and inherits (compiled-allocator class))))
        (make-instance-maker :class class))))

(defun named-class (name)
  "The class that NAME, a symbol, names, or NIL; the two that most programs use are found at once."
  (case name
    (hunchentoot:request (find-class 'hunchentoot:request nil))
    (hunchentoot:reply (find-class 'hunchentoot:reply nil))
    (t (find-class name nil))))

(defun instance-maker (designator base)
  "The instance maker for the class that the symbol DESIGNATOR names, by that of the class BASE; NIL
when it names none."
  (let* ((instance-makers *instance-makers*)
         (known (cdr (assoc designator instance-makers :test #'eq)))
         (class (named-class designator)))
    (cond ((null class) nil)
          ((and known (eq class (instance-maker-class known))) known)
          (t
           (let ((new (new-instance-maker class base)))
             ;; Not stored if a class was redefined in the meantime.
             (compare-and-set (symbol-value '*instance-makers*) instance-makers
                              (acons designator new
                                     (remove designator instance-makers :key #'car)))
             new)))))

(defun allocated-instance (designator base)
  "An instance of the class that DESIGNATOR names, whose slots from BASE are unbound and to be
filled; NIL when it is not to be made so."
  (let* ((instance-maker (and (symbolp designator) (instance-maker designator base)))
         (allocator (and instance-maker (instance-maker-allocator instance-maker))))
    (when allocator
      (let ((instance (funcall (the function allocator)))
            (own-slots (instance-maker-own-slots instance-maker)))
        (when own-slots
          (shared-initialize instance own-slots))
        instance))))

;;; Replies

(know-making 'hunchentoot:reply)

(defun make-reply (acceptor)
  "An instance of the reply class of ACCEPTOR."
  (let* ((class (hunchentoot:acceptor-reply-class acceptor))
         (reply (allocated-instance class (load-time-value (find-class 'hunchentoot:reply)))))
    (cond (reply (fill-reply reply) reply)
          (t (funcall (constructor class '()))))))
