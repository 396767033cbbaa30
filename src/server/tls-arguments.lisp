(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; The TLS arguments of applications, and the one to blame for what OpenSSL refuses.  The names
;;;; are those of Hunchentoot's acceptors, and of ours.

(defparameter *tls-arguments* (mapcar #'first (arguments-of :tls))
  "The names of all TLS arguments.")

;;; The ciphers of TLS 1.3 have names of their own (RFC 8446, section B.4), and OpenSSL has a list
;;; of its own for them.

(defun cipher-names (names suites-p)
  "The names in NAMES, a string or NIL, that are suites of TLS 1.3 if SUITES-P, otherwise the
others: a string, or NIL for none."
  (let ((found (remove-if (lambda (name)
                            (not (eq suites-p (uiop:string-prefix-p "TLS_" name))))
                          (uiop:split-string (or names "") :separator ":, "))))
    (and (some (lambda (name) (string/= name "")) found)
         (format nil "~{~A~^:~}" found))))

;;; The context of settings

(defun context-of-settings (settings old)
  "A TLS context for SETTINGS, a plist of all *TLS-ARGUMENTS*.  If these name no file of a ticket
key, it resumes the sessions of OLD, another context or NIL.  Signals UNFIT-ARGUMENT."
  (check-arguments settings (arguments-of :tls))
  (destructuring-bind (&key ssl-certificate-file ssl-privatekey-file ssl-privatekey-password
                         ssl-certificates ssl-minimum-protocol ssl-ciphers ssl-client-ca-file
                         ssl-verify-client ssl-ticket-key-file)
      settings
    (when (and (member ssl-verify-client '(:required :optional)) (not ssl-client-ca-file))
      (unfit :ssl-verify-client
             ", ~S, needs SSL-CLIENT-CA-FILE, with the issuers of the clients' certificates"
             ssl-verify-client))
    (handler-case
        (make-tls-context (cons (list ssl-certificate-file ssl-privatekey-file
                                      ssl-privatekey-password)
                                ssl-certificates)
                          :minimum-protocol ssl-minimum-protocol
                          :ciphers (cipher-names ssl-ciphers nil)
                          :cipher-suites (cipher-names ssl-ciphers t)
                          :client-ca-file ssl-client-ca-file
                          :verify-client (or ssl-verify-client (and ssl-client-ca-file :required))
                          :ticket-key (and old (tls-context-ticket-key old))
                          :ticket-key-file ssl-ticket-key-file)
      (tls-mistake (mistake)
        (unfit (if (plusp (or (tls-mistake-index mistake) 0))
                   :ssl-certificates
                   (ecase (tls-mistake-subject mistake)
                     (:certificate :ssl-certificate-file)
                     (:key :ssl-privatekey-file)
                     (:ciphers :ssl-ciphers)
                     (:client-ca-file :ssl-client-ca-file)
                     (:ticket-key-file :ssl-ticket-key-file)))
               "~@[, ~S,~] ~A"
               (tls-mistake-value mistake) (tls-mistake-reason mistake))))))
