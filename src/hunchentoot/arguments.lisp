(in-package #:hunchentoot-recycling-taskmaster)

;;;; What single arguments of acceptors may be.  Hunchentoot takes anything, and fails when it is used:
;;;; at START, or at the first request.  Whatever works there is taken here.

(deftype port-number () '(integer 0 65535))
(deftype seconds () '(or null (real 0)))

(defun address-p (value)
  "True when VALUE is what usocket takes for an address: a string, octets of IPv4 or IPv6, or NIL."
  (typecase value
    (null t)
    (string (plusp (length value)))
    (vector (and (member (length value) '(4 16))
                 (every (lambda (element) (typep element 'octet)) value)))))

(deftype address () '(satisfies address-p))

(defun access-log-format-p (value)
  (or (member value '(:combined :json))
      (functionp value)
      ;; Which may be defined after the acceptor was made; START looks.
      (and value (symbolp value) (not (keywordp value)))))

(deftype access-log-format () '(satisfies access-log-format-p))

(defparameter *argument-types*
  '((:port port-number "an integer from 0, for any free port, to 65535")
    (:address address "a string with an address or the name of a host, or NIL for all addresses")
    (:listen-backlog (unsigned-byte 31) "an integer, not negative")
    (:read-timeout seconds "a number of seconds, or NIL for no limit")
    (:write-timeout seconds "a number of seconds, or NIL for no limit")
    (:taskmaster hunchentoot:taskmaster "a taskmaster, such as an instance of RECYCLING-TASKMASTER")
    (:defer-accept (or null (integer 1 255)) "an integer of seconds from 1 to 255, or NIL")
    (:access-log-format access-log-format ":COMBINED, :JSON or a function of one argument"))
  "Arguments of acceptors, their types, and what these are in words.")

(defun check-argument-types (initargs types)
  "Checks what there is in INITARGS of the arguments in TYPES, a table as *ARGUMENT-TYPES*.  A fourth element
says that the value is a secret."
  (loop with unknown = '#:unknown
        for (name type words secret-p) in types
        for value = (getf initargs name unknown)
        unless (or (eq value unknown) (typep value type))
          do (if secret-p
                 (hunchentoot:parameter-error "~A must be ~A." name words)
                 (hunchentoot:parameter-error "~A must be ~A, not ~S." name words value))))

(defmethod shared-initialize :before
    ((acceptor listening-acceptor) slot-names &rest initargs)
  "Before anything is changed: what cannot be is refused, and what was stays."
  (declare (ignore slot-names))
  (check-argument-types initargs *argument-types*))
