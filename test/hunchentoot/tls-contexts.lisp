(in-package #:hunchentoot-recycling-taskmaster-test)

;;; Certificates and settings of HTTPS, as clients see them.

(def-suite tls-contexts :in acceptors
  :description "What connections of HTTPS are made of.")

(in-suite tls-contexts)

(defmacro serving-https ((directory &rest initargs) &body body)
  "Evaluates BODY with a started HTTPS acceptor of /yo and INITARGS as *SERVER*.  DIRECTORY is bound
to a new directory, where there is a certificate for localhost already."
  `(with-directory (,directory)
     (issue ,directory "localhost")
     (let ((*acceptor-class* 'recycling:parallel-easy-ssl-acceptor))
       (serving (:ssl-certificate-file (file-in ,directory "localhost" "pem")
                 :ssl-privatekey-file (file-in ,directory "localhost" "key")
                 ,@initargs)
           (("/yo" (if (hunchentoot:ssl-p) "Hey!" "not secure")))
         ,@body))))

(defun also (directory name &rest names)
  "A further certificate in DIRECTORY, called NAME, for the host NAMES."
  (multiple-value-list (issue directory name :names names)))

;;; Names

(define-server-test (clients-get-the-certificate-for-the-name-they-ask-for :needs :our-engine)
  (serving-https (directory :ssl-certificates
                            (list (also directory "any" "*.example.org")
                                  (also directory "shop" "shop.example.org" "shop.example.com")))
    (loop for (name subject) in '(("localhost" "localhost") ("a.example.org" "any")
                                  ("A.EXAMPLE.ORG" "any") ("shop.example.org" "shop")
                                  ("shop.example.com" "shop") ("a.b.example.org" "localhost")
                                  ("other.net" "localhost"))
          do (let ((output (talk-by-openssl "-servername" name)))
               (is (equal subject (subject-told output)) "~A" name)
               (is-true (served-p output))))
    (is (equal "localhost" (subject-told (talk-by-openssl "-noservername"))))
    (is (equal "shop"
               (subject-told (talk-by-openssl "-servername" "shop.example.org" "-tls1_2"))))))

(define-server-test (further-certificates-have-the-same-settings :needs :our-engine)
  (serving-https (directory :ssl-minimum-protocol :tls-1.3
                            :ssl-ciphers "TLS_CHACHA20_POLY1305_SHA256"
                            :ssl-certificates (list (also directory "shop" "shop.example.org")))
    (flet ((ask (&rest arguments)
             (apply #'talk-by-openssl "-servername" "shop.example.org" arguments)))
      (is (search "CipherisTLS_CHACHA20_POLY1305_SHA256" (ask)))
      (is (not (served-p (ask "-tls1_2"))))
      (is (search "ALPNprotocol:http/1.1" (ask "-alpn" "http/1.1")))
      (is (not (served-p (ask "-alpn" "h2")))))))

;;; Protocols

(define-server-test (http-is-agreed-on-where-clients-offer-it :needs :our-engine)
  (serving-https (directory)
    (loop for (offered agreed) in '(("http/1.1" "http/1.1") ("h2,http/1.1" "http/1.1")
                                    ("http/1.0,http/1.1" "http/1.1") ("http/1.0" "http/1.0"))
          do (let ((output (talk-by-openssl "-alpn" offered)))
               (is (search (format nil "ALPNprotocol:~A" agreed) output) "~A" offered)
               (is-true (served-p output))))
    (is (search "NoALPNnegotiated" (talk-by-openssl)))))

(define-server-test (a-client-that-offers-only-other-protocols-is-told-so :needs :our-engine)
  (serving-https (directory)
    (dolist (offered '("h2" "http/1.1x" "http/1"))
      (let ((output (talk-by-openssl "-alpn" offered)))
        (is (search "SSLalertnumber120" output) "~A" offered)
        (is (not (served-p output)))))
    (is-true (served-p (talk-by-openssl)))))

(define-server-test (old-protocols-are-refused :needs :our-engine)
  (serving-https (directory)
    (dolist (version '("-tls1" "-tls1_1"))
      (let ((output (talk-by-openssl version "-cipher" "ALL:@SECLEVEL=0")))
        (is (search "SSLalertnumber70" output) "~A" version)
        (is (not (served-p output)))))
    (dolist (version '("-tls1_2" "-tls1_3"))
      (is-true (served-p (talk-by-openssl version)) "~A" version)))
  (serving-https (directory :ssl-minimum-protocol :tls-1.3)
    (is (not (served-p (talk-by-openssl "-tls1_2"))))
    (is-true (served-p (talk-by-openssl)))))

(define-server-test (weak-ciphers-are-refused :needs :our-engine)
  (serving-https (directory)
    (dolist (cipher '("AES128-SHA" "AES128-GCM-SHA256" "ECDHE-ECDSA-AES128-SHA"
                      "ECDHE-ECDSA-AES128-SHA256" "ECDHE-ECDSA-AES128-CCM"
                      "DHE-RSA-AES128-GCM-SHA256" "NULL:@SECLEVEL=0"))
      (is (not (served-p (talk-by-openssl "-tls1_2" "-cipher" cipher))) "~A" cipher))
    (dolist (cipher '("ECDHE-ECDSA-AES128-GCM-SHA256" "ECDHE-ECDSA-AES256-GCM-SHA384"
                      "ECDHE-ECDSA-CHACHA20-POLY1305"))
      (is-true (served-p (talk-by-openssl "-tls1_2" "-cipher" cipher)) "~A" cipher))))

(define-server-test (ciphers-can-be-chosen :needs :our-engine)
  (serving-https (directory :ssl-ciphers "ECDHE-ECDSA-AES256-GCM-SHA384:TLS_AES_256_GCM_SHA384")
    (is (search "CipherisECDHE-ECDSA-AES256-GCM-SHA384" (talk-by-openssl "-tls1_2")))
    (is (search "CipherisTLS_AES_256_GCM_SHA384" (talk-by-openssl)))
    (is (not (served-p (talk-by-openssl "-tls1_2" "-cipher" "ECDHE-ECDSA-AES128-GCM-SHA256")))))
  ;; What is taken out of a list need not be there.
  (serving-https (directory :ssl-ciphers "HIGH:!aNULL:!NOT-THERE:@STRENGTH")
    (is-true (served-p (talk-by-openssl "-tls1_2" "-cipher" "ECDHE-ECDSA-AES128-GCM-SHA256")))))

;;; Files

(define-server-test (certificates-of-who-issued-ours-are-sent :needs :our-engine)
  (with-directory (directory)
    (let* ((root (issue directory "root"))
           (middle (issue directory "middle" :by "root"))
           (leaf (issue directory "leaf" :by "middle"))
           (*acceptor-class* 'recycling:parallel-easy-ssl-acceptor))
      (serving (:ssl-certificate-file (join-files directory "chain.pem" leaf middle)
                :ssl-privatekey-file (file-in directory "leaf" "key"))
          (("/yo" "Hey!"))
        (let ((output (talk-by-openssl "-CAfile" root "-verify_return_error")))
          (is (search "Verifyreturncode:0(ok)" output))
          (is-true (served-p output)))))))

(define-server-test (files-are-read-at-the-start-and-not-for-each-connection :needs :our-engine)
  (serving-https (directory)
    (dolist (type '("pem" "key"))
      (delete-file (file-in directory "localhost" type)))
    (loop repeat 2
          do (is-true (served-p (talk-by-openssl))))))

;;; Certificates of clients

(defun client-arguments (directory name)
  "What openssl wants for the certificate NAME in DIRECTORY as a client's."
  (list "-cert" (file-in directory name "pem") "-key" (file-in directory name "key")))

(defun answers-to-clients (directory)
  "Whether clients are served that have no certificate, one that was issued by root in DIRECTORY,
and another."
  (mapcar (lambda (arguments)
            (served-p (apply #'talk-by-openssl arguments)))
          (list '() (client-arguments directory "known") (client-arguments directory "stranger"))))

(defmacro with-clients ((directory authorities) &body body)
  "Evaluates BODY with certificates for clients in DIRECTORY, and AUTHORITIES bound to the file of
who has issued one of them."
  `(with-directory (,directory)
     (let ((,authorities (issue ,directory "root")))
       (issue ,directory "known" :by "root")
       (issue ,directory "stranger")
       ,@body)))

(define-server-test (clients-without-a-valid-certificate-are-refused-where-it-is-required
                     :needs :our-engine)
  (with-clients (clients authorities)
    (serving-https (directory :ssl-client-ca-file authorities)
      (is (equal '(nil t nil) (answers-to-clients clients))))
    (serving-https (directory :ssl-client-ca-file authorities :ssl-verify-client :required
                              :ssl-certificates (list (also directory "shop" "shop.example.org")))
      (is (equal '(nil t nil) (answers-to-clients clients)))
      (let ((output (apply #'talk-by-openssl "-servername" "shop.example.org"
                           (client-arguments clients "known"))))
        (is (equal "shop" (subject-told output)))
        (is-true (served-p output))
        (is (search "CN=root" output)
            "Clients are told who has to have issued their certificates."))
      (is (not (served-p (apply #'talk-by-openssl "-servername" "shop.example.org"
                                (client-arguments clients "stranger"))))))))

(define-server-test (certificates-of-clients-are-verified-where-they-are-optional
                     :needs :our-engine)
  (with-clients (clients authorities)
    (serving-https (directory :ssl-client-ca-file authorities :ssl-verify-client :optional)
      (is (equal '(t t nil) (answers-to-clients clients))))))

(define-server-test (any-certificate-of-a-client-is-taken-where-it-is-only-requested
                     :needs :our-engine)
  (with-clients (clients authorities)
    (serving-https (directory :ssl-verify-client :request)
      (is (equal '(t t t) (answers-to-clients clients))))
    (serving-https (directory :ssl-verify-client :request :ssl-client-ca-file authorities)
      (is (equal '(t t t) (answers-to-clients clients))))
    (serving-https (directory)
      (is (equal '(t t t) (answers-to-clients clients)))
      (is (search "NoclientcertificateCAnames" (talk-by-openssl))))))

;;; Sessions

(defun session-file (directory)
  (file-in directory "session" "pem"))

(defun begin-session (directory &rest arguments)
  "Has openssl, with ARGUMENTS, keep a session with *SERVER* in DIRECTORY."
  (is-true (served-p (apply #'talk-by-openssl "-sess_out" (session-file directory) arguments))))

(defun session-resumed-p (directory &rest arguments)
  "Whether the session that is kept in DIRECTORY is resumed, by a client of ARGUMENTS, which is
served."
  (let ((output (apply #'talk-by-openssl "-sess_in" (session-file directory) arguments)))
    (and (served-p output) (resumed-p output))))

(defun ticket-key (directory name)
  "A file in DIRECTORY with a key for tickets."
  (let ((file (file-in directory name "ticket")))
    (openssl "rand" "-out" file "80")
    file))

(define-server-test (sessions-are-resumed :needs :our-engine)
  (serving-https (directory :ssl-certificates (list (also directory "shop" "shop.example.org")))
    (dolist (version '("-tls1_2" "-tls1_3"))
      (begin-session directory version)
      (is-true (session-resumed-p directory version) "~A" version)
      (begin-session directory version "-servername" "shop.example.org")
      (is-true (session-resumed-p directory version "-servername" "shop.example.org")
               "~A" version))))

(define-server-test (servers-with-the-same-ticket-key-resume-each-others-sessions
                     :needs :our-engine)
  (with-directory (clients)
    (let ((key (ticket-key clients "one")))
      (dolist (version '("-tls1_2" "-tls1_3"))
        (serving-https (directory :ssl-ticket-key-file key)
          (begin-session clients version))
        (serving-https (directory :ssl-ticket-key-file key)
          (is-true (session-resumed-p clients version) "~A" version))
        (serving-https (directory)
          (is (not (session-resumed-p clients version)) "~A" version)
          (is-true (served-p (talk-by-openssl "-sess_in" (session-file clients) version))))))))

(define-server-test (sessions-of-clients-that-were-verified-otherwise-are-not-resumed
                     :needs :our-engine)
  (with-clients (clients authorities)
    (let ((key (ticket-key clients "one"))
          (others (issue clients "others"))
          (stranger (client-arguments clients "stranger")))
      (serving-https (directory :ssl-ticket-key-file key :ssl-client-ca-file authorities
                               :ssl-verify-client :request)
        (apply #'begin-session clients stranger)
        (is-true (session-resumed-p clients))
        (reinitialize-instance *server* :ssl-verify-client :required)
        (is (not (served-p (talk-by-openssl "-sess_in" (session-file clients)))))
        (apply #'begin-session clients (client-arguments clients "known"))
        (is-true (session-resumed-p clients))
        (reinitialize-instance *server* :ssl-client-ca-file others)
        (is (not (served-p (talk-by-openssl "-sess_in" (session-file clients)))))))))
