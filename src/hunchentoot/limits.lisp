(in-package #:hunchentoot-recycling-taskmaster)

;;;; How much one request may ask of an acceptor.

(defmethod shared-initialize :after
    ((acceptor parallel-acceptor) slot-names
     &rest initargs &key max-request-line-octets max-header-octets max-header-count
                      max-body-octets max-chunk-extension-octets max-trailer-octets
                      max-raw-octets max-form-octets max-field-count max-file-count
                      max-early-octets min-content-rate content-grace content-timeout
                      min-reply-rate reply-grace)
  (declare (ignore slot-names max-request-line-octets max-header-octets max-header-count
                   max-body-octets max-chunk-extension-octets max-trailer-octets
                   max-raw-octets max-form-octets max-field-count max-file-count
                   max-early-octets min-content-rate content-grace content-timeout
                   min-reply-rate reply-grace))
  (setf (acceptor-limits acceptor)
        (with-parameter-errors (changed-limits (acceptor-limits acceptor) initargs))))

;;; Content that is too large, or not well-formed

(defun withdraw-unless-answered (exchange)
  "Lets the reply of EXCHANGE, if it was deferred and has no answer, not get any later.  True when
it has one that was not begun."
  (let ((deferred-response (exchange-deferred-response exchange)))
    (and deferred-response
         (not (withdraw-deferred-response deferred-response))
         (deferred-response-unsent-p deferred-response))))

(defun settle-refusal (refusal)
  "Makes the current reply one that tells of REFUSAL, a PROTOCOL-ERROR, and counts that, unless it
does so already."
  (let ((status (protocol-error-status refusal)))
    (unless (eql status (hunchentoot:return-code*))
      (count-rejection hunchentoot:*acceptor* status)
      (setf (hunchentoot:return-code*) status))
    (when (eql status hunchentoot:+http-service-unavailable+)
      (setf (hunchentoot:header-out :retry-after) *retry-seconds*))))

(defun answer-refusal (refusal)
  "Ends the request whose content is not acceptable because of REFUSAL, a PROTOCOL-ERROR: with its
status, or with the deferred reply that it has already, and with the connection.  Returns when a
reply has begun."
  (note-event *exchange* :request-fault)
  (unless (headers-sent-p)
    (unless (withdraw-unless-answered *exchange*)
      (settle-refusal refusal))
    (hunchentoot:abort-request-handler)))
