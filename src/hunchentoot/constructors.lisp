(in-package #:hunchentoot-recycling-taskmaster)

;;;; Making instances of classes that the program chooses: requests and replies.
;;;;
;;;;   a class that ...                                    is made by
;;;;   is made as Hunchentoot's own is, as far as          ALLOCATE-INSTANCE and our own code, which
;;;;   CLASS-MAKING can tell                               gives its slots the same values
;;;;   a symbol names                                      a function that has the class built in,
;;;;                                                       compiled once
;;;;   is given as such                                    MAKE-INSTANCE
;;;;
;;;; Hunchentoot's way to fill a request, by regular expressions and streams, costs more than all
;;;; else in a short request.  MAKE-INSTANCE with a class that is known only at run time looks
;;;; everything up each time; with a constant class it is compiled to straight code, which follows
;;;; redefinitions of the class.

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

;;; Recipes

(defstruct recipe
  "How to make instances of CLASS, as long as MAKING is current."
  (class nil :read-only t)
  (making nil :read-only t)             ; NIL: not by ALLOCATE-INSTANCE
  (own-slots '() :type list :read-only t)) ; that Hunchentoot's class has not

(defvar *recipes* '()
  "An alist of symbols that name classes, and their recipes; replaced whole.")

(defparameter *known-makings*
  (loop for name in '(hunchentoot:request hunchentoot:reply)
        for class = (find-class name)
        collect (cons class (class-making class)))
  "An alist of Hunchentoot's classes and how it makes them, NIL where that cannot be known.")

(defun new-recipe (class base)
  "A recipe for CLASS, which is to be made as BASE is if it can."
  (let ((making (class-making class))
        (known (cdr (assoc base *known-makings*))))
    (if (and making known
             (subtypep class base)
             (equal (making-methods making) (making-methods known)))
        (multiple-value-bind (own-slots inherits) (extra-slots class base)
          (make-recipe :class class :own-slots own-slots :making (and inherits making)))
        (make-recipe :class class))))

(defun current-recipe-p (recipe class)
  (and (eq class (recipe-class recipe))
       (or (null (recipe-making recipe))
           (making-current-p (recipe-making recipe) class))))

(defun recipe (designator base)
  "The recipe for the class that the symbol DESIGNATOR names, by that of the class BASE; NIL when
it names none."
  (let ((known (cdr (assoc designator *recipes* :test #'eq)))
        (class (find-class designator nil)))
    (cond ((null class) nil)
          ((and known (current-recipe-p known class)) known)
          (t
           (let ((new (new-recipe class base)))
             (setf *recipes* (acons designator new
                                    (remove designator *recipes* :key #'car)))
             new)))))

(defun allocated-instance (designator base)
  "An instance of the class that DESIGNATOR names, whose slots from BASE are unbound and to be
filled; NIL when it is not to be made so."
  (let ((recipe (and (symbolp designator) (recipe designator base))))
    (when (and recipe (recipe-making recipe))
      (let ((instance (allocate-instance (recipe-class recipe)))
            (own-slots (recipe-own-slots recipe)))
        (when own-slots
          (shared-initialize instance own-slots))
        instance))))

;;; Replies

(defun make-reply (acceptor)
  "An instance of the reply class of ACCEPTOR."
  (let* ((class (hunchentoot:acceptor-reply-class acceptor))
         (reply (allocated-instance class (load-time-value (find-class 'hunchentoot:reply)))))
    (cond (reply (fill-reply reply) reply)
          (t (funcall (constructor class '()))))))
