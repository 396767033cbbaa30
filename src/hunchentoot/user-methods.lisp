(in-package #:hunchentoot-recycling-taskmaster)

;;;; Methods of programs beside ours, on Hunchentoot's generic functions.
;;;;
;;;; Hunchentoot's methods are on its least specific class, so those of every class that a program
;;;; mixes in come before them.  Ours are on a class that may come before some of these.  So what
;;;; our methods do is done in the place of Hunchentoot's: after those of the program, when the last
;;;; of them calls the next.
;;;;
;;;; How the connections of an acceptor are read depends on what the program has beside ours for
;;;; PROCESS-CONNECTION:
;;;;
;;;;   kind       methods                  what we do
;;;;   :OWN       none, or :AFTER          read a request, then call it for that request
;;;;   :WRAPPED   :AROUND or :BEFORE       look ahead for a request, call it for that request, then
;;;;                                       read: the method may read before us
;;;;   :FOREIGN   one without qualifier    call it once for a connection, when that has input

(defstruct (user-methods (:include opaque)
                         (:constructor make-user-methods
                             (redefinitions kind loggers streams)))
  "What methods a program has beside ours."
  (redefinitions 0 :read-only t)        ; *REDEFINITIONS* when this was found out
  (kind :own :type (member :own :wrapped :foreign) :read-only t)
  (loggers '() :type list :read-only t) ; of ACCEPTOR-LOG-ACCESS, after ours
  (streams nil :read-only t))           ; of INITIALIZE-CONNECTION-STREAM, see STREAM-USER-METHODS

(defvar *redefinitions* 0
  "Counts what may have changed the methods of an acceptor, where that can be watched.")

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
  "The classes that our methods are on.")

(defun methods-on (classes function qualifiers required)
  "The methods of FUNCTION with QUALIFIERS on one of CLASSES, names, that take any other arguments
beside that; REQUIRED are the required arguments."
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

;;; What an acceptor has

(defparameter *any-socket* (make-instance 'usocket:stream-usocket :socket nil :stream nil)
  "Stands for the sockets of connections where methods are looked for.")

(defun process-connection-kind (acceptor)
  "How ACCEPTOR's connections are to be read; see above."
  (let ((methods (methods-of-program #'hunchentoot:process-connection
                                     (list acceptor *any-socket*))))
    (cond ((some #'primary-p methods) :foreign)
          ((some (lambda (method)
                   (intersection '(:around :before) (method-qualifiers method)))
                 methods)
           :wrapped)
          (t :own))))

(defgeneric stream-user-methods (acceptor)
  (:documentation "What methods the program has that make the streams of ACCEPTOR's connections,
where we have one.")
  (:method (acceptor)
    (declare (ignore acceptor))
    nil))

(defun look-around (acceptor)
  "Finds out what methods there are for ACCEPTOR, and remembers it."
  (let ((redefinitions *redefinitions*)) ; before looking: what is redefined meanwhile counts again
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
  (:documentation "How the connections of ACCEPTOR are read, :OWN, :WRAPPED or :FOREIGN; see
above.")
  (:method ((acceptor hunchentoot:acceptor))
    :foreign))

;;; In the place of Hunchentoot's methods

(defvar *ours* nil
  "While methods of the program that ours hides are called: what our method does, a function.")

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
