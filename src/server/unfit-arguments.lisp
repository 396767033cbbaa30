(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; Checks of the arguments of an application.

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

;;; Limits of requests

(defparameter *limit-initargs*
  '((:max-request-line-octets :request-line-octets limits-request-line-octets)
    (:max-header-octets :header-octets limits-header-octets)
    (:max-header-count :header-count limits-header-count)
    (:max-body-octets :body-octets limits-body-octets)
    (:max-raw-octets :raw-octets limits-raw-octets)
    (:max-form-octets :form-octets limits-form-octets)
    (:max-field-count :field-count limits-field-count)
    (:max-file-count :file-count limits-file-count)
    (:min-content-rate :content-rate limits-content-rate)
    (:content-timeout :content-seconds limits-content-seconds)
    (:min-reply-rate :reply-rate limits-reply-rate)
    (:reply-timeout :reply-seconds limits-reply-seconds)
    (:handler-timeout :handler-seconds limits-handler-seconds)
    (:queue-timeout :queue-seconds limits-queue-seconds)
    (:handshake-timeout :handshake-seconds limits-handshake-seconds)
    (:head-timeout :head-seconds limits-head-seconds)
    (:idle-timeout :idle-seconds limits-idle-seconds)
    (:max-connection-requests :connection-requests limits-connection-requests)
    (:max-address-connections :address-connections limits-address-connections))
  "For each limit, its name as an argument of an application, its name for MAKE-LIMITS, and its
reader.")

(defparameter *limits-of-content*
  '(:max-body-octets :max-raw-octets :max-form-octets :max-field-count :max-file-count)
  "The limits that may exceed any memory, or be NIL.")

(defconstant +thousand-years+ (* 1000 366 24 60 60)
  "The longest time until a deadline, in seconds.")

(deftype whole-seconds ()
  "An integer of seconds until a deadline."
  `(integer 0 ,+thousand-years+))

(deftype own-timeout ()
  "A number of seconds until a deadline, NIL for no limit, or :READ-TIMEOUT."
  `(or (eql :read-timeout) seconds))

(defparameter *own-timeout-in-words*
  "a number of seconds, NIL for no limit, or :READ-TIMEOUT for as long as that says"
  "The type OWN-TIMEOUT in words, a string.")

(defparameter *limits-of-time*
  `((:min-content-rate (or null (and index (integer 1)))
     "an integer of octets a second above 0, or NIL for no limit")
    (:content-timeout (or null whole-seconds)
     "an integer of seconds, not negative, and within reason, or NIL for no limit")
    (:min-reply-rate (or null (and index (integer 1)))
     "an integer of octets a second above 0, or NIL for no limit")
    (:reply-timeout seconds "a number of seconds, or NIL for no limit")
    (:handler-timeout seconds "a number of seconds, or NIL for no limit")
    (:queue-timeout seconds "a number of seconds, or NIL for no limit")
    (:handshake-timeout own-timeout ,*own-timeout-in-words*)
    (:head-timeout own-timeout ,*own-timeout-in-words*)
    (:idle-timeout own-timeout ,*own-timeout-in-words*)
    (:max-connection-requests (or null (and index (integer 1)))
     "an integer above 0, or NIL for no limit")
    (:max-address-connections (or null (and index (integer 1)))
     "an integer above 0, or NIL for no limit"))
  "The limits on time, the pace of content and replies, and connections, with their types, and these
in words.")

(defun limit-type (name)
  "The type of the limit NAME, and the type in words, in a list."
  (cond ((rest (assoc name *limits-of-time*)))
        ((member name *limits-of-content*)
         '((or null content-size) "an integer from 0 below 2^60, or NIL for no limit"))
        (t
         '((and index (integer 1)) "an integer above 0, and within reason"))))

(defun check-limit (name value)
  "VALUE, if it is valid for the limit NAME.  Signals UNFIT-ARGUMENT otherwise."
  (destructuring-bind (type words) (limit-type name)
    (unless (fits-p value type)
      (unfit name " must be ~A, not ~S" words value)))
  value)

(defun changed-limits (limits initargs)
  "A copy of LIMITS with the changes in the plist INITARGS.  Signals UNFIT-ARGUMENT."
  (apply #'make-limits
         (loop for (name key reader) in *limit-initargs*
               for value = (getf initargs name (funcall reader limits))
               collect key
               collect (check-limit name value))))

;;; Types

(deftype port-number ()
  "A TCP port; 0 for any free one."
  '(integer 0 65535))

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

(deftype address ()
  "An address for usocket, or NIL for all."
  '(satisfies address-p))

(defun proxies-p (value)
  "True when VALUE is a list of designators of trusted proxies."
  (and (listp value)
       (null (cdr (last value)))
       (every #'network-named value)))

(deftype proxies ()
  "Trusted proxies: a list of addresses and networks, strings, and :UNIX."
  '(satisfies proxies-p))

(defparameter *proxies-in-words*
  "a list of addresses, of networks such as \"10.0.0.0/8\" without bits beyond the slash, and :UNIX"
  "The type PROXIES in words, a string.")

(defun check-proxy-protocol (proxy-protocol-p trusted)
  "Signals UNFIT-ARGUMENT if PROXY-PROTOCOL-P, and there are no proxies in the list TRUSTED."
  (when (and proxy-protocol-p (null trusted))
    (unfit :proxy-protocol " needs TRUSTED-PROXIES, from which connections must come")))

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
          do (if secret-p
                 (unfit name " must be ~A" words)
                 (unfit name " must be ~A, not ~S" words value))))
