(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; Why TLS handshakes fail, by kinds that who runs a server wants to tell apart.

(define-condition handshake-failed (error)
  ((reason :initarg :reason :initform nil :reader handshake-failure-reason))
  (:report (lambda (condition stream)
             (format stream "A TLS handshake failed: ~:[the client is gone~;~:*~A~]."
                     (handshake-failure-reason condition))))
  (:documentation "A TLS handshake did not end well, because of REASON, a string, or NIL where the
client is gone."))

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
  "Kinds of failures of handshakes: at which level they are told, NIL for not at all, and by what
words; and parts of OpenSSL's words for them, of which its versions have others before and after.")

(defun handshake-failure-kinds ()
  "The kinds of failures of TLS handshakes, a list of keywords."
  (mapcar #'first *handshake-failures*))

(defun kind-by-words (words)
  "The kind of failure that OpenSSL's WORDS, a string, tell of."
  (flet ((told-p (part) (search part words :test #'char-equal)))
    (or (first (find-if (lambda (entry) (some #'told-p (nthcdr 3 entry))) *handshake-failures*))
        :other)))

(defun handshake-failure-kind (condition)
  "Of what kind the failure of a TLS handshake is that CONDITION tells of, one of
HANDSHAKE-FAILURE-KINDS; :EXPIRED where the client took too long; NIL for other errors."
  (let ((words (tls-failure-words condition)))
    (typecase words
      (string (kind-by-words words))
      (keyword words)
      (t (typecase condition
           (stream-timeout :expired)
           ((or descriptor-broken end-of-file) :gone)
           (t (and (wait-timed-out-p condition) :expired)))))))

(defun handshake-failure-telling (condition)
  "At which level, a keyword, the failure of a TLS handshake is told that CONDITION tells of, and
why it failed, a string; NIL where it is not told."
  (destructuring-bind (&optional level sentence &rest parts)
      (rest (assoc (handshake-failure-kind condition) *handshake-failures*))
    (declare (ignore parts))
    (values level
            (format nil "~@[~A ~]~:[~A~;(~A)~]" sentence sentence (tls-failure-words condition)))))
