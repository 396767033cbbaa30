(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* https :in acceptors
  :description "Certificates and settings of HTTPS, as openssl sees them, and what handlers learn.")

;;; What certificates and keys must be, the table of arguments says.

(defvar *facts-of-tls* nil
  "What FORM of SERVING-HTTPS has returned last.")

(defmacro serving-https ((directory &rest initargs) form &body body)
  "Evaluates BODY with a started HTTPS acceptor of INITARGS as *SERVER*; it answers /yo by \"Hey!\"
after it has evaluated FORM.  DIRECTORY is bound to a new directory, where there is a certificate
for localhost already."
  `(with-directory (,directory)
     (issue ,directory "localhost")
     (let ((*acceptor-class* 'recycling:parallel-easy-ssl-acceptor))
       (serving (:ssl-certificate-file (file-in ,directory "localhost" "pem")
                 :ssl-privatekey-file (file-in ,directory "localhost" "key")
                 ,@initargs)
           (("/yo" (setf *facts-of-tls* ,form) "Hey!"))
         ,@body))))

(defun also (directory name &rest names)
  "A further certificate in DIRECTORY, called NAME, for the host NAMES."
  (multiple-value-list (issue directory name :names names)))

(defun facts-for (&rest arguments)
  "What the handler of SERVING-HTTPS learns for openssl as a client with ARGUMENTS."
  (is-true (served-p (apply #'talk-by-openssl arguments)))
  *facts-of-tls*)

;;; Without parking, the server ends the input of a client whose worker waits.
;;; Certificates, protocols, ciphers

(define-server-test (clients-get-the-certificate-for-the-name-they-ask-for :needs :our-engine)
  (serving-https (directory :ssl-minimum-protocol :tls-1.3
                            :ssl-certificates
                            (list (also directory "any" "*.example.org")
                                  (also directory "shop" "shop.example.org" "shop.example.com")))
      nil
    (dolist (type '("pem" "key"))       ; they were read at the start
      (delete-file (file-in directory "localhost" type)))
    (loop for (name subject) in '(("localhost" "localhost") ("A.EXAMPLE.ORG" "any")
                                  ("shop.example.org" "shop") ("shop.example.com" "shop")
                                  ("a.b.example.org" "localhost"))
          do (let ((output (talk-by-openssl "-servername" name)))
               (is (equal subject (subject-told output)) "~A" name)
               (is-true (served-p output))))
    (is (equal "localhost" (subject-told (talk-by-openssl "-noservername"))))
    (is (not (served-p (talk-by-openssl "-servername" "shop.example.org" "-tls1_2")))
        "All have the same settings.")))

(define-server-test (old-protocols-and-weak-ciphers-are-refused :needs :our-engine)
  (serving-https (directory) nil
    (loop for (served-p text . arguments)
            in '((t "NoALPNnegotiated") (t "" "-tls1_2")
                 (t "ALPNprotocol:http/1.1" "-alpn" "h2,http/1.1")
                 (nil "SSLalertnumber120" "-alpn" "h2")
                 (nil "SSLalertnumber70" "-tls1_1" "-cipher" "ALL:@SECLEVEL=0")
                 (nil "" "-tls1_2" "-cipher" "AES128-GCM-SHA256")
                 (nil "" "-tls1_2" "-cipher" "ECDHE-ECDSA-AES128-SHA256")
                 (nil "" "-tls1_2" "-cipher" "NULL:@SECLEVEL=0")
                 (t "" "-tls1_2" "-cipher" "ECDHE-ECDSA-CHACHA20-POLY1305"))
          do (let ((output (apply #'talk-by-openssl arguments)))
               (is (eq served-p (served-p output)) "~S" arguments)
               (is (search text output) "~S" arguments))))
  (serving-https (directory :ssl-ciphers "ECDHE-ECDSA-AES256-GCM-SHA384") nil
    (is (search "CipherisECDHE-ECDSA-AES256-GCM-SHA384" (talk-by-openssl "-tls1_2")))
    (is (not (served-p (talk-by-openssl "-tls1_2" "-cipher" "ECDHE-ECDSA-AES128-GCM-SHA256"))))))

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

;;; Certificates of clients

(defun client-arguments (directory name)
  "What openssl wants for the certificate NAME in DIRECTORY as a client's."
  (list "-cert" (file-in directory name "pem") "-key" (file-in directory name "key")))

(defmacro with-clients ((directory authorities) &body body)
  "Evaluates BODY with certificates for clients, known and stranger, in DIRECTORY, and AUTHORITIES
bound to the file of who has issued the first one."
  `(with-directory (,directory)
     (let ((,authorities (issue ,directory "root")))
       (issue ,directory "known" :by "root")
       (issue ,directory "stranger")
       ,@body)))

