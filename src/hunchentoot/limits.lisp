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
    (:max-field-count :field-count limits-field-count)
    (:max-early-octets :early-octets limits-early-octets)
    (:min-content-rate :content-rate limits-content-rate)
    (:content-grace :content-grace limits-content-grace)
    (:content-timeout :content-seconds limits-content-seconds))
  "What the acceptor calls each limit, what MAKE-LIMITS calls it, and its reader.")

(defparameter *limits-of-content*
  '(:max-body-octets :max-raw-octets :max-form-octets :max-field-count)
  "The limits that may be larger than any memory, or NIL.")

(deftype whole-seconds ()
  "As many as a deadline may be away: a thousand years."
  `(integer 0 ,(* 1000 366 24 60 60)))

(defparameter *limits-of-time*
  '((:max-early-octets index "an integer of octets, not negative")
    (:min-content-rate (or null (and index (integer 1)))
     "an integer of octets a second above 0, or NIL for no limit")
    (:content-grace whole-seconds "an integer of seconds, not negative, and within reason")
    (:content-timeout (or null whole-seconds)
     "an integer of seconds, not negative, and within reason, or NIL for no limit"))
  "The limits on how content comes, their types, and what these are in words.")

(defun limit-type (name)
  "What the limit NAME may be: a type, and that in words."
  (cond ((rest (assoc name *limits-of-time*)))
        ((member name *limits-of-content*)
         '((or null content-size) "an integer from 0 below 2^60, or NIL for no limit"))
        (t
         '((and index (integer 1)) "an integer above 0, and within reason"))))

(defun check-limit (name value)
  "VALUE, if the limit NAME may have it."
  (destructuring-bind (type words) (limit-type name)
    (unless (typep value type)
      (hunchentoot:parameter-error "~A must be ~A, not ~S." name words value)))
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
                      max-raw-octets max-form-octets max-field-count
                      max-early-octets min-content-rate content-grace content-timeout)
  (declare (ignore slot-names max-request-line-octets max-header-octets max-header-count
                   max-body-octets max-chunk-extension-octets max-trailer-octets
                   max-raw-octets max-form-octets max-field-count
                   max-early-octets min-content-rate content-grace content-timeout))
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
