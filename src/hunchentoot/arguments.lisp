(in-package #:hunchentoot-recycling-taskmaster)

;;;; What single arguments of acceptors may be.  Hunchentoot takes anything, and fails when it is
;;;; used: at START, or at the first request.  Whatever works there is taken here.

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
  "Arguments of acceptors, as CHECK-ARGUMENT-TYPES has them.")

(defmacro with-parameter-errors (&body body)
  "Evaluates BODY; an argument that makes no sense is signalled as Hunchentoot does."
  `(handler-case (progn ,@body)
     (unfit-argument (condition)
       (hunchentoot:parameter-error "~A" condition))))

(defmethod shared-initialize :before
    ((acceptor listening-acceptor) slot-names &rest initargs)
  "Before anything is changed: what cannot be is refused, and what was stays."
  (declare (ignore slot-names))
  (with-parameter-errors
    (check-argument-types initargs *argument-types*)))
