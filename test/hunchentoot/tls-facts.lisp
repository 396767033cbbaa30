(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* tls-facts :in acceptors
  :description "What a handler learns of its TLS connection and of its client's certificate.")

(defmacro with-facts ((facts form) &body body)
  "Evaluates BODY; in it the function FACTS, of arguments for openssl as a client of *SERVER*,
returns what FORM returns in a handler for it, whose values are gone when the request is served."
  (let ((found (gensym "FOUND")))
    `(let ((,found '()))
       (with-routes (("/facts" (push ,form ,found) "told"))
         (flet ((,facts (&rest arguments)
                  (setf ,found '())
                  (let ((output (talk-by-openssl-about "/facts" arguments)))
                    (is (search "told" output)))
                  (first ,found)))
           ,@body)))))

;;; Connections

(define-server-test (a-handler-learns-what-its-connection-speaks :needs (:our-engine :tls))
  (with-facts (facts (recycling:tls-information))
    (serving-https (directory)
      (is (equal '(:protocol "TLSv1.3" :cipher "TLS_AES_256_GCM_SHA384"
                   :server-name "shop.example.org" :application-protocol "http/1.1" :resumed-p nil)
                 (facts "-tls1_3" "-ciphersuites" "TLS_AES_256_GCM_SHA384"
                        "-servername" "shop.example.org" "-alpn" "h2,http/1.1")))
      (is (equal '(:protocol "TLSv1.2" :cipher "ECDHE-ECDSA-AES128-GCM-SHA256" :server-name nil
                   :application-protocol nil :resumed-p nil)
                 (facts "-tls1_2" "-cipher" "ECDHE-ECDSA-AES128-GCM-SHA256" "-noservername"))))))

(define-server-test (a-handler-learns-whether-a-session-was-resumed :needs (:our-http :tls))
  (with-facts (facts (recycling:tls-information))
    (serving-https (directory)
      (dolist (version '("-tls1_2" "-tls1_3"))
        (let ((name (list version "-servername" "shop.example.org")))
          (is (not (getf (apply #'facts "-sess_out" (session-file directory) name) :resumed-p)))
          (let ((facts (apply #'facts "-sess_in" (session-file directory) name)))
            (is (eq t (getf facts :resumed-p)))
            (is (equal (if (equal version "-tls1_3") "shop.example.org" nil)
                       (getf facts :server-name)))))))))

(define-server-test (over-plain-http-there-is-nothing-to-learn-of-tls :needs :our-engine)
  (with-routes (("/facts" (format nil "~S" (list (recycling:tls-information)
                                                 (recycling:client-certificate)))))
    (serving () ()
      (is (equal "(NIL NIL)" (ask-text "/facts"))))))

(define-server-test (a-handler-that-streams-learns-of-its-connection :needs (:our-http :tls))
  (with-facts (facts (let ((stream (hunchentoot:send-headers)))
                       (write-sequence (octets "told") stream)
                       (getf (recycling:tls-information) :protocol)))
    (serving-https (directory)
      (is (equal "TLSv1.3" (facts))))))

;;; Certificates of clients

(defun facts-of-certificate (certificate)
  (list (recycling:client-certificate-verified-p certificate)
        (recycling:client-certificate-subject certificate)
        (recycling:client-certificate-issuer certificate)))

(defun told-by-openssl (file what)
  "What openssl tells of the certificate FILE after an equals sign, asked for WHAT."
  (let ((output (openssl "x509" "-in" file "-noout" "-sha256" what)))
    (string-trim '(#\Newline) (subseq output (1+ (position #\= output))))))

(define-server-test (a-handler-learns-who-its-client-is :needs (:our-http :tls))
  (with-clients (clients authorities)
    (with-facts (facts (recycling:client-certificate))
      (serving-https (directory :ssl-client-ca-file authorities :ssl-verify-client :optional)
        (is (null (facts)))
        (dolist (version '("-tls1_2" "-tls1_3"))
          (let ((certificate (apply #'facts version (client-arguments clients "known")))
                (file (file-in clients "known" "pem")))
            (is (recycling:client-certificate-p certificate))
            (is (equal '(t "CN=known" "CN=root") (facts-of-certificate certificate)))
            (is (null (recycling:client-certificate-failure certificate)))
            (is (= (parse-integer (told-by-openssl file "-serial") :radix 16)
                   (recycling:client-certificate-serial-number certificate)))
            (is (equal (string-downcase (remove #\: (told-by-openssl file "-fingerprint")))
                       (recycling:client-certificate-fingerprint certificate)))
            (is (equal (uiop:read-file-string file) (recycling:client-certificate-pem certificate)))
            (is (= (* 2 24 60 60) (- (recycling:client-certificate-not-after certificate)
                                     (recycling:client-certificate-not-before certificate))))
            (is (< (abs (- (get-universal-time)
                           (recycling:client-certificate-not-before certificate)))
                   3600))
            (is (not (search "known" (princ-to-string certificate))))))))))

(define-server-test (a-certificate-that-was-not-verified-is-told-as-that :needs (:our-http :tls))
  (with-clients (clients authorities)
    (with-facts (facts (recycling:client-certificate))
      (serving-https (directory :ssl-client-ca-file authorities :ssl-verify-client :request)
        (dolist (version '("-tls1_2" "-tls1_3"))
          (let ((certificate (apply #'facts version (client-arguments clients "stranger"))))
            (is (equal '(nil "CN=stranger" "CN=stranger") (facts-of-certificate certificate)))
            (is (search "certificate" (recycling:client-certificate-failure certificate))))
          (is (equal '(t "CN=known" "CN=root")
                     (facts-of-certificate
                      (apply #'facts version (client-arguments clients "known"))))))))))

(define-server-test (a-resumed-session-has-the-clients-certificate :needs (:our-http :tls))
  (with-clients (clients authorities)
    (with-facts (facts (let ((certificate (recycling:client-certificate)))
                         (cons (getf (recycling:tls-information) :resumed-p)
                               (and certificate (facts-of-certificate certificate)))))
      (serving-https (directory :ssl-client-ca-file authorities :ssl-verify-client :request)
        (loop for (name . expected) in '(("known" t "CN=known" "CN=root")
                                         ("stranger" nil "CN=stranger" "CN=stranger"))
              do (dolist (version '("-tls1_2" "-tls1_3"))
                   (apply #'facts version "-sess_out" (session-file directory)
                          (client-arguments clients name))
                   (is (equal (cons t expected)
                              (facts version "-sess_in" (session-file directory))))))))))

(define-server-test (names-in-certificates-are-written-without-doubt :needs (:our-http :tls))
  (with-directory (clients)
    (issue clients "known")
    (openssl "req" "-x509" "-new" "-utf8" "-key" (file-in clients "known" "key") "-days" "2"
             "-out" (file-in clients "known" "pem") "-set_serial" "0x0123456789ABCDEF0123"
             "-subj" (format nil "/O=A\\+B, \"C\"/CN=M~Cller" (code-char 252)))
    (with-facts (facts (recycling:client-certificate))
      (serving-https (directory :ssl-verify-client :request)
        (let ((certificate (apply #'facts (client-arguments clients "known"))))
          (is (equal (format nil "CN=M~Cller,O=A\\+B\\, \\\"C\\\"" (code-char 252))
                     (recycling:client-certificate-subject certificate)))
          (is (= #x0123456789ABCDEF0123
                 (recycling:client-certificate-serial-number certificate))))))))


