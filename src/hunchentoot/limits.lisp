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
    (setf *last-request-p* t)
    (finish-connection)
    (unless (headers-sent-p)
      (count-rejection hunchentoot:*acceptor* status)
      (setf (hunchentoot:return-code*) status)
      (when (eql status hunchentoot:+http-service-unavailable+)
        (setf (hunchentoot:header-out :retry-after) *retry-seconds*))
      (hunchentoot:abort-request-handler))))

;;; Where Hunchentoot reads the request

(defun refusal-of (acceptor method headers)
  "The keyword for why ACCEPTOR does not serve a request with METHOD and HEADERS, or NIL."
  (let ((limit (limits-body-octets (acceptor-limits acceptor))))
    (cond ((eq method :connect) :connect-not-served)
          ((and limit (> (content-length-of headers) limit)) :body-too-large))))

(defun acceptable-request-p (acceptor headers method uri protocol stream)
  "True when ACCEPTOR serves a request with HEADERS, METHOD, URI and PROTOCOL; otherwise the client is
told why not on STREAM."
  (let ((name (refusal-of acceptor method headers)))
    (or (null name)
        (let ((refusal (make-refusal name)))
          (note-rejection acceptor (current-link) refusal method uri protocol)
          (send-refusal stream refusal)
          nil))))

(defun content-length-of (headers)
  "The number of octets that the alist HEADERS announces, as Hunchentoot reads it, or 0."
  (let ((length (cdr (assoc :content-length headers))))
    (or (and length (parse-integer length :junk-allowed t)) 0)))

(defun counted-content (acceptor headers stream)
  "The stream from which the content of the request with HEADERS is read: STREAM itself where there
is none."
  (let ((limits (acceptor-limits acceptor))
        (length (content-length-of headers)))
    (cond ((chunked-body-p headers)
           (make-counted-content stream nil limits #'answer-refusal))
          ((plusp length)
           (make-counted-content stream length limits #'answer-refusal))
          (t stream))))
