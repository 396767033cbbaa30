(in-package #:hunchentoot-recycling-taskmaster-test)

;;; What is wrong with certificates, keys and settings is told when the instance is made.

(def-suite tls-mistakes :in acceptors
  :description "Mistakes in what HTTPS is made of.")

(in-suite tls-mistakes)

(defun tells-of-mistake-p (initargs &rest texts)
  "True when an acceptor of INITARGS is refused with a sentence that has all TEXTS."
  (let ((condition (error-of (lambda () (apply #'fake-ssl-acceptor initargs)))))
    (and (typep condition 'hunchentoot:parameter-error)
         (apply #'report-p condition texts))))

(defmacro with-pair ((directory certificate key) &body body)
  "Evaluates BODY with CERTIFICATE and KEY bound to files in DIRECTORY, a new one."
  `(with-directory (,directory)
     (multiple-value-bind (,certificate ,key) (issue ,directory "localhost")
       ,@body)))

(defun pair (certificate key &rest initargs)
  "Initargs with the files CERTIFICATE and KEY."
  (list* :ssl-certificate-file certificate :ssl-privatekey-file key initargs))

(test a-key-of-another-certificate-is-told-with-both-files
  (with-pair (directory certificate key)
    (let ((other (make-key (file-in directory "other" "key"))))
      (is-true (tells-of-mistake-p (pair certificate other)
                                   "SSL-PRIVATEKEY-FILE" other "another key" certificate))
      (is-true (tells-of-mistake-p (pair certificate key :ssl-certificates `((,certificate ,other)))
                                   "SSL-CERTIFICATES" other "another key" certificate))
      ;; Of another kind: OpenSSL would take both.
      (openssl "genrsa" "-out" other "2048")
      (is-true (tells-of-mistake-p (pair certificate other)
                                   "SSL-PRIVATEKEY-FILE" other "another key" certificate)))))

(test a-wrong-password-is-told-and-not-printed
  (with-directory (directory)
    (multiple-value-bind (certificate key) (issue directory "localhost" :password "hush")
      (is (typep (apply #'fake-ssl-acceptor (pair certificate key :ssl-privatekey-password "hush"))
                 'recycling:parallel-ssl-acceptor))
      (is-true (tells-of-mistake-p (pair certificate key)
                                   "SSL-PRIVATEKEY-PASSWORD" "must be given" key))
      (is-true (tells-of-mistake-p (pair certificate key :ssl-privatekey-password "told")
                                   "SSL-PRIVATEKEY-PASSWORD" "does not decrypt" key))
      (dolist (wrong '("told" (:told)))
        (is (null (search "told" (princ-to-string
                                  (error-of (lambda ()
                                              (apply #'fake-ssl-acceptor
                                                     (pair certificate key :ssl-privatekey-password
                                                                       wrong)))))
                          :test #'char-equal)))))))

(test what-openssl-cannot-read-is-told
  (with-pair (directory certificate key)
    (let ((broken (uiop:native-namestring
                   (write-file directory "broken.pem"
                               (format nil "-----BEGIN CERTIFICATE-----~%AAAA~%~
                                            -----END CERTIFICATE-----~%~
                                            -----BEGIN PRIVATE KEY-----~%AAAA~%~
                                            -----END PRIVATE KEY-----~%")))))
      (is-true (tells-of-mistake-p (pair broken key)
                                   "SSL-CERTIFICATE-FILE" broken "no certificate"))
      (is-true (tells-of-mistake-p (pair certificate broken)
                                   "SSL-PRIVATEKEY-FILE" broken "no private key"))
      (is-true (tells-of-mistake-p (pair certificate key :ssl-client-ca-file broken)
                                   "SSL-CLIENT-CA-FILE" broken "no certificate")))))

(test a-key-that-may-not-be-read-is-no-key-that-does-not-exist
  (with-pair (directory certificate key)
    (if (not (call-without-privilege (constantly t)))
        (skip "On this platform the superuser reads everything.")
        (dolist (place (list key directory))
          (change-mode place #o000)
          (unwind-protect
               (is-true (call-without-privilege
                         (lambda ()
                           (tells-of-mistake-p (pair certificate key)
                                               "SSL-" "may not be read by this process"))))
            (change-mode place #o700))))))

(test files-of-further-arguments-are-checked-too
  (with-pair (directory certificate key)
    (loop for (name value . texts)
            in `((:ssl-certificates ((,key ,certificate)) ,key "has no CERTIFICATE")
                 (:ssl-certificates (("/nowhere/c.pem" ,key)) "/nowhere/c.pem" "existing file")
                 (:ssl-client-ca-file "/nowhere/ca.pem" "/nowhere/ca.pem" "existing file")
                 (:ssl-client-ca-file "/nowhere/*.pem" "/nowhere/*.pem" "existing file")
                 (:ssl-client-ca-file ,key ,key "has no CERTIFICATE")
                 (:ssl-ticket-key-file "/nowhere/ticket.key"
                  "/nowhere/ticket.key" "cannot be read")
                 (:ssl-ticket-key-file ,key ,key "octets in place of 80"))
          do (is-true (apply #'tells-of-mistake-p (pair certificate key name value)
                             (string name) texts)
                      "~S" name))))

(test values-that-make-no-sense-are-refused
  (with-pair (directory certificate key)
    (loop for (name value . texts)
            in '((:ssl-certificates ("file"))
                 (:ssl-certificates (("certificate")))
                 (:ssl-certificates (("certificate" "key" "password" "more")))
                 (:ssl-minimum-protocol :tls-1.1 "TLS-1.2")
                 (:ssl-minimum-protocol nil "TLS-1.2")
                 (:ssl-ciphers :all "ALL")
                 (:ssl-ciphers "ECDHE-RSA-AES128-GCM-SHA256:AES-OF-ANOTHER-KIND"
                  "AES-OF-ANOTHER-KIND")
                 (:ssl-ciphers "TLS_AES_128_GCM_SHA256:TLS_MINE" "TLS_MINE")
                 (:ssl-client-ca-file 5 "5")
                 (:ssl-verify-client t "REQUIRED")
                 (:ssl-verify-client :required "SSL-CLIENT-CA-FILE")
                 (:ssl-verify-client :optional "SSL-CLIENT-CA-FILE")
                 (:ssl-ticket-key-file 5 "file"))
          do (is-true (apply #'tells-of-mistake-p (pair certificate key name value)
                             (string name) texts)
                      "~S ~S" name value))))

(test what-is-refused-changes-nothing
  (with-pair (directory certificate key)
    (let ((acceptor (apply #'fake-ssl-acceptor (pair certificate key :name 'shop)))
          (other (make-key (file-in directory "other" "key"))))
      (signals hunchentoot:parameter-error
        (reinitialize-instance acceptor :name 'other :ssl-privatekey-file other))
      (is (eq 'shop (hunchentoot:acceptor-name acceptor)))
      (is (equal key (hunchentoot:acceptor-ssl-privatekey-file acceptor))))))

;;; What works, but not for long or not for everybody

(defun warnings-in (thunk)
  "What is warned of while THUNK is called, a list of strings."
  (let ((warnings '()))
    (handler-bind ((warning (lambda (warning)
                              (push (princ-to-string warning) warnings)
                              (muffle-warning warning))))
      (funcall thunk))
    warnings))

(defun warnings-of (initargs)
  "What is warned of when an acceptor of INITARGS is made."
  (warnings-in (lambda () (apply #'fake-ssl-acceptor initargs))))

(defun warns-p (initargs &rest texts)
  "True when one warning with all TEXTS is given when an acceptor of INITARGS is made."
  (let ((warnings (warnings-of initargs)))
    (and (null (rest warnings))
         (every (lambda (text) (search text (or (first warnings) ""))) texts))))

(test certificates-out-of-their-time-are-warned-of
  (with-directory (directory)
    (multiple-value-bind (certificate key)
        (issue-between directory "old" "20200101000000Z" "20210203040506Z")
      (is-true (warns-p (pair certificate key)
                        certificate "has expired on 2021-02-03 04:05:06 UTC")))
    (multiple-value-bind (certificate key)
        (issue-between directory "new" "20990101000000Z" "21000101000000Z")
      (is-true (warns-p (pair certificate key)
                        certificate "not valid before 2099-01-01 00:00:00 UTC")))))

(test a-chain-out-of-order-is-warned-of
  (with-directory (directory)
    (let* ((root (issue directory "root"))
           (middle (issue directory "middle" :by "root")))
      (multiple-value-bind (certificate key) (issue directory "leaf" :by "middle")
        (flet ((chain (name &rest files)
                 (pair (apply #'join-files directory name files) key)))
          (is (null (warnings-of (pair certificate key))))
          (is (null (warnings-of (chain "good.pem" certificate middle))))
          (is (null (warnings-of (chain "whole.pem" certificate middle root))))
          (is-true (warns-p (chain "bad.pem" certificate root) "Certificate 1 in" "bad.pem"))
          (is-true (warns-p (chain "twice.pem" certificate middle middle)
                            "Certificate 2 in" "twice.pem")))))))
