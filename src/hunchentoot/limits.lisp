(in-package #:hunchentoot-recycling-taskmaster)

;;;; How much one request may ask of an acceptor.

(defparameter *limit-initargs*
  '((:max-request-line-octets :request-line-octets limits-request-line-octets)
    (:max-header-octets :header-octets limits-header-octets)
    (:max-header-count :header-count limits-header-count)
    (:max-body-octets :body-octets limits-body-octets)
    (:max-chunk-extension-octets :chunk-extension-octets limits-chunk-extension-octets)
    (:max-trailer-octets :trailer-octets limits-trailer-octets))
  "What the acceptor calls each limit, what MAKE-LIMITS calls it, and its reader.")

(defun check-limit (name value)
  "VALUE, if the limit NAME may have it."
  (if (eq name :max-body-octets)
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
                      max-body-octets max-chunk-extension-octets max-trailer-octets)
  (declare (ignore slot-names max-request-line-octets max-header-octets max-header-count
                   max-body-octets max-chunk-extension-octets max-trailer-octets))
  (setf (acceptor-limits acceptor) (changed-limits (acceptor-limits acceptor) initargs)))

;;; Content that is too large, or not well-formed

(defun answer-refusal (refusal)
  "Ends the request whose content is not acceptable because of REFUSAL, a PROTOCOL-ERROR: with its
status, and with the connection.  Returns when a reply has begun already."
  (setf *last-request-p* t)
  (finish-connection)
  (unless (headers-sent-p)
    (setf (hunchentoot:return-code*) (protocol-error-status refusal))
    (hunchentoot:abort-request-handler)))

;;; Where Hunchentoot reads the request

(defun acceptable-length-p (acceptor headers stream)
  "True when the content that the alist HEADERS announces is not too long for ACCEPTOR; otherwise
the client is told so on STREAM."
  (let ((limit (limits-body-octets (acceptor-limits acceptor)))
        (length (cdr (assoc :content-length headers))))
    (cond ((and limit length
                (> (or (parse-integer length :junk-allowed t) 0) limit))
           (send-refusal stream (make-refusal :body-too-large))
           nil)
          (t t))))

(defun counted-content (acceptor headers stream)
  "STREAM, from which the content of the request with HEADERS is read, or one that counts what comes
in chunks."
  (let ((limits (acceptor-limits acceptor)))
    (if (and (limits-body-octets limits) (chunked-body-p headers))
        (make-counted-content stream limits #'answer-refusal)
        stream)))
