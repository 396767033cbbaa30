(in-package #:hunchentoot-recycling-taskmaster)

;;;; The limits on one request, and the refusal of content beyond them.

(defmethod shared-initialize :after
    ((acceptor parallel-acceptor) slot-names
     &rest initargs &key max-request-line-octets max-header-octets max-header-count
                      max-body-octets max-raw-octets max-form-octets max-field-count
                      max-file-count min-content-rate content-timeout min-reply-rate
                      reply-timeout handler-timeout queue-timeout handshake-timeout
                      head-timeout idle-timeout max-connection-requests max-address-connections)
  (declare (ignore slot-names max-request-line-octets max-header-octets max-header-count
                   max-body-octets max-raw-octets max-form-octets max-field-count
                   max-file-count min-content-rate content-timeout min-reply-rate
                   reply-timeout handler-timeout queue-timeout handshake-timeout
                   head-timeout idle-timeout max-connection-requests max-address-connections))
  (setf (acceptor-limits acceptor)
        (with-parameter-errors (changed-limits (acceptor-limits acceptor) initargs))))

(defmethod acceptor-limits ((acceptor hunchentoot:acceptor))
  "The default, for an acceptor of Hunchentoot's own on our threads."
  *default-limits*)

;;; Content that is too large, or not well-formed

(defun withdraw-unless-answered (exchange)
  "Withdraws the deferred reply of EXCHANGE, if there is one, unless it has an answer.  True when it
has an answer that was not begun."
  (let ((deferred-response (exchange-deferred-response exchange)))
    (and deferred-response
         (not (withdraw-deferred-response deferred-response))
         (deferred-response-unsent-p deferred-response))))

(defun settle-refusal (refusal)
  "Gives the current reply the status of REFUSAL, a PROTOCOL-ERROR, and counts the rejection, unless
that was done before."
  (let ((status (protocol-error-status refusal)))
    (unless (eql status (hunchentoot:return-code*))
      (count-rejection hunchentoot:*acceptor* status)
      (setf (hunchentoot:return-code*) status))
    (when (eql status hunchentoot:+http-service-unavailable+)
      (setf (hunchentoot:header-out :retry-after) *retry-seconds*))))

(defun answer-refusal (refusal)
  "Ends the current request, whose content was refused with REFUSAL, a PROTOCOL-ERROR: with the
status of that, or with a deferred reply that has an answer already.  The connection ends, too.
Returns only if a reply has begun."
  (note-event *exchange* :request-fault)
  (unless (headers-sent-p)
    (unless (withdraw-unless-answered *exchange*)
      (settle-refusal refusal))
    (hunchentoot:abort-request-handler)))
