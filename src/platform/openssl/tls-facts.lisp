(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; Facts about a TLS connection after its handshake, and about its client's certificate.
;;;;
;;;; Invariant: all pointers here belong to OpenSSL, and are valid as long as the SSL object, unless
;;;; a comment says otherwise.  The caller ensures that no thread frees that object meanwhile, and
;;;; defers interrupts.

(defun stream-tls-handle (stream)
  "The SSL object of OpenSSL, a CFFI pointer, of STREAM, a stream of CL+SSL; NIL for other streams
and for a closed one."
  (and (typep stream 'cl+ssl::ssl-stream)
       (cl+ssl::ssl-stream-handle stream)))

(defun c-text (pointer)
  "The C string at POINTER, in Latin-1, as a string; NIL if POINTER is null."
  (unless (cffi:null-pointer-p pointer)
    (cffi:foreign-string-to-lisp pointer :encoding :latin-1)))

(defun tls-facts (handle)
  "Facts about the connection of HANDLE, a pointer to an SSL object whose handshake is complete.
Returns a plist: :PROTOCOL and :CIPHER, strings; :SERVER-NAME, the name for which the client has
asked, a string or NIL (RFC 6066, section 3); :APPLICATION-PROTOCOL, the protocol that ALPN has
selected, a string or NIL (RFC 7301); and :RESUMED-P, true if the handshake has resumed a session of
an earlier connection."
  (uninterruptibly
    (cffi:with-foreign-objects ((octets :pointer) (length :unsigned-int))
      (openssl :void "SSL_get0_alpn_selected" handle octets length)
      (let ((count (cffi:mem-ref length :unsigned-int)))
        (list :protocol (c-text (openssl :pointer "SSL_get_version" handle))
              :cipher (c-text (openssl :pointer "SSL_CIPHER_get_name"
                                       (openssl :pointer "SSL_get_current_cipher" handle)))
              :server-name (c-text (server-name handle))
              :application-protocol (and (plusp count)
                                         (map 'string #'code-char
                                              (copy-in (cffi:mem-ref octets :pointer) count)))
              :resumed-p (= 1 (openssl :int "SSL_session_reused" handle)))))))

;;; Certificates

(cffi:defcstruct broken-down-time       ; the beginning of struct tm, see <time.h>
  (seconds :int) (minutes :int) (hours :int) (day :int) (month :int) (year :int)
  (more :char :count 64))

(defun universal-time-of (time)
  "The universal time of TIME, an ASN1_TIME; NIL if TIME is invalid."
  (cffi:with-foreign-object (tm '(:struct broken-down-time))
    (cffi:with-foreign-slots ((seconds minutes hours day month year) tm (:struct broken-down-time))
      (when (= 1 (openssl :int "ASN1_TIME_to_tm" time tm))
        (encode-universal-time seconds minutes hours day (1+ month) (+ 1900 year) 0)))))

(defun name-text (name)
  "The X509_NAME NAME as a string in the format of RFC 2253, but with characters beyond ASCII as
they are."
  (let ((bio (openssl :pointer "BIO_new" (openssl :pointer "BIO_s_mem"))))
    (when (cffi:null-pointer-p bio)
      (error "OpenSSL has no memory for a name."))
    (unwind-protect
         (cffi:with-foreign-object (octets :pointer)
           (openssl :int "X509_NAME_print_ex" bio name (:int 0)
                    (:unsigned-long
                     (logior 1 2        ; ASN1_STRFLGS_ESC_2253, ASN1_STRFLGS_ESC_CTRL
                             #x10       ; ASN1_STRFLGS_UTF8_CONVERT
                             #x100 #x200 ; ASN1_STRFLGS_DUMP_UNKNOWN, ASN1_STRFLGS_DUMP_DER
                             (ash 1 16) ; XN_FLAG_SEP_COMMA_PLUS
                             (ash 1 20) ; XN_FLAG_DN_REV
                             (ash 1 24)))) ; XN_FLAG_DUMP_UNKNOWN_FIELDS
           (let ((count (openssl :long "BIO_ctrl" bio (:int 3) (:long 0) octets))) ; BIO_CTRL_INFO
             (flexi-streams:octets-to-string (copy-in (cffi:mem-ref octets :pointer) count)
                                             :external-format :utf-8)))
      (openssl :int "BIO_free" bio))))

(defun serial-number (certificate)
  "The serial number of CERTIFICATE, an X509: an integer."
  (let* ((number (openssl :pointer "X509_get_serialNumber" certificate))
         (magnitude (reduce (lambda (high octet) (+ (* 256 high) octet))
                            (copy-in (openssl :pointer "ASN1_STRING_get0_data" number)
                                     (openssl :int "ASN1_STRING_length" number))
                            :initial-value 0)))
    (if (logtest #x100 (openssl :int "ASN1_STRING_type" number)) ; V_ASN1_NEG
        (- magnitude)
        magnitude)))

(defun certificate-octets (certificate)
  "CERTIFICATE, an X509, in DER."
  (let ((length (openssl :int "i2d_X509" certificate (cffi:null-pointer))))
    (cffi:with-foreign-objects ((octets :uint8 length) (target :pointer))
      (setf (cffi:mem-ref target :pointer) octets) ; OpenSSL advances the pointer in TARGET
      (openssl :int "i2d_X509" certificate target)
      (copy-in octets length))))

(defun peer-certificate-facts (handle)
  "Facts about the certificate that the peer of HANDLE, a pointer to an SSL object, has sent; NIL if
it has sent none.  Returns a plist: :OCTETS, the certificate in DER, octets; :FAILURE, the reason
why it was not verified, a string, or NIL; :SUBJECT and :ISSUER, strings in the format of RFC 2253;
:SERIAL-NUMBER, an integer; :NOT-BEFORE and :NOT-AFTER, universal times; and :FINGERPRINT, its
SHA-256 digest, a string of hexadecimal digits in lower case."
  (uninterruptibly
    (let* ((session (openssl :pointer "SSL_get_session" handle))
           ;; All versions of OpenSSL have this function, and its result need not be freed.
           (certificate (if (cffi:null-pointer-p session)
                            session
                            (openssl :pointer "SSL_SESSION_get0_peer" session))))
      (unless (cffi:null-pointer-p certificate)
        (let ((octets (certificate-octets certificate))
              (verified (openssl :long "SSL_get_verify_result" handle)))
          (list :octets octets
                :failure (unless (zerop verified) ; X509_V_OK
                           (c-text (openssl :pointer "X509_verify_cert_error_string"
                                            (:long verified))))
                :subject (name-text (openssl :pointer "X509_get_subject_name" certificate))
                :issuer (name-text (openssl :pointer "X509_get_issuer_name" certificate))
                :serial-number (serial-number certificate)
                :not-before (universal-time-of
                             (openssl :pointer "X509_get0_notBefore" certificate))
                :not-after (universal-time-of
                            (openssl :pointer "X509_get0_notAfter" certificate))
                :fingerprint (format nil "~(~{~2,'0X~}~)"
                                     (coerce (digest-of octets) 'list))))))))
