(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; The listening address of an application, and errors that name it.

(define-condition cannot-listen (recycling-error)
  ((address :initarg :address :reader refused-address)
   (port :initarg :port :reader refused-port)
   (reason :initarg :reason :reader refusal-reason))
  (:report (lambda (condition stream)
             (format stream "Cannot listen on port ~D of ~:[all addresses~;~:*~A~]: ~A."
                     (refused-port condition)
                     (refused-address condition)
                     (refusal-reason condition))))
  (:documentation "A mixin for the conditions of usocket, which do not say where the server cannot
listen."))

(defmacro define-listening-errors (table &body rows)
  "Defines TABLE, an alist of ROWS: an error of usocket, a subclass for which also CANNOT-LISTEN is
one, and its reason."
  `(progn
     ,@(loop for (class subclass) in rows
             collect `(define-condition ,subclass (cannot-listen ,class) ()))
     (defparameter ,table ',rows
       "For each error of usocket: the subclass of it that is signalled instead, and the reason in
words.")))

(define-listening-errors *listening-errors*
  (usocket:address-in-use-error port-taken "something else listens there")
  (usocket:address-not-available-error address-missing "this machine has no such address")
  (usocket:operation-not-permitted-error port-forbidden
   "this is not permitted (ABCL says so too where something else listens there)")
  (usocket:ns-error address-unknown "nobody knows that address")
  (usocket:unknown-error listening-failed nil))

(defun tell-where (address port condition)
  "Signals CONDITION, for which the server cannot listen on ADDRESS, a string or NIL for all, and
PORT, as an error of its class that names the place.  Returns if there is no class for it."
  (destructuring-bind (&optional class subclass reason)
      (assoc-if (lambda (class) (typep condition class)) *listening-errors*)
    (when (and class (not (typep condition 'cannot-listen)))
      (apply #'error subclass
             :address address :port port
             :reason (or reason (usocket::usocket-real-error condition))
             (when (eq class 'usocket:unknown-error)
               (list :real-error (usocket::usocket-real-error condition)))))))

(defun sole-name (listener)
  "The address and the port of LISTENER, in a list; NIL where it listens on all addresses."
  (let ((name (multiple-value-list (local-name listener))))
    (unless (member (first name) '("0.0.0.0" "::") :test #'string=)
      name)))
