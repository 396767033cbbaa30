(in-package #:hunchentoot-recycling-taskmaster-benchmark)

;;;; What TLS needs beyond a server: one certificate for all of them, and clients that all offer the
;;;; same, so that no server is measured with a cheaper cipher than another.

(defparameter *certificate-files* '("cert.pem" "key.pem")
  "The names, in the directory of a certificate, of its file and of that of its key.")

(defun certificate-files (certificate)
  "The files of the directory CERTIFICATE: that of the certificate, and that of its key."
  (loop for name in *certificate-files* collect (merge-pathnames name certificate)))

(defun make-certificate ()
  "Make a certificate for localhost with a key on the curve P-256, which signs itself, and return
its directory, a new one.  UNAVAILABLE without openssl."
  (let* ((directory (make-fresh-directory))
         (files (certificate-files directory))
         (said (output-of `(,(find-program "openssl") "req" "-x509" "-nodes" "-days" 30
                            "-newkey" "ec" "-pkeyopt" "ec_paramgen_curve:prime256v1"
                            "-subj" "/CN=localhost"
                            "-addext" "subjectAltName=DNS:localhost,IP:127.0.0.1"
                            "-out" ,(first files) "-keyout" ,(second files)))))
    (unless (every #'probe-file files)
      (remove-directory directory)
      (unavailable "openssl made no certificate: ~a" (first-line said)))
    directory))

;;; Clients

(defun with-one-cipher (command)
  "COMMAND, a list of words, wrapped so that its OpenSSL offers one version, cipher and group only:
those of tls.c."
  (list* "env" (format nil "OPENSSL_CONF=~a"
                       (uiop:native-namestring (benchmark-file "openssl.cnf")))
         command))

(defun ask-by-tls (port request)
  "All that the server on PORT answers to REQUEST, a string, over TLS, and whether it closed the
connection within two seconds; or NIL if it does not answer."
  (multiple-value-bind (answer said status)
      (uiop:run-program (native-words
                         (list* "timeout" 2
                                (with-one-cipher
                                 (list (find-program "openssl") "s_client" "-quiet"
                                       "-connect" (format nil "127.0.0.1:~d" port)))))
                        :input (make-string-input-stream request) :output :string
                        :external-format :latin-1 :ignore-error-status t)
    (declare (ignore said))
    (and (plusp (length answer))
         ;; What timeout says when it had to end the command.
         (values answer (/= status 124)))))
