(in-package #:hunchentoot-recycling-taskmaster)

;;;; Acceptors behind proxies: what Hunchentoot's functions say of the client of a request.

(defclass proxied-acceptor (listening-acceptor)
  ((trusted-proxies
    :initarg :trusted-proxies
    :accessor acceptor-trusted-proxies
    :documentation "The proxies that are believed; once it is initialised, the result of
NETWORKS-NAMED.")
   (proxy-protocol
    :initarg :proxy-protocol
    :reader acceptor-proxy-protocol-p))
  (:default-initargs
   :trusted-proxies '()
   :proxy-protocol nil)
  (:documentation "An acceptor that believes what certain proxies tell of their clients;
PARALLEL-ACCEPTOR explains its arguments."))

(defmethod shared-initialize :before
    ((acceptor proxied-acceptor) slot-names
     &key (trusted-proxies nil trusted-p) (proxy-protocol nil protocol-p))
  (declare (ignore slot-names))
  (flet ((value-of (slot)
           (and (slot-boundp acceptor slot) (slot-value acceptor slot))))
    (with-parameter-errors
      (check-proxy-protocol (if protocol-p proxy-protocol (value-of 'proxy-protocol))
                            (if trusted-p trusted-proxies (value-of 'trusted-proxies))))))

(defmethod shared-initialize :after
    ((acceptor proxied-acceptor) slot-names &key (trusted-proxies nil trusted-p))
  (declare (ignore slot-names))
  (when trusted-p
    (setf (acceptor-trusted-proxies acceptor) (networks-named trusted-proxies))))

(defmethod initialize-instance :after ((acceptor proxied-acceptor) &key)
  (let ((taskmaster (acceptor-taskmaster* acceptor)))
    (when (and (acceptor-trusted-proxies acceptor)
               (not (typep taskmaster 'recycling-taskmaster)))
      (hunchentoot:parameter-error "TRUSTED-PROXIES needs a RECYCLING-TASKMASTER, not ~A."
                                   taskmaster))))

(defmethod trusted-proxies ((taskmaster recycling-taskmaster))
  (let ((acceptor (hunchentoot:taskmaster-acceptor taskmaster)))
    (and (typep acceptor 'proxied-acceptor)
         (acceptor-trusted-proxies acceptor))))

(defmethod proxy-protocol-p ((taskmaster recycling-taskmaster))
  (let ((acceptor (hunchentoot:taskmaster-acceptor taskmaster)))
    (and (typep acceptor 'proxied-acceptor)
         (acceptor-proxy-protocol-p acceptor))))

(defun behind-proxies-p (acceptor)
  "True when ACCEPTOR believes some proxies, and nobody else."
  (and (typep acceptor 'proxied-acceptor)
       (acceptor-trusted-proxies acceptor)
       t))

(defun told-scheme (request)
  "The scheme of the client of REQUEST, :HTTP or :HTTPS, as a trusted proxy has told it; NIL where
none has."
  (hunchentoot:aux-request-value 'scheme request))

(defmethod hunchentoot:acceptor-ssl-p :around ((acceptor proxied-acceptor))
  "While a request is processed whose scheme a trusted proxy has told, true when that is https.
HUNCHENTOOT:SSL-P and HUNCHENTOOT:REDIRECT ask."
  (let* ((request (and (boundp 'hunchentoot:*request*) hunchentoot:*request*))
         (scheme (and request
                      (eq acceptor (hunchentoot:request-acceptor request))
                      (told-scheme request))))
    (if scheme
        (eq :https scheme)
        (call-next-method))))
