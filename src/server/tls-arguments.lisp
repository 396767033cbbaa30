(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; The TLS arguments of applications, and the one to blame for what OpenSSL refuses.  The names
;;;; are those of Hunchentoot's acceptors, and of ours.

(defparameter *tls-arguments* (cons :http2 (mapcar #'first (arguments-of :tls)))
  "The names of all TLS arguments.")

(defun context-of-settings (settings)
  "A TLS context for SETTINGS, a plist of all *TLS-ARGUMENTS*.  Signals UNFIT-ARGUMENT."
  (check-arguments settings (arguments-of :tls))
  (when (and (member (getf settings :ssl-verify-client) '(:required :optional))
             (not (getf settings :ssl-client-ca-file)))
    (unfit :ssl-verify-client
           ", ~S, needs SSL-CLIENT-CA-FILE, with the issuers of the clients' certificates"
           (getf settings :ssl-verify-client)))
  (handler-case (apply #'make-tls-context settings)
    (tls-mistake (mistake)
      (unfit (tls-mistake-subject mistake) "~A" (tls-mistake-words mistake)))))
