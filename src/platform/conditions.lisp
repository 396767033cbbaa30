(in-package #:hunchentoot-recycling-taskmaster.platform)

(define-condition accept-failed (recycling-error)
  ((cause :initarg :cause :reader accept-failure-cause))
  (:report (lambda (condition stream)
             (format stream "No connection could be accepted: ~A"
                     (accept-failure-cause condition))))
  (:documentation "The listen socket gave no connection for a reason that may pass."))

(define-condition descriptors-exhausted (accept-failed)
  ()
  (:documentation "The process or the system has no descriptor or no memory left for
another connection (EMFILE, ENFILE, ENOBUFS, ENOMEM); accepting again at once
would fail again at once."))

(define-condition network-trouble (accept-failed)
  ()
  (:documentation "The network failed under a connection before it could be accepted (ENETDOWN,
EHOSTUNREACH and their like); the next one may be all right."))

(define-condition listener-closed (accept-failed)
  ()
  (:documentation "The listen socket was shut down or closed; it will never give
another connection."))

(define-condition listen-failed (recycling-error)
  ((place :initarg :place :reader listen-failure-place)
   (reason :initarg :reason :reader listen-failure-reason))
  (:report (lambda (condition stream)
             (format stream "Cannot listen on ~A: ~A."
                     (listen-failure-place condition) (listen-failure-reason condition))))
  (:documentation "No connection can be accepted on a path or a descriptor that was given for
that."))

(define-condition peer-gone (recycling-error)
  ()
  (:report "The peer has left, and its address with it.")
  (:documentation "Who is at the other end of a connection cannot be told any more."))

(defgeneric tls-failure-words (condition)
  (:documentation "What the library says of CONDITION, which has ended a TLS handshake, a string;
:GONE where the peer is gone; NIL where CONDITION tells of something else.")
  (:method (condition)
    (declare (ignore condition))
    nil))
