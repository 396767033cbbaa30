(in-package #:hunchentoot-recycling-taskmaster)

;;;; The types of single arguments of acceptors.  Hunchentoot takes any value, and fails when it
;;;; uses a wrong one: at START, or at the first request.  Values that work there are allowed here.

(defun access-log-format-p (value)
  (or (member value '(:combined :json))
      (functionp value)
      ;; The function may be defined after the acceptor was made; START checks it.
      (and value (symbolp value) (not (keywordp value)))))

(deftype access-log-format () '(satisfies access-log-format-p))

(defun check-access-log-function (acceptor)
  "Signals HUNCHENTOOT:PARAMETER-ERROR if the format of ACCEPTOR is a symbol that names no
function."
  (let ((format (access-log-format acceptor)))
    (when (and (symbolp format)
               (not (keywordp format))
               (or (not (fboundp format)) (macro-function format) (special-operator-p format)))
      (hunchentoot:parameter-error "ACCESS-LOG-FORMAT is ~S, which names no function." format))))

(defparameter *argument-types*
  `((:port port-number "an integer from 0, for any free port, to 65535")
    (:address address "a string with an address or the name of a host, or NIL for all addresses")
    (:listen-backlog (unsigned-byte 31) "an integer, not negative")
    (:read-timeout seconds "a number of seconds, or NIL for no limit")
    (:write-timeout seconds "a number of seconds, or NIL for no limit")
    (:taskmaster hunchentoot:taskmaster "a taskmaster, such as an instance of RECYCLING-TASKMASTER")
    (:defer-accept (or null (integer 1 255)) "an integer of seconds from 1 to 255, or NIL")
    (:trusted-proxies proxies ,*proxies-in-words*)
    (:access-log-format access-log-format ":COMBINED, :JSON or a function of one argument")
    (:access-log-test (or function symbol) "a function of one argument, or NIL")
    (:file-cache-control cache-control ,*cache-control-in-words*)
    (:session-cookie-attributes (or null string) "a string, or NIL")
    (:message-log-format (member :text :json) ":TEXT or :JSON"))
  "The types of the arguments of acceptors, for CHECK-ARGUMENT-TYPES.")

(defmacro with-parameter-errors (&body body)
  "Evaluates BODY.  Turns UNFIT-ARGUMENT into HUNCHENTOOT:PARAMETER-ERROR."
  `(handler-case (progn ,@body)
     (unfit-argument (condition)
       (hunchentoot:parameter-error "~A" condition))))

(defmethod shared-initialize :before
    ((acceptor listening-acceptor) slot-names &rest initargs)
  "Checks the arguments before any slot changes, so that a mistake leaves ACCEPTOR as it was."
  (declare (ignore slot-names))
  (with-parameter-errors
    (check-argument-types initargs *argument-types*)))