(define-server-test (clients-are-verified-as-that-is-asked-for :needs :our-engine)
  (with-clients (clients authorities)
    (serving-https (directory :ssl-certificates
                              (list (also directory "shop" "shop.example.org")))
        nil
      (loop for (none known stranger file verify) in `((nil t nil ,authorities nil)
                                                       (t t nil ,authorities :optional)
                                                       (t t t ,authorities :request)
                                                       (t t t nil :request) (t t t nil nil))
            do (reinitialize-instance *server* :ssl-client-ca-file file :ssl-verify-client verify)
               (dolist (name '("localhost" "shop.example.org"))
                 (flet ((answered-p (&rest arguments)
                          (served-p (apply #'talk-by-openssl "-servername" name arguments))))
                   (is (equal (list none known stranger)
                              (list (answered-p)
                                    (apply #'answered-p (client-arguments clients "known"))
                                    (apply #'answered-p (client-arguments clients "stranger"))))
                       "~A ~S" name verify)))))))

(define-server-test (a-handler-learns-who-its-client-is :needs (:our-http :tls))
  (with-clients (clients authorities)
    (serving-https (directory :ssl-client-ca-file authorities :ssl-verify-client :request)
        (recycling:client-certificate)
      (is (null (facts-for)))
      (let ((certificate (apply #'facts-for (client-arguments clients "known")))
            (file (file-in clients "known" "pem")))
        (is (null (getf certificate :failure)))
        (is (equal "CN=known" (getf certificate :subject)))
        (is (equal "CN=root" (getf certificate :issuer)))
        (let ((output (openssl "x509" "-in" file "-noout" "-sha256" "-fingerprint")))
          (is (search (getf certificate :fingerprint) (string-downcase (remove #\: output))))))
      (dolist (version '("-tls1_2" "-tls1_3"))
        (flet ((check (&rest arguments)
                 (let ((certificate (apply #'facts-for version arguments)))
                   (is (search "certificate" (getf certificate :failure)))
                   (is (equal "CN=stranger" (getf certificate :subject))))))
          (apply #'check "-sess_out" (session-file directory)
                 (client-arguments clients "stranger"))
          (check "-sess_in" (session-file directory)))))))

(define-server-test (a-handler-learns-over-http2-who-its-client-is :needs (:parking :tls))
  (where-program (curl "curl")
    (with-clients (clients authorities)
      (serving-https (directory :ssl-client-ca-file authorities :http2 t)
          (list (hunchentoot:server-protocol*) (recycling:client-certificate)
                (recycling:tls-information))
        (uiop:run-program (list curl "-sk" "--http2" "--max-time" "60"
                                "--cert" (file-in clients "known" "pem")
                                "--key" (file-in clients "known" "key")
                                (format nil "https://127.0.0.1:~D/yo" (port-of *server*))))
        (destructuring-bind (protocol certificate information) *facts-of-tls*
          (is (eq :http/2.0 protocol))
          (is (equal "CN=known" (getf certificate :subject)))
          (is (equal "TLSv1.3" (getf information :protocol))))))))

(define-server-test (names-in-certificates-are-written-without-doubt :needs (:our-http :tls))
  (with-directory (clients)
    (issue clients "known")
    (openssl "req" "-x509" "-new" "-utf8" "-key" (file-in clients "known" "key") "-days" "2"
             "-out" (file-in clients "known" "pem")
             "-subj" (format nil "/O=A\\+B, \"C\"/CN=M~Cller" (code-char 252)))
    (serving-https (directory :ssl-verify-client :request) (recycling:client-certificate)
      (is (equal (format nil "CN=M~Cller,O=A\\+B\\, \\\"C\\\"" (code-char 252))
                 (getf (apply #'facts-for (client-arguments clients "known")) :subject))))))

;;; Connections and sessions

(defun session-file (directory)
  (file-in directory "session" "pem"))

(define-server-test (a-handler-learns-what-its-connection-speaks :needs (:our-engine :tls))
  (serving-https (directory) (recycling:tls-information)
    (is (equal '(:protocol "TLSv1.3" :cipher "TLS_AES_256_GCM_SHA384"
                 :server-name "shop.example.org" :resumed-p nil)
               (facts-for "-tls1_3" "-ciphersuites" "TLS_AES_256_GCM_SHA384"
                          "-servername" "shop.example.org" "-alpn" "h2,http/1.1")))
    (is (equal '(:protocol "TLSv1.2" :cipher "ECDHE-ECDSA-AES128-GCM-SHA256" :server-name nil
                 :resumed-p nil)
               (facts-for "-tls1_2" "-cipher" "ECDHE-ECDSA-AES128-GCM-SHA256"
                          "-noservername"))))
  (serving () (("/facts" (format nil "~S" (list (recycling:tls-information)
                                                (recycling:client-certificate)))))
    (is (equal "(NIL NIL)" (ask-text "/facts")))))

(define-server-test (sessions-are-resumed-until-certificates-are-reloaded :needs :our-engine)
  (with-directory (clients)
    (serving-https (directory) (getf (recycling:tls-information) :resumed-p)
      (dolist (version '("-tls1_2" "-tls1_3"))
        (flet ((resumed-p (option)
                 (facts-for option (session-file clients) version)))
          (is (not (resumed-p "-sess_out")))
          (is-true (resumed-p "-sess_in") "~A" version)
          (recycling:reload-certificates *server*)
          (is (not (resumed-p "-sess_in")) "~A" version))))))

(define-server-test (sessions-of-clients-that-were-verified-otherwise-are-not-resumed
                     :needs :our-engine)
  (with-clients (clients authorities)
    (serving-https (directory :ssl-client-ca-file authorities :ssl-verify-client :request)
        (getf (recycling:tls-information) :resumed-p)
      (apply #'facts-for "-sess_out" (session-file clients) (client-arguments clients "stranger"))
      (is-true (facts-for "-sess_in" (session-file clients)))
      (reinitialize-instance *server* :ssl-verify-client :required)
      (is (not (served-p (talk-by-openssl "-sess_in" (session-file clients))))))))

;;; Certificates that are renewed

(defun put-in-place (directory name)
  "Makes the files of localhost in DIRECTORY those of the certificate NAME."
  (dolist (type '("pem" "key"))
    (uiop:copy-file (file-in directory name type) (file-in directory "localhost" type))))

(define-server-test (reloaded-certificates-are-for-new-connections :needs (:our-engine :tls-client))
  (serving-https (directory) nil
    (issue directory "renewed")
    (issue directory "old")
    (with-open-connection (connection (let ((*make-connection* 'encrypted)) (connect)))
      (is (equal "Hey!" (exchange-text connection "/yo")))
      (put-in-place directory "renewed")
      (is (equal "localhost" (subject-told (talk-by-openssl))))
      (is (eq *server* (recycling:reload-certificates *server*)))
      (is (equal "renewed" (subject-told (talk-by-openssl))))
      (is (equal "Hey!" (exchange-text connection "/yo")) "An open connection goes on."))
    (uiop:copy-file (file-in directory "old" "key") (file-in directory "localhost" "key"))
    (is (report-p (error-of (lambda () (recycling:reload-certificates *server*)))
                  "SSL-PRIVATEKEY-FILE"))
    (is (report-p (error-of (lambda () (reinitialize-instance *server* :ssl-ciphers "NONSENSE")))
                  "SSL-CIPHERS" "NONSENSE"))
    (is (equal "renewed" (subject-told (talk-by-openssl))) "The old ones are still in use.")))

(define-server-test (no-request-fails-while-certificates-are-reloaded
                     :needs (:our-engine :tls-client))
  (serving-https (directory) nil
    (issue directory "one")
    (issue directory "two")
    (let* ((done (make-gate))
           (clients (loop repeat 3
                          collect (in-background ("a client")
                                    (let ((*make-connection* 'encrypted))
                                      (loop until (open-p done)
                                            count (equal "Hey!" (ask-text "/yo"))))))))
      (unwind-protect (loop for name in '("one" "two" "one" "two")
                            do (put-in-place directory name)
                               (recycling:reload-certificates *server*)
                               (is (equal name (subject-told (talk-by-openssl)))))
        (open-gate done))
      (is (every #'plusp (mapcar #'task-result clients)))
      (is (zerop (figure :failed))))))

(define-server-test (links-are-followed-anew-when-certificates-are-reloaded :needs :our-engine)
  (serving-https (directory) nil
    (issue directory "second")
    (dolist (type '("pem" "key"))
      (uiop:run-program (list "ln" "-sfn" (file-in directory "second" type)
                              (file-in directory "localhost" type))))
    (recycling:reload-certificates *server*)
    (is (equal "second" (subject-told (talk-by-openssl))))))

;;; Handshakes that fail

(defun begin-by-openssl (&rest arguments)
  "Has openssl, as a client with ARGUMENTS, begin a connection to *SERVER*, and leave when it has
one."
  (uiop:run-program (list* "openssl" "s_client" "-connect"
                           (format nil "127.0.0.1:~D" (port-of *server*))
                           arguments)
                    :input nil :output nil :error-output nil :ignore-error-status t))

(define-server-test (failed-handshakes-are-counted-by-kind-and-told :needs (:our-engine :tls))
  (with-clients (clients authorities)
    (let ((known (client-arguments clients "known"))
          (messages (make-string-output-stream)) (told ""))
      (serving-https (directory :ssl-client-ca-file authorities
                                :message-log-destination messages)
          nil
        (flet ((fails-as (kind begin &rest arguments)
                 (let ((before (getf (figure :handshakes-failed-by) kind)))
                   (apply begin arguments)
                   (is-true (poll (lambda ()
                                    (= (1+ before) (getf (figure :handshakes-failed-by) kind))))
                            "~S ~S" kind (figure :handshakes-failed-by)))))
          (fails-as :other #'begin-by-openssl "-tls1_2" "-cipher" "AES128-SHA")
          (fails-as :other #'begin-by-openssl "-tls1_1" "-cipher" "ALL:@SECLEVEL=0")
          (fails-as :other #'ask-raw "nonsense" :crlf)
          (fails-as :other #'begin-by-openssl "-alpn" "h2")
          (fails-as :plain-http #'ask-raw (request-octets "/yo"))
          (fails-as :other #'begin-by-openssl)
          (apply #'fails-as :other #'begin-by-openssl (client-arguments clients "stranger"))
          (apply #'fails-as :certificate #'begin-by-openssl "-verify_return_error" known)
          (fails-as :gone (lambda ()
                            (with-connection (connection)
                              (send connection (coerce '(22 3 1) 'octet-vector)))))
          (fails-as :other #'ask-raw (coerce '(22 3 1 0 5 1 0 0 1 0) 'octet-vector)))
        (is (= 10 (figure :handshakes-failed)))
        ;; Elsewhere the stream of TLS reads first, and answers nothing.
        (is (= (if (platform:readiness-supported-p) 1 0) (figure :rejected)))
        (is (zerop (figure :failed)))
        (is-true (served-p (apply #'talk-by-openssl known)))
        (dolist (sentence '("[INFO]] A TLS handshake failed: http"
                            "[WARNING]] A TLS handshake failed: "))
          (is-true (poll (lambda ()
                           (setf told (concatenate 'string told
                                                   (taken-from-log messages)))
                           (search sentence told)))
                   "~A ~A" sentence told))
        (is (not (search "gone" told)))))))

;;; Methods of programs

(define-server-test (a-program-may-have-methods-of-connections-over-tls :needs :our-engine)
  (dolist (mixin '(looking-around looking-within))
    (serving-https (directory :mixin mixin) (hunchentoot:ssl-p)
      (is (eq t (facts-for "-tls1_3")) "~A" mixin))))
