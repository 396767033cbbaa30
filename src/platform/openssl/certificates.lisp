(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; Loading of certificates and keys from files into OpenSSL.

(defun name-for-openssl (file)
  "The name of FILE, a pathname designator, for OpenSSL."
  (uiop:native-namestring (merge-pathnames file)))

(defun why-it-failed ()
  "OpenSSL's reason for its failure, as the end of a sentence."
  (or (take-error) "OpenSSL does not say why"))

;;; Passwords

(defun call-with-password (context password function)
  "Calls FUNCTION, in which OpenSSL uses PASSWORD, a string or NIL, for encrypted files that it
reads for CONTEXT, an SSL_CTX.  NIL becomes the empty string, since OpenSSL would otherwise ask at
the terminal."
  (cffi:with-foreign-string ((text size) (or password ""))
    (%set-password context text)
    (unwind-protect (funcall function)
      (%set-password context (cffi:null-pointer))
      (dotimes (index size)
        (setf (cffi:mem-aref text :uint8 index) 0)))))

(defun encrypted-key-p (file)
  "True if FILE says that its key is encrypted, in the format of PKCS #8 (RFC 5958) or of RFC 1421."
  (ignore-errors                        ; it may be missing, or a folder
    (with-open-file (stream file :external-format :iso-8859-1) ; ABCL knows no :LATIN-1
      (loop for line = (read-line stream nil)
            while line
              thereis (or (search "-----BEGIN ENCRYPTED" line)
                          (and (search "Proc-Type:" line) (search "ENCRYPTED" line)))))))

;;; The key comes first, and then its certificate: OpenSSL drops a key that does not match.

(defun key-refused (index file password reason)
  "Signals a TLS-MISTAKE, since OpenSSL cannot read the private key in FILE with PASSWORD, for
REASON."
  (cond ((not (encrypted-key-p file))
         (tls-mistaken :key index (princ-to-string file)
                       "has no private key that OpenSSL can read (~A)" reason))
        (password
         (tls-mistaken :password index nil "does not decrypt the private key in ~A (~A)"
                       (princ-to-string file) reason))
        (t
         (tls-mistaken :password index nil "must be given: the private key in ~A is encrypted"
                       (princ-to-string file)))))

(defun load-pair (context index certificate-file key-file password)
  "Loads into CONTEXT, an SSL_CTX, the private key in KEY-FILE, with PASSWORD, and the certificates
in CERTIFICATE-FILE: the server's own, and then those of its issuers.  INDEX is their number for
messages."
  (unless (= 1 (call-with-password context password
                                   (lambda ()
                                     (%use-private-key context (name-for-openssl key-file)
                                                       1)))) ; SSL_FILETYPE_PEM
    (key-refused index key-file password (why-it-failed)))
  (unless (= 1 (call-with-password context nil
                                   (lambda ()
                                     (%use-certificate-chain
                                      context (name-for-openssl certificate-file)))))
    (tls-mistaken :certificate index (princ-to-string certificate-file)
                  "has no certificate that OpenSSL can use (~A)" (why-it-failed)))
  (unless (= 1 (%check-private-key context))
    (%clear-errors)
    (tls-mistaken :key index (princ-to-string key-file)
                  "has another key than the certificate in ~A"
                  (princ-to-string certificate-file))))

;;; Warnings about certificates that some clients will not trust

(cffi:defcstruct broken-down-time       ; the beginning of struct tm, see <time.h>
  (seconds :int) (minutes :int) (hours :int) (day :int) (month :int) (year :int)
  (more :char :count 64))

(defun time-words (time)
  "TIME, an ASN1_TIME, as readable text."
  (cffi:with-foreign-object (tm '(:struct broken-down-time))
    (cffi:with-foreign-slots ((seconds minutes hours day month year) tm
                              (:struct broken-down-time))
      (if (= 1 (%broken-down-time time tm))
          (format nil "~4,'0D-~2,'0D-~2,'0D ~2,'0D:~2,'0D:~2,'0D UTC" (+ 1900 year) (1+ month) day
                  hours minutes seconds)
          "an unknown time"))))

(defun date-warnings (certificate file position)
  "A list of warnings about the dates of CERTIFICATE, number POSITION in FILE."
  (flet ((it ()
           (if (= position 1)
               (format nil "The certificate in ~A" file)
               (format nil "Certificate ~D in ~A" position file))))
    (cond ((minusp (%compare-with-now (%certificate-end certificate)))
           (list (format nil "~A has expired on ~A." (it)
                         (time-words (%certificate-end certificate)))))
          ((plusp (%compare-with-now (%certificate-begin certificate)))
           (list (format nil "~A is not valid before ~A." (it)
                         (time-words (%certificate-begin certificate))))))))

(defun certificate-warnings (context file)
  "A list of warnings, strings, about the certificates of CONTEXT, an SSL_CTX, which were in FILE."
  (loop for (certificate . issuers) on (certificate-chain context)
        for position from 1
        append (date-warnings certificate file position)
        when (and issuers (/= 0 (%check-issued (first issuers) certificate))) ; X509_V_OK
          collect (format nil "Certificate ~D in ~A was not issued by the next one in that file: ~
                               clients may not trust it.  The server's own certificate must come ~
                               first, and after each certificate that of its issuer."
                          position file)))

;;; Certificates of clients

(defconstant +verify-peer+ 1)
(defconstant +verify-required+ 2)

(defun load-authorities (context file)
  "Makes CONTEXT, an SSL_CTX, trust clients with certificates from the issuers in FILE, and send
clients the names of those issuers."
  (let* ((name (name-for-openssl file))
         (names (if (= 1 (%load-authorities context name (cffi:null-pointer)))
                    (%read-authority-names name)
                    (cffi:null-pointer))))
    (when (cffi:null-pointer-p names)
      (tls-mistaken :client-ca-file nil (princ-to-string file)
                    "has no certificate that OpenSSL can use (~A)" (why-it-failed)))
    (%set-authority-names context names)))

(defun set-verification (context verify-client)
  "Makes CONTEXT, an SSL_CTX, ask clients for certificates according to VERIFY-CLIENT; see
MAKE-TLS-CONTEXT."
  (ecase verify-client
    ((nil))
    (:required
     (%set-verification context (logior +verify-peer+ +verify-required+) (cffi:null-pointer)))
    (:optional
     (%set-verification context +verify-peer+ (cffi:null-pointer)))
    (:request
     (%set-verification context +verify-peer+ (cffi:callback accept-any-certificate)))))
