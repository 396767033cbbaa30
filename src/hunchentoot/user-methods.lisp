(in-package #:hunchentoot-recycling-taskmaster)

;;;; Methods of programs beside ours, on Hunchentoot's generic functions.
;;;;
;;;; Hunchentoot's methods are on its least specific class, so the methods of every class that a
;;;; program mixes in come before them.  Ours are on a class that may come before some mixins.  So
;;;; our methods run in the place of Hunchentoot's: after those of the program, when the last of
;;;; these calls the next method.
;;;;
;;;; The program's methods of PROCESS-CONNECTION decide how the connections of an acceptor are read:
;;;;
;;;;   kind       methods                  the server
;;;;   :OWN       none, or :AFTER          reads a request, then calls the function for it
;;;;   :WRAPPED   :AROUND or :BEFORE       looks ahead for a request, calls the function for it, and
;;;;                                       then reads it, since the method may read first
;;;;   :FOREIGN   one without qualifier    calls the function once for a connection that has input

(defstruct (user-methods (:include opaque)
                         (:constructor make-user-methods
                             (redefinitions kind loggers streams)))
  "The methods that a program has beside ours for an acceptor."
  (redefinitions 0 :read-only t)        ; *REDEFINITIONS* when they were looked up
  (kind :own :type (member :own :wrapped :foreign) :read-only t)
  (loggers '() :type list :read-only t) ; of ACCEPTOR-LOG-ACCESS, after ours
  (streams nil :read-only t))           ; of INITIALIZE-CONNECTION-STREAM, see STREAM-USER-METHODS

(defvar *redefinitions* 0
  "Counts redefinitions that may have changed the methods of an acceptor, where these can be
watched.")

(defun note-redefinition ()
  (incf *redefinitions*))

(defvar *watched* '()
  "The generic functions and classes whose redefinitions are counted.")

(defun watch-redefinitions (metaobjects)
  (dolist (metaobject metaobjects)
    (unless (member metaobject *watched*)
      (push metaobject *watched*)
      (call-when-redefined 'note-redefinition metaobject))))

;;; Methods

(defparameter *own-classes* '(parallel-acceptor listening-acceptor)
  "The names of the classes that our methods are on.")

(defun methods-on (classes function qualifiers required)
  "The methods of FUNCTION with QUALIFIERS whose first argument is specialised on one of CLASSES,
names, and the others on T.  REQUIRED are the required arguments."
  (loop with others = (mapcar (constantly (find-class t)) (rest required))
        for class in classes
        for method = (find-method function qualifiers (cons (find-class class) others) nil)
        when method collect method))

(defun methods-of-program (function required)
  "The methods of FUNCTION for the arguments REQUIRED, the most specific first, that are neither
Hunchentoot's nor ours."
  (set-difference-in-order
   (compute-applicable-methods function required)
   (loop for qualifiers in '(() (:around) (:after))
         append (methods-on (list* 'hunchentoot:acceptor t *own-classes*)
                            function qualifiers required))))

(defun set-difference-in-order (list others)
  (remove-if (lambda (element) (member element others)) list))

(defun primary-p (method)
  (null (method-qualifiers method)))

(defun primaries-after-ours (function required)
  "The methods without qualifiers that our method of FUNCTION for the arguments REQUIRED hides: the
program's, and Hunchentoot's."
  (let* ((primaries (remove-if-not #'primary-p (compute-applicable-methods function required)))
         (ours (methods-on *own-classes* function '() required))
         (hunchentoots (methods-on '(hunchentoot:acceptor t) function '() required))
         (after (rest (member-if (lambda (method) (member method ours)) primaries)))
         (end (position-if (lambda (method) (member method hunchentoots)) after)))
    (values (and (method-calls-supported-p)
                 (set-difference-in-order (subseq after 0 end) ours))
            (and end (nthcdr end after)))))

;;; The methods for an acceptor

(defparameter *any-socket* (make-instance 'usocket:stream-usocket :socket nil :stream nil)
  "A stand-in for the socket of a connection where applicable methods are looked up.")

(defun process-connection-kind (acceptor)
  "The kind of ACCEPTOR's connections; see the table above."
  (let ((methods (methods-of-program #'hunchentoot:process-connection
                                     (list acceptor *any-socket*))))
    (cond ((some #'primary-p methods) :foreign)
          ((some (lambda (method)
                   (intersection '(:around :before) (method-qualifiers method)))
                 methods)
           :wrapped)
          (t :own))))

(defgeneric stream-user-methods (acceptor)
  (:documentation "The program's methods of INITIALIZE-CONNECTION-STREAM for ACCEPTOR, where we have
one; else NIL.")
  (:method (acceptor)
    (declare (ignore acceptor))
    nil))

(defun look-around (acceptor)
  "Looks up the methods of the program for ACCEPTOR, and stores them there."
  (let ((redefinitions *redefinitions*)) ; first, so that a redefinition during this is noticed
    (watch-redefinitions (list* #'hunchentoot:process-connection #'hunchentoot:acceptor-log-access
                                #'hunchentoot:initialize-connection-stream
                                (superclasses (class-of acceptor))))
    (setf (acceptor-user-methods acceptor)
          (make-user-methods
           redefinitions
           (process-connection-kind acceptor)
           (primaries-after-ours #'hunchentoot:acceptor-log-access (list acceptor))
           (stream-user-methods acceptor)))))

(defun user-methods-of (acceptor)
  (let ((known (acceptor-user-methods acceptor)))
    (if (and known (eql (user-methods-redefinitions known) *redefinitions*))
        known
        (look-around acceptor))))

(defgeneric connection-kind (acceptor)
  (:documentation "The kind of ACCEPTOR's connections: :OWN, :WRAPPED or :FOREIGN; see the table
above.")
  (:method ((acceptor hunchentoot:acceptor))
    :foreign))

;;; In the place of Hunchentoot's methods

(defvar *ours* nil
  "While our method calls hidden methods of the program: the body of our method, a function.")

(defparameter *innermost-method*
  (make-calling-method (lambda (&rest arguments)
                         (declare (ignore arguments))
                         (funcall *ours*)))
  "A method that calls *OURS*, whatever its arguments; NIL where methods cannot be called.")

(defun call-before-ours (methods arguments ours)
  "Calls METHODS of the program, as if the function OURS were the next method of the last of them."
  (let ((*ours* ours))
    (call-methods (append methods (list *innermost-method*)) arguments)))

(defmacro in-place-of-hunchentoots ((next hidden function required &rest more) &body body)
  "Evaluates BODY, of our method of the generic FUNCTION, after the methods of the program that it
hides, when the last of them calls the next.  HIDDEN is a form for a list of these.  The arguments
are the list of forms REQUIRED, and MORE.  In BODY, (HUNCHENTOOTS) calls Hunchentoot's method.  NEXT
is the form (CALL-NEXT-METHOD): ABCL finds none that only an expansion has."
  (let ((methods (gensym "METHODS")))
    `(let ((,methods ,hidden))
       (flet ((hunchentoots ()
                (if ,methods
                    (call-methods (nth-value 1 (primaries-after-ours ,function (list ,@required)))
                                  (list ,@required ,@more))
                    ,next)))
         (declare (ignorable #'hunchentoots))
         (flet ((ours () ,@body))
           (declare (dynamic-extent #'ours))
           (if ,methods
               (call-before-ours ,methods (list ,@required ,@more) #'ours)
               (ours)))))))
