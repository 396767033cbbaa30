(in-package #:hunchentoot-recycling-taskmaster)

;;;; Making request and reply objects.
;;;;
;;;; The classes are the program's to choose, so MAKE-INSTANCE is called with a class that is
;;;; known only now, and looks everything up each time: a quarter of a request's time on SBCL.
;;;; With a constant class it is compiled to straight code.  So each class that is seen gets a
;;;; constructor, compiled once, which follows later redefinitions of the class.

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

(defparameter *request-initargs*
  '(:acceptor :remote-addr :remote-port :local-addr :local-port
    :headers-in :method :uri :server-protocol :content-stream)
  "What a request is made of.")

(defun make-request (acceptor link headers method uri protocol content)
  "An instance of the request class of ACCEPTOR for a request that came over LINK."
  (destructuring-bind ((remote-address remote-port) (local-address local-port))
      (list (link-remote link) (link-local link))
    (funcall (constructor (hunchentoot:acceptor-request-class acceptor) *request-initargs*)
             acceptor remote-address remote-port local-address local-port
             headers method uri protocol content)))

(defun make-reply (acceptor)
  "An instance of the reply class of ACCEPTOR."
  (funcall (constructor (hunchentoot:acceptor-reply-class acceptor) '())))
