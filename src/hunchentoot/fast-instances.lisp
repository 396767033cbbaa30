(in-package #:hunchentoot-recycling-taskmaster)

;;;; Making instances of classes that the program chooses: requests and replies.  MAKE-INSTANCE with
;;;; a class that is known only at run time is slow; with a constant class it is compiled to direct
;;;; code, which follows redefinitions of the class.

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

(defun make-reply (acceptor)
  "An instance of the reply class of ACCEPTOR."
  (funcall (constructor (hunchentoot:acceptor-reply-class acceptor) '())))
