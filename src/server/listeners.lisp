(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; The listening address of an application, and errors that name it.

(defmacro define-listening-errors (table &body rows)
  "Defines TABLE, an alist of ROWS: an error of usocket, a subclass of it and of LISTEN-FAILED, and
its reason."
  `(progn
     ,@(loop for (class subclass) in rows
             collect `(define-condition ,subclass (listen-failed ,class) ()))
     (defparameter ,table ',rows
       "For each error of usocket: the subclass of it that is signalled instead, and the reason in
words.")))

(define-listening-errors *listening-errors*
  (usocket:address-in-use-error port-taken
   "something else listens there; stop that, or choose another port")
  (usocket:address-not-available-error address-missing
   "this machine has no such address; choose one that it has, or NIL for all")
  (usocket:operation-not-permitted-error port-forbidden
   "this is not permitted, or, on ABCL, something else listens there; choose a port above 1023")
  (usocket:ns-error address-unknown "nobody knows that address")
  (usocket:unknown-error listening-failed nil))

(defun tell-where (address port condition)
  "Signals CONDITION, for which the server cannot listen on ADDRESS, a string or NIL for all, and
PORT, as an error of its class that names the place.  Returns if there is no class for it."
  (destructuring-bind (&optional class subclass reason)
      (assoc-if (lambda (class) (typep condition class)) *listening-errors*)
    (when (and class (not (typep condition 'listen-failed)))
      (let ((cause (unless reason (usocket::usocket-real-error condition))))
        (apply #'error subclass
               :place (format nil "port ~D of ~:[all addresses~;~:*~A~]" port address)
               :reason (cond (reason)
                             ((access-denied-p cause)
                              "this is not permitted; choose a port above 1023, behind a proxy say")
                             (t cause))
               (and cause (list :real-error cause)))))))

(defun sole-name (listener)
  "The address and the port of LISTENER, in a list; NIL where it listens on all addresses."
  (let ((name (multiple-value-list (local-name listener))))
    (unless (member (first name) '("0.0.0.0" "::") :test #'string=)
      name)))
