(in-package #:hunchentoot-recycling-taskmaster.platform)

(define-condition accept-failed (recycling-error)
  ((cause :initarg :cause :reader accept-failure-cause))
  (:report (lambda (condition stream)
             (format stream "No connection could be accepted: ~A"
                     (accept-failure-cause condition))))
  (:documentation "The listener returned no connection, for a reason that may pass."))

(define-condition descriptors-exhausted (accept-failed)
  ()
  (:documentation "The process or the system has no descriptor or no memory left for another
connection (EMFILE, ENFILE, ENOBUFS, ENOMEM).  Another accept right away would fail, too."))

(define-condition network-trouble (accept-failed)
  ()
  (:documentation "The network failed before a connection could be accepted (ENETDOWN, EHOSTUNREACH
and similar errors).  The next accept may succeed."))

(define-condition listener-closed (accept-failed)
  ()
  (:documentation "The listener was shut down or closed, and will never return another
connection."))

(define-condition listen-failed (recycling-error)
  ((place :initarg :place :reader listen-failure-place)
   (reason :initarg :reason :reader listen-failure-reason))
  (:report (lambda (condition stream)
             (format stream "Cannot listen on ~A: ~A."
                     (listen-failure-place condition) (listen-failure-reason condition))))
  (:documentation "A server cannot listen on the place, a port, path or descriptor, that its
arguments name.  The report says why, and what to do.  Where usocket has a class for the error, the
condition is of that, too."))

(define-condition peer-gone (recycling-error)
  ()
  (:report "The peer has left, so its address is unknown.")
  (:documentation "The address of the peer of a connection is no longer available."))

(defgeneric tls-failure-words (condition)
  (:documentation "The TLS library's description, a string, of CONDITION, which has ended a TLS
handshake; :GONE if the peer has left; NIL if CONDITION is not about TLS.")
  (:method (condition)
    (declare (ignore condition))
    nil))
