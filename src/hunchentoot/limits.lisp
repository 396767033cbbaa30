(in-package #:hunchentoot-recycling-taskmaster)

;;;; How much one request may ask of an acceptor.

(defparameter *limit-initargs*
  '((:max-request-line-octets :request-line-octets limits-request-line-octets)
    (:max-header-octets :header-octets limits-header-octets)
    (:max-header-count :header-count limits-header-count)
    (:max-body-octets :body-octets limits-body-octets)
    (:max-chunk-extension-octets :chunk-extension-octets limits-chunk-extension-octets)
    (:max-trailer-octets :trailer-octets limits-trailer-octets)
    (:max-raw-octets :raw-octets limits-raw-octets)
    (:max-form-octets :form-octets limits-form-octets)
    (:max-field-count :field-count limits-field-count))
  "What the acceptor calls each limit, what MAKE-LIMITS calls it, and its reader.")

(defparameter *limits-of-content*
  '(:max-body-octets :max-raw-octets :max-form-octets :max-field-count)
  "The limits that may be larger than any memory, or NIL.")

(defun check-limit (name value)
  "VALUE, if the limit NAME may have it."
  (if (member name *limits-of-content*)
      (unless (typep value '(or null content-size))
        (hunchentoot:parameter-error
         "~A must be an integer from 0 below 2^60, or NIL for no limit, not ~S." name value))
      (unless (typep value '(and index (integer 1)))
        (hunchentoot:parameter-error
         "~A must be an integer above 0, and within reason, not ~S." name value)))
  value)

(defun changed-limits (limits initargs)
  "LIMITS with those changed that the plist INITARGS names."
  (apply #'make-limits
         (loop for (name key reader) in *limit-initargs*
               for value = (getf initargs name (funcall reader limits))
               collect key
               collect (check-limit name value))))

(defmethod shared-initialize :after
    ((acceptor parallel-acceptor) slot-names
     &rest initargs &key max-request-line-octets max-header-octets max-header-count
                      max-body-octets max-chunk-extension-octets max-trailer-octets
                      max-raw-octets max-form-octets max-field-count)
  (declare (ignore slot-names max-request-line-octets max-header-octets max-header-count
                   max-body-octets max-chunk-extension-octets max-trailer-octets
                   max-raw-octets max-form-octets max-field-count))
  (setf (acceptor-limits acceptor) (changed-limits (acceptor-limits acceptor) initargs)))

;;; Content that is too large, or not well-formed

(defparameter *retry-seconds* 1
  "What a refused client is told to wait before it tries again, an integer of seconds.")

(defun answer-refusal (refusal)
  "Ends the request whose content is not acceptable because of REFUSAL, a PROTOCOL-ERROR: with its
status, and with the connection.  Returns when a reply has begun already."
  (let ((status (protocol-error-status refusal)))
    (when *exchange*
      (note-event *exchange* :request-fault))
    (unless (headers-sent-p)
      (count-rejection hunchentoot:*acceptor* status)
      (setf (hunchentoot:return-code*) status)
      (when (eql status hunchentoot:+http-service-unavailable+)
        (setf (hunchentoot:header-out :retry-after) *retry-seconds*))
      (hunchentoot:abort-request-handler))))
