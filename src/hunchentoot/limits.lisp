(in-package #:hunchentoot-recycling-taskmaster)

;;;; How much one request may ask of an acceptor.

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
  (setf (acceptor-limits acceptor)
        (with-parameter-errors (changed-limits (acceptor-limits acceptor) initargs))))

;;; Content that is too large, or not well-formed

(defun deferral-dropped-p (exchange)
  "Lets the reply of EXCHANGE, which was deferred, perhaps, not come later.  NIL where it has its answer."
  (let ((deferral (exchange-deferral exchange)))
    (cond ((null deferral) t)
          ((withdraw-deferral deferral)
           (setf (exchange-deferral exchange) nil)
           t))))

(defun answer-refusal (refusal)
  "Ends the request whose content is not acceptable because of REFUSAL, a PROTOCOL-ERROR: with its
status, and with the connection.  Returns when there is a reply already."
  (let ((status (protocol-error-status refusal)))
    (when *exchange*
      (note-event *exchange* :request-fault))
    (unless (or (headers-sent-p)
                (and *exchange* (not (deferral-dropped-p *exchange*))))
      (count-rejection hunchentoot:*acceptor* status)
      (setf (hunchentoot:return-code*) status)
      (when (eql status hunchentoot:+http-service-unavailable+)
        (setf (hunchentoot:header-out :retry-after) *retry-seconds*))
      (hunchentoot:abort-request-handler))))
