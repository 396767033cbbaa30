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

(defconstant +thousand-years+ (* 1000 366 24 60 60)
  "The longest time until a deadline, in seconds.")

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
               for type-and-words = (rest (assoc kind *limit-kinds*))
               do (check-argument-types initargs (list (cons name type-and-words)))
               collect key
               collect (getf initargs name (funcall reader limits)))))

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
