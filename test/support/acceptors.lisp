(in-package #:hunchentoot-recycling-taskmaster-test)

;;; Servers for tests, of a class that can be exchanged: the same tests run against
;;; Hunchentoot's own acceptor and against ours in all its modes.

(defvar *acceptor-class*
  (or (uiop:find-symbol* '#:parallel-easy-acceptor
                         '#:hunchentoot-recycling-taskmaster nil)
      'hunchentoot:easy-acceptor)
  "The class of the acceptors that tests make.")

(defvar *acceptor-initargs* (constantly '())
  "A function that returns further initargs for every acceptor that a test makes, such
as a taskmaster of its own.")

(defvar *parking-p* nil
  "Whether connections of the acceptors of *ACCEPTOR-CLASS* wait for requests without a thread.")

(defun ours-p ()
  "Whether *ACCEPTOR-CLASS* is of this project and not Hunchentoot's own."
  (not (eq (symbol-package *acceptor-class*) (find-package '#:hunchentoot))))

(defun class-with-mixin (mixin)
  "The name of a class of acceptors that inherits from the class MIXIN and from
*ACCEPTOR-CLASS*, in this order."
  (let ((name (intern (format nil "~A+~A" mixin *acceptor-class*)
                      '#:hunchentoot-recycling-taskmaster-test)))
    (unless (find-class name nil)
      ;; The portable way to a class whose superclasses are known only now.
      (eval `(defclass ,name (,mixin ,*acceptor-class*) ())))
    name))

;;; Programs with methods of their own for connections

(defclass looking-around () ())

(defmethod hunchentoot:process-connection :around ((acceptor looking-around) socket)
  (call-next-method))

(defclass looking-within () ())

(defmethod hunchentoot:process-connection ((acceptor looking-within) socket)
  (usocket:socket-stream socket)
  (call-next-method))

(defun make-test-acceptor (&rest initargs &key mixin &allow-other-keys)
  "An acceptor of *ACCEPTOR-CLASS*, with the class MIXIN in front where that is given,
on an ephemeral port of this machine, without logs; INITARGS go before these defaults."
  (apply #'make-instance
         (if mixin (class-with-mixin mixin) *acceptor-class*)
         (append (uiop:remove-plist-key :mixin initargs)
                 (funcall *acceptor-initargs*)
                 '(:port 0 :address "127.0.0.1"
                   :access-log-destination nil :message-log-destination nil))))

(defun start-elsewhere (acceptor)
  "Starts ACCEPTOR, which was stopped, on another port: its own may be another program's by now."
  (reinitialize-instance acceptor :port 0)
  (hunchentoot:start acceptor))

(defun certificate-initargs (directory)
  "Initargs that name a key and a certificate, which are made in DIRECTORY."
  (multiple-value-bind (key certificate)
      (funcall 'make-certificate directory) ; which is not there where there is no TLS
    (list :ssl-privatekey-file key :ssl-certificate-file certificate)))

(defmacro over-tls (&body body)
  "Evaluates BODY while the acceptors that tests make are for TLS, and clients speak TLS to them."
  (let ((directory (gensym "DIRECTORY")) (initargs (gensym "INITARGS")))
    `(with-directory (,directory)
       (let* ((*acceptor-class* 'recycling:parallel-easy-ssl-acceptor)
              (*make-connection* 'encrypted)
              (,initargs (certificate-initargs ,directory))
              (*acceptor-initargs* (constantly ,initargs)))
         ,@body))))

(defun stop-if-started (acceptor)
  "Stops ACCEPTOR unless the test has done so; signals PATIENCE-LOST when that hangs."
  (when (hunchentoot:started-p acceptor)
    (task-result (in-background ("stopping the acceptor")
                   (hunchentoot:stop acceptor)))))

(defun call-with-acceptor (initargs function)
  "Calls FUNCTION with *SERVER* bound to a started acceptor, made by MAKE-TEST-ACCEPTOR of INITARGS,
and stops it afterwards."
  (let* ((acceptor (apply #'make-test-acceptor initargs))
         (*server* (hunchentoot:start acceptor)))
    (unwind-protect (funcall function)
      (stop-if-started acceptor))))

(defmacro with-acceptor ((acceptor &rest initargs) &body body)
  "Evaluates BODY as CALL-WITH-ACCEPTOR calls a function, with ACCEPTOR bound to the acceptor."
  `(call-with-acceptor (list ,@initargs)
                       (lambda ()
                         (let ((,acceptor *server*)) (declare (ignorable ,acceptor)) ,@body))))

;;; Routes

(defmacro with-globals ((&rest bindings) &body body)
  "Evaluates BODY with variables set as the list BINDINGS of (variable value) says, and
restores them.  LET would not do: the server's threads see only global values."
  (let ((olds (loop for nil in bindings collect (gensym "OLD"))))
    `(let ,(loop for (variable) in bindings
                 for old in olds collect `(,old ,variable))
       (unwind-protect
            (progn (setf ,@(reduce #'append bindings)) ,@body)
         (setf ,@(loop for (variable) in bindings
                       for old in olds append (list variable old)))))))

(defun route-dispatcher (routes)
  "A dispatch function for the alist ROUTES of script names and handlers."
  (lambda (request)
    (cdr (assoc (hunchentoot:script-name request) routes :test #'equal))))

(defmacro with-routes ((&rest routes) &body body)
  "Evaluates BODY while easy acceptors serve ROUTES, a list of (script-name . body of the
handler).  Handlers see the variables around them; what they return is the reply."
  `(with-globals ((hunchentoot:*dispatch-table*
                   (cons (route-dispatcher
                          (list ,@(loop for (path . handler) in routes
                                        collect `(cons ,path (lambda () ,@handler)))))
                         hunchentoot:*dispatch-table*)))
     ,@body))

(defmacro serving ((&rest initargs) (&rest routes) &body body)
  "Evaluates BODY with *SERVER* bound to an acceptor made of INITARGS, as
WITH-ACCEPTOR does, that serves ROUTES, as WITH-ROUTES does."
  `(with-routes ,routes
     (call-with-acceptor (list ,@initargs) (lambda () ,@body))))
