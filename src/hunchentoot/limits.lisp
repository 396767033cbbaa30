(in-package #:hunchentoot-recycling-taskmaster)

;;;; The limits on one request.

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
