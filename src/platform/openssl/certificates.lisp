(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; Certificates and keys, from their files to OpenSSL.

(defun name-for-openssl (file)
  "The name of FILE, a pathname designator, that OpenSSL opens."
  (uiop:native-namestring (merge-pathnames file)))

(defun readable-file-p (file)
  (handler-case (with-open-file (stream file :element-type 'octet :if-does-not-exist nil)
                  (and stream (read-byte stream nil nil) t))
    (error () nil)))

(defun check-readable (subject index file)
  "Signals a TLS-MISTAKE unless FILE, the SUBJECT of the certificate INDEX, can be read."
  (unless (and file (readable-file-p file))
    (tls-mistaken subject index (princ-to-string file) "cannot be read, or has nothing in it")))

(defun why-it-failed ()
  "What OpenSSL did not like, for the end of a sentence."
  (or (take-error) "OpenSSL does not say why"))

;;; Passwords

(defun call-with-password (context password function)
  "Calls FUNCTION; files that OpenSSL reads for CONTEXT, an SSL_CTX, may be encrypted by PASSWORD, a
string or NIL.  Without one it takes an empty one: otherwise OpenSSL would ask at the terminal."
  (cffi:with-foreign-string ((text size) (or password ""))
    (%set-password context text)
    (unwind-protect (funcall function)
      (%set-password context (cffi:null-pointer))
      (dotimes (index size)
        (setf (cffi:mem-aref text :uint8 index) 0)))))

(defun encrypted-key-p (file)
  "True when FILE says that what is in it is encrypted: in PKCS #8 (RFC 5958), or as RFC 1421 has
it."
  (with-open-file (stream file :external-format :iso-8859-1) ; ABCL knows no :LATIN-1
    (loop for line = (read-line stream nil)
          while line
            thereis (or (search "-----BEGIN ENCRYPTED" line)
                        (and (search "Proc-Type:" line) (search "ENCRYPTED" line))))))

;;; The key, and then its certificate: OpenSSL drops a key that does not fit.

(defun key-refused (index file password reason)
  "Signals why FILE, with PASSWORD, is no private key; OpenSSL has said REASON."
  (cond ((not (encrypted-key-p file))
         (tls-mistaken :key index (princ-to-string file)
                       "has no private key that OpenSSL can read (~A)" reason))
        (password
         (tls-mistaken :password index nil "does not decrypt the private key in ~A (~A)"
                       (princ-to-string file) reason))
        (t
         (tls-mistaken :password index nil "must be given: the private key in ~A is encrypted"
                       (princ-to-string file)))))

(defun load-key (context index file password)
  "Makes what FILE has, by PASSWORD, the private key of CONTEXT, an SSL_CTX."
  (check-readable :key index file)
  (unless (= 1 (call-with-password context password
                                   (lambda ()
                                     (%use-private-key context (name-for-openssl file)
                                                       1)))) ; SSL_FILETYPE_PEM
    (key-refused index file password (why-it-failed))))

(defun load-certificate (context index file)
  "Makes the certificates in FILE those of CONTEXT, an SSL_CTX: its own, and then those of who
issued it."
  (check-readable :certificate index file)
  (unless (= 1 (call-with-password context nil
                                   (lambda ()
                                     (%use-certificate-chain context (name-for-openssl file)))))
    (tls-mistaken :certificate index (princ-to-string file)
                  "has no certificate that OpenSSL can use (~A)" (why-it-failed))))

(defun load-pair (context index certificate-file key-file password)
  "Gives CONTEXT, an SSL_CTX, certificate and key, the INDEXth that are told in messages."
  (load-key context index key-file password)
  (load-certificate context index certificate-file)
  (unless (= 1 (%check-private-key context))
    (%clear-errors)
    (tls-mistaken :key index (princ-to-string key-file)
                  "has another key than that of the certificate in ~A"
                  (princ-to-string certificate-file))))

;;; What works, but not for long, or not for everybody

(cffi:defcstruct broken-down-time       ; the beginning of struct tm, see <time.h>
  (seconds :int) (minutes :int) (hours :int) (day :int) (month :int) (year :int)
  (more :char :count 64))

(defun time-words (time)
  "TIME, an ASN1_TIME, for people."
  (cffi:with-foreign-object (tm '(:struct broken-down-time))
    (cffi:with-foreign-slots ((seconds minutes hours day month year) tm
                              (:struct broken-down-time))
      (if (= 1 (%broken-down-time time tm))
          (format nil "~4,'0D-~2,'0D-~2,'0D ~2,'0D:~2,'0D:~2,'0D UTC" (+ 1900 year) (1+ month) day
                  hours minutes seconds)
          "an unknown time"))))

(defun date-warnings (certificate file position)
  "What is to be said of the dates of CERTIFICATE, the POSITIONth in FILE."
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
  "What is to be said of the certificates of CONTEXT, an SSL_CTX, which were in FILE: a list of
sentences."
  (loop for (certificate . issuers) on (certificate-chain context)
        for position from 1
        append (date-warnings certificate file position)
        when (and issuers (/= 0 (%check-issued (first issuers) certificate))) ; X509_V_OK
          collect (format nil "Certificate ~D in ~A was not issued by who comes next in it: clients may ~
                               not trust it.  The server's own certificate comes first, and after each ~
                               that of who issued it."
                          position file)))

;;; Certificates of clients

(defconstant +verify-peer+ 1)
(defconstant +verify-required+ 2)

(defun load-authorities (context file)
  "Makes CONTEXT, an SSL_CTX, trust clients whose certificates those in FILE have issued, and tell
them so."
  (let* ((name (name-for-openssl file))
         (names (if (= 1 (%load-authorities context name (cffi:null-pointer)))
                    (%read-authority-names name)
                    (cffi:null-pointer))))
    (when (cffi:null-pointer-p names)
      (tls-mistaken :client-ca-file nil (princ-to-string file)
                    "has no certificate that OpenSSL can use (~A)" (why-it-failed)))
    (%set-authority-names context names)))

(defun set-verification (context verify-client)
  "Has CONTEXT, an SSL_CTX, ask clients for certificates, as VERIFY-CLIENT says."
  (ecase verify-client
    ((nil))
    (:required
     (%set-verification context (logior +verify-peer+ +verify-required+) (cffi:null-pointer)))
    (:optional
     (%set-verification context +verify-peer+ (cffi:null-pointer)))
    (:request
     (%set-verification context +verify-peer+ (cffi:callback accept-any-certificate)))))
