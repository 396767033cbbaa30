(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; The arguments of applications, Hunchentoot's acceptors and Clack's RUN: their types, and errors
;;;; that name them.

(define-condition unfit-argument (recycling-error)
  ((name :initarg :name :reader unfit-argument-name)
   (words :initarg :words :reader unfit-argument-words))
  (:report (lambda (condition stream)
             (format stream "~A~A."
                     (unfit-argument-name condition) (unfit-argument-words condition))))
  (:documentation "Signalled when the value of an argument is not valid, alone or together with
another."))

(defun unfit (name control &rest arguments)
  "Signals UNFIT-ARGUMENT for the argument NAME, a keyword.  CONTROL, a string, and ARGUMENTS make
the text after the name, as for FORMAT."
  (error 'unfit-argument :name name
                         :words (let ((*print-pretty* nil)) ; on one line
                                  (apply #'format nil control arguments))))

;;; Types

(defconstant +thousand-years+ (* 1000 366 24 60 60)
  "The longest time until a deadline, in seconds.")

(deftype seconds ()
  "A real number of seconds until a deadline, or NIL for no limit."
  `(or null (real 0 ,+thousand-years+)))

(defun address-p (value)
  "True when usocket accepts VALUE as an address: a string, octets of IPv4 or IPv6, or NIL."
  (typecase value
    (null t)
    (string (plusp (length value)))
    (vector (and (member (length value) '(4 16))
                 (every (lambda (element) (typep element 'octet)) value)))))

(defun proxies-p (value)
  "True when VALUE is a list of designators of trusted proxies."
  (and (listp value)
       (null (cdr (last value)))
       (every #'network-named value)))

(defun fits-p (value type)
  "True when VALUE is of TYPE."
  (handler-case (typep value type)
    (arithmetic-error () nil)))         ; the float is not a number

(defun check-argument-types (initargs types)
  "Checks the arguments in INITARGS, a plist, that TYPES names: a list of lists of a name, a type,
the type in words, and optionally true where the value is a secret.  Signals UNFIT-ARGUMENT."
  (loop with unknown = '#:unknown
        for (name type words secret-p) in types
        for value = (getf initargs name unknown)
        unless (or (eq value unknown) (fits-p value type))
          do (unfit name " must be ~A~:[, not ~S~;~]" words secret-p value)))

(defparameter *common-argument-types*
  `((:port (integer 0 65535) "an integer from 0, for any free port, to 65535")
    (:address (satisfies address-p)
     "a string with an address or the name of a host, or NIL for all addresses")
    (:read-timeout seconds "a number of seconds, or NIL for no limit")
    (:write-timeout seconds "a number of seconds, or NIL for no limit")
    (:defer-accept (or null (integer 1 255)) "an integer of seconds from 1 to 255, or NIL")
    (:trusted-proxies (satisfies proxies-p)
     ,(format nil "a list of addresses, of networks such as \"10.0.0.0/8\" without bits beyond the ~
                   slash, and :UNIX"))
    (:message-log-format (member :text :json) ":TEXT or :JSON"))
  "The types of the arguments that acceptors and RUN have in common, for CHECK-ARGUMENT-TYPES.")

(defun check-proxy-protocol (proxy-protocol-p trusted)
  "Signals UNFIT-ARGUMENT if PROXY-PROTOCOL-P, and there are no proxies in the list TRUSTED."
  (when (and proxy-protocol-p (null trusted))
    (unfit :proxy-protocol " needs TRUSTED-PROXIES, from which connections must come")))

;;; Limits of requests

(defparameter *limit-initargs*
  '((:max-request-line-octets :request-line-octets limits-request-line-octets size)
    (:max-header-octets :header-octets limits-header-octets size)
    (:max-header-count :header-count limits-header-count size)
    (:max-body-octets :body-octets limits-body-octets content)
    (:max-raw-octets :raw-octets limits-raw-octets content)
    (:max-form-octets :form-octets limits-form-octets content)
    (:max-field-count :field-count limits-field-count content)
    (:max-file-count :file-count limits-file-count content)
    (:min-content-rate :content-rate limits-content-rate rate)
    (:content-timeout :content-seconds limits-content-seconds whole-time)
    (:min-reply-rate :reply-rate limits-reply-rate rate)
    (:reply-timeout :reply-seconds limits-reply-seconds time)
    (:handler-timeout :handler-seconds limits-handler-seconds time)
    (:queue-timeout :queue-seconds limits-queue-seconds time)
    (:handshake-timeout :handshake-seconds limits-handshake-seconds own-time)
    (:head-timeout :head-seconds limits-head-seconds own-time)
    (:idle-timeout :idle-seconds limits-idle-seconds own-time)
    (:max-connection-requests :connection-requests limits-connection-requests most)
    (:max-address-connections :address-connections limits-address-connections most))
  "For each limit, its name as an argument of an application, its name for MAKE-LIMITS, its reader,
and its kind, one of *LIMIT-KINDS*.")

(defparameter *limit-kinds*
  `((size (and index (integer 1)) "an integer above 0, and within reason")
    ;; Content may exceed any memory.
    (content (or null content-size) "an integer from 0 below 2^60, or NIL for no limit")
    (rate (or null (and index (integer 1)))
     "an integer of octets a second above 0, or NIL for no limit")
    (whole-time (or null (integer 0 ,+thousand-years+))
     "an integer of seconds, not negative, and within reason, or NIL for no limit")
    (time seconds "a number of seconds, or NIL for no limit")
    (own-time (or (eql :read-timeout) seconds)
     "a number of seconds, NIL for no limit, or :READ-TIMEOUT for as long as that says")
    (most (or null (and index (integer 1))) "an integer above 0, or NIL for no limit"))
  "The kinds of limits, with their types, and these in words.")

(defun changed-limits (limits initargs)
  "A copy of LIMITS with the changes in the plist INITARGS.  Signals UNFIT-ARGUMENT."
  (apply #'make-limits
         (loop for (name key reader kind) in *limit-initargs*
               do (check-argument-types initargs
                                        (list (cons name (rest (assoc kind *limit-kinds*)))))
               collect key
               collect (getf initargs name (funcall reader limits)))))

;;; Where they listen

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
