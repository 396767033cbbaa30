(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; Kinds of failed TLS handshakes, as an administrator would tell them apart.

(define-condition handshake-failed (recycling-error)
  ((reason :initarg :reason :initform nil :reader handshake-failure-reason))
  (:report (lambda (condition stream)
             (format stream "A TLS handshake failed: ~:[the client is gone~;~:*~A~]."
                     (handshake-failure-reason condition))))
  (:documentation "Signalled when a TLS handshake has failed because of REASON, a string, or NIL
where the client is gone."))

(defmethod tls-failure-words ((condition handshake-failed))
  (or (handshake-failure-reason condition) :gone))

(defparameter *handshake-failures*
  '((:plain-http :info "the client speaks plain HTTP"
     "http request" "https proxy request")
    (:protocol :info "the client does not speak TLS, or no version of it that the server accepts"
     "unsupported protocol" "wrong version number" "wrong ssl version" "version too low"
     "unknown protocol" "inappropriate fallback" "alert protocol version")
    (:cipher :info "the client has no cipher, group or signature that the server accepts"
     "no shared cipher" "no suitable key share" "no shared group" "no suitable groups"
     "no suitable signature algorithm" "no shared signature algorithms" "alert handshake failure"
     "alert insufficient security")
    (:certificate :warning "the client does not trust the server's certificate"
     "alert unknown ca" "alert bad certificate" "alert unsupported certificate"
     "alert certificate unknown" "alert certificate expired" "alert certificate revoked")
    (:client-certificate :info "the client has shown no certificate that the server trusts"
     "peer did not return a certificate" "certificate verify failed" "no certificate returned"
     "alert no certificate")
    (:application-protocol :info "the client wants other protocols than HTTP/1.1"
     "no application protocol")
    (:gone nil nil
     "unexpected eof" "connection reset" "broken pipe" "alert user cancel" "alert close notify")
    (:other :info nil))
  "The kinds of handshake failures.  Each entry has the kind, the log level (NIL: not logged), the
message, and substrings of OpenSSL's error texts by which the kind is recognised.  Versions of
OpenSSL differ in the words around these.")

(defun handshake-failure-kinds ()
  "The kinds of failures of TLS handshakes, a list of keywords."
  (mapcar #'first *handshake-failures*))

(defun kind-by-words (words)
  "The kind of failure of which OpenSSL's error text WORDS, a string, is."
  (flet ((told-p (part) (search part words :test #'char-equal)))
    (or (first (find-if (lambda (entry) (some #'told-p (nthcdr 3 entry))) *handshake-failures*))
        :other)))

(defun handshake-failure-kind (condition)
  "The kind of handshake failure for CONDITION, one of HANDSHAKE-FAILURE-KINDS; :EXPIRED where the
client took too long; NIL when CONDITION is no such failure."
  (let ((words (tls-failure-words condition)))
    (typecase words
      (string (kind-by-words words))
      (keyword words)
      (t (typecase condition
           (stream-timeout :expired)
           ((or descriptor-broken end-of-file) :gone)
           (t (and (wait-timed-out-p condition) :expired)))))))

(defun handshake-failure-message (condition)
  "The log level, a keyword, and the reason, a string, for the handshake failure CONDITION.  The
level is NIL when it is not logged."
  (destructuring-bind (&optional level sentence &rest parts)
      (rest (assoc (handshake-failure-kind condition) *handshake-failures*))
    (declare (ignore parts))
    (values level
            (format nil "~@[~A ~]~:[~A~;(~A)~]" sentence sentence (tls-failure-words condition)))))
