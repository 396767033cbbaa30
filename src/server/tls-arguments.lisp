(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; The TLS arguments of applications: their types, and the argument to blame for a mistake in a
;;;; file.  The names are those of Hunchentoot's acceptors, and of ours.

;;; Files

(defun pem-labels (pathname)
  "The labels in the PEM file PATHNAME, a list of strings, from its lines BEGIN (RFC 7468, section
2)."
  (with-open-file (stream pathname :external-format :iso-8859-1) ; ABCL knows no :LATIN-1
    (loop with mark = "-----BEGIN "
          for line = (read-line stream nil)
          while line
          when (search mark line)
            collect (subseq line (+ (search mark line) (length mark))))))

(defun existing-file-p (pathname)
  ;; PROBE-FILE signals an error for a name that no file can have, and on SBCL if the file is
  ;; replaced during the call.
  (let ((found (ignore-errors (probe-file pathname))))
    (and found (pathname-name found) t)))

(defun forbidden-p (pathname)
  "True when the system does not let this process read the file PATHNAME, or search a folder on the
way to it."
  (handler-case (progn (close (open pathname :element-type '(unsigned-byte 8)))
                       nil)
    (error (condition)                  ; its class does not show the reason, on any Lisp
      (and (search "ermission denied" (princ-to-string condition)) t))))

(defparameter *forbidden-words*
  "may not be read by this process: see mode and owner of the file and of the folders above it"
  "The mistake in a file for which FORBIDDEN-P is true.")

(defun check-pem-file (name pathname wanted)
  "Checks that PATHNAME, the value of the argument NAME, is a PEM file with a label that contains
WANTED."
  (flet ((refuse-it (reason)
           (unfit name ", ~S, ~A" pathname reason)))
    (unless (typep pathname '(or string pathname))
      (refuse-it "must name a file in PEM format"))
    (unless (existing-file-p pathname)
      (refuse-it (if (forbidden-p pathname) *forbidden-words* "does not name an existing file")))
    (let ((labels (handler-case (pem-labels pathname)
                    (file-error ()
                      (refuse-it (if (forbidden-p pathname)
                                     *forbidden-words*
                                     "cannot be read"))))))
      (cond ((null labels)
             (refuse-it "is not in PEM format"))
            ((notany (lambda (label) (search wanted label)) labels)
             (refuse-it (format nil "has no ~A, but ~{~A~^, ~}" wanted
                                (mapcar (lambda (label) (string-right-trim '(#\- #\Return) label))
                                        labels))))))))

(defun check-pair (certificate-name certificate-file key-name key-file)
  "Checks CERTIFICATE-FILE and KEY-FILE, the values of the arguments CERTIFICATE-NAME and KEY-NAME."
  (check-pem-file certificate-name certificate-file "CERTIFICATE")
  (check-pem-file key-name key-file "PRIVATE KEY"))

(defun absolute-file (file)
  "FILE, a pathname designator, as an absolute pathname that stays correct when the process changes
its directory.  Links are not followed."
  (uiop:ensure-absolute-pathname (uiop:physicalize-pathname (pathname file))
                                 #'uiop:get-pathname-defaults))

;;; Types

(defun further-certificates-p (value)
  "True when VALUE is a list of lists of a certificate's file, its key's, and perhaps a password."
  (flet ((file-p (file) (typep file '(or string pathname))))
    (and (listp value)
         (every (lambda (element)
                  (and (listp element)
                       (<= 2 (length element) 3)
                       (file-p (first element))
                       (file-p (second element))
                       (typep (third element) '(or null string))))
                value))))

(deftype further-certificates ()
  "Lists of a certificate's file, its key's, and perhaps a password."
  '(satisfies further-certificates-p))

(defparameter *tls-argument-types*
  '((:ssl-privatekey-password (or null string) "a string, or NIL" :secret)
    (:ssl-certificates further-certificates
     "a list of lists of a certificate's file, its private key's file, and optionally a password"
     :secret)
    (:ssl-minimum-protocol (member :tls-1.2 :tls-1.3) ":TLS-1.2 or :TLS-1.3")
    (:ssl-ciphers (or null string) "a string as OpenSSL has them, or NIL")
    (:ssl-client-ca-file (or null string pathname) "a file in PEM format, or NIL")
    (:ssl-verify-client (member nil :required :optional :request)
     ":REQUIRED, :OPTIONAL, :REQUEST or NIL")
    (:ssl-ticket-key-file (or null string pathname) "a file, or NIL"))
  "The arguments besides the files of the certificate and its key, as for CHECK-ARGUMENT-TYPES.")

;;; All settings, as a plist of arguments

(defparameter *tls-arguments*
  (list* :ssl-certificate-file :ssl-privatekey-file (mapcar #'first *tls-argument-types*))
  "The names of all TLS arguments.")

(defun check-tls-settings (settings)
  "Checks SETTINGS, a plist, as far as that is possible without OpenSSL."
  (destructuring-bind (&key ssl-certificate-file ssl-privatekey-file ssl-certificates
                         ssl-client-ca-file ssl-verify-client &allow-other-keys)
      settings
    (check-pair :ssl-certificate-file ssl-certificate-file :ssl-privatekey-file ssl-privatekey-file)
    (loop for (certificate-file key-file) in ssl-certificates
          do (check-pair :ssl-certificates certificate-file :ssl-certificates key-file))
    (cond (ssl-client-ca-file
           (check-pem-file :ssl-client-ca-file ssl-client-ca-file "CERTIFICATE"))
          ((member ssl-verify-client '(:required :optional))
           (unfit :ssl-verify-client
                  ", ~S, needs SSL-CLIENT-CA-FILE, with the issuers of the clients' certificates"
                  ssl-verify-client)))))

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

(defun blame (mistake)
  "The name of the argument to blame for MISTAKE."
  (let ((index (tls-mistake-index mistake)))
    (if (and index (plusp index))
        :ssl-certificates
        (ecase (tls-mistake-subject mistake)
          (:certificate :ssl-certificate-file)
          (:key :ssl-privatekey-file)
          (:password :ssl-privatekey-password)
          (:ciphers :ssl-ciphers)
          (:client-ca-file :ssl-client-ca-file)
          (:ticket-key-file :ssl-ticket-key-file)))))

(defun context-of-settings (settings ticket-key)
  "A TLS context for SETTINGS, a plist of all *TLS-ARGUMENTS*.  TICKET-KEY is as for
MAKE-TLS-CONTEXT, and used if SETTINGS names no file of one.  The second value is a list of
warnings.  Signals UNFIT-ARGUMENT."
  (check-tls-settings settings)
  (destructuring-bind (&key ssl-certificate-file ssl-privatekey-file ssl-privatekey-password
                         ssl-certificates ssl-minimum-protocol ssl-ciphers ssl-client-ca-file
                         ssl-verify-client ssl-ticket-key-file)
      settings
    (handler-case
        (make-tls-context (cons (list ssl-certificate-file ssl-privatekey-file
                                      ssl-privatekey-password)
                                ssl-certificates)
                          :minimum-protocol ssl-minimum-protocol
                          :ciphers (cipher-names ssl-ciphers nil)
                          :cipher-suites (cipher-names ssl-ciphers t)
                          :client-ca-file ssl-client-ca-file
                          :verify-client (or ssl-verify-client (and ssl-client-ca-file :required))
                          :ticket-key ticket-key
                          :ticket-key-file ssl-ticket-key-file
                          ;; A wait for octets on the socket misses those that OpenSSL has read.
                          :read-ahead (readiness-supported-p))
      (tls-mistake (mistake)
        (unfit (blame mistake) "~@[, ~S,~] ~A"
               (tls-mistake-value mistake) (tls-mistake-reason mistake))))))
