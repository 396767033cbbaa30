(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; Facts about a TLS connection after its handshake, and about its client's certificate.
;;;;
;;;; Invariant: all pointers here belong to OpenSSL, and are valid as long as the SSL object, unless
;;;; a comment says otherwise.  The caller ensures that no thread frees that object meanwhile, and
;;;; defers interrupts.

(cffi:defcfun ("SSL_get_version" %protocol-of-handle) :pointer (handle :pointer))

(cffi:defcfun ("SSL_get_current_cipher" %cipher-of-handle) :pointer (handle :pointer))

(cffi:defcfun ("SSL_CIPHER_get_name" %cipher-name) :pointer (cipher :pointer))

(cffi:defcfun ("SSL_get0_alpn_selected" %selected-protocol) :void
  (handle :pointer) (octets :pointer) (length :pointer))

(cffi:defcfun ("SSL_session_reused" %session-reused) :int (handle :pointer))

(cffi:defcfun ("SSL_get_session" %session-of-handle) :pointer (handle :pointer))

(cffi:defcfun ("SSL_SESSION_get0_peer" %peer-of-session) :pointer (session :pointer))

(cffi:defcfun ("SSL_get_verify_result" %verify-result) :long (handle :pointer))

(cffi:defcfun ("X509_verify_cert_error_string" %verify-words) :pointer (result :long))

(cffi:defcfun ("X509_get_subject_name" %certificate-subject) :pointer (certificate :pointer))

(cffi:defcfun ("X509_get_issuer_name" %certificate-issuer) :pointer (certificate :pointer))

(cffi:defcfun ("X509_get_serialNumber" %certificate-serial) :pointer (certificate :pointer))

(cffi:defcfun ("i2d_X509" %encode-certificate) :int (certificate :pointer) (target :pointer))

(cffi:defcfun ("X509_NAME_print_ex" %print-name) :int
  (bio :pointer) (name :pointer) (indent :int) (flags :unsigned-long))

(cffi:defcfun ("ASN1_STRING_length" %string-length) :int (string :pointer))

(cffi:defcfun ("ASN1_STRING_type" %string-type) :int (string :pointer))

(cffi:defcfun ("ASN1_STRING_get0_data" %string-octets) :pointer (string :pointer))

(cffi:defcfun ("BIO_s_mem" %memory-method) :pointer)

(cffi:defcfun ("BIO_new" %new-bio) :pointer (method :pointer))

(cffi:defcfun ("BIO_read" %read-bio) :int (bio :pointer) (octets :pointer) (length :int))

(cffi:defcfun ("BIO_free" %free-bio) :int (bio :pointer))

(defun stream-tls-handle (stream)
  "The SSL object of OpenSSL, a CFFI pointer, of STREAM, a stream of CL+SSL; NIL for other streams
and for a closed one."
  (and (typep stream 'cl+ssl::ssl-stream)
       (cl+ssl::ssl-stream-handle stream)))

(defun c-text (pointer)
  "The C string at POINTER, in Latin-1, as a string; NIL if POINTER is null."
  (unless (cffi:null-pointer-p pointer)
    (cffi:foreign-string-to-lisp pointer :encoding :latin-1)))

;;; Connections

(defun agreed-protocol (handle)
  "The protocol that ALPN has selected for HANDLE, a string, or NIL (RFC 7301)."
  (cffi:with-foreign-objects ((octets :pointer) (length :unsigned-int))
    (%selected-protocol handle octets length)
    (let ((count (cffi:mem-ref length :unsigned-int)))
      (unless (zerop count)
        (map 'string #'code-char (copy-in (cffi:mem-ref octets :pointer) count))))))

(defun tls-facts (handle)
  "Facts about the connection of HANDLE, a pointer to an SSL object whose handshake is complete.
Returns a plist: :PROTOCOL and :CIPHER, strings; :SERVER-NAME, the name for which the client has
asked, a string or NIL (RFC 6066, section 3); :APPLICATION-PROTOCOL, the protocol that ALPN has
selected, a string or NIL (RFC 7301); and :RESUMED-P, true if the handshake has resumed a session of
an earlier connection."
  (uninterruptibly
    (list :protocol (c-text (%protocol-of-handle handle))
          :cipher (c-text (%cipher-name (%cipher-of-handle handle)))
          :server-name (c-text (%server-name handle 0)) ; 0 is the only kind: a host name
          :application-protocol (agreed-protocol handle)
          :resumed-p (= 1 (%session-reused handle)))))

;;; Certificates

(defconstant +name-flags+
  (logior 1 2                           ; ASN1_STRFLGS_ESC_2253, ASN1_STRFLGS_ESC_CTRL
          #x10                          ; ASN1_STRFLGS_UTF8_CONVERT
          #x100 #x200                   ; ASN1_STRFLGS_DUMP_UNKNOWN, ASN1_STRFLGS_DUMP_DER
          (ash 1 16)                    ; XN_FLAG_SEP_COMMA_PLUS
          (ash 1 20)                    ; XN_FLAG_DN_REV
          (ash 1 24))                   ; XN_FLAG_DUMP_UNKNOWN_FIELDS
  "The format of names: that of RFC 2253, but characters beyond ASCII are not escaped.")

(defun bio-octets (bio)
  "All octets in BIO, a memory BIO."
  (cffi:with-foreign-object (buffer :uint8 1024)
    (apply #'concatenate 'octets
           (loop for count = (%read-bio bio buffer 1024)
                 while (plusp count)
                 collect (copy-in buffer count)))))

(defun name-text (name)
  "The X509_NAME NAME as a string (RFC 2253)."
  (let ((bio (%new-bio (%memory-method))))
    (when (cffi:null-pointer-p bio)
      (error "OpenSSL has no memory for a name."))
    (unwind-protect
         (progn (%print-name bio name 0 +name-flags+)
                (flexi-streams:octets-to-string (bio-octets bio) :external-format :utf-8))
      (%free-bio bio))))

(defconstant +negative+ #x100)          ; V_ASN1_NEG

(defun serial-number (certificate)
  "The serial number of CERTIFICATE, an X509: an integer."
  (let* ((number (%certificate-serial certificate))
         (magnitude (reduce (lambda (high octet) (+ (* 256 high) octet))
                            (copy-in (%string-octets number) (%string-length number))
                            :initial-value 0)))
    (if (logtest +negative+ (%string-type number)) (- magnitude) magnitude)))

(defun certificate-octets (certificate)
  "CERTIFICATE, an X509, in DER."
  (let ((length (%encode-certificate certificate (cffi:null-pointer))))
    (cffi:with-foreign-objects ((octets :uint8 length) (target :pointer))
      (setf (cffi:mem-ref target :pointer) octets) ; OpenSSL advances the pointer in TARGET
      (%encode-certificate certificate target)
      (copy-in octets length))))

(defun universal-time-of (time)
  "The universal time of TIME, an ASN1_TIME; NIL if TIME is invalid."
  (cffi:with-foreign-object (tm '(:struct broken-down-time))
    (cffi:with-foreign-slots ((seconds minutes hours day month year) tm (:struct broken-down-time))
      (when (= 1 (%broken-down-time time tm))
        (encode-universal-time seconds minutes hours day (1+ month) (+ 1900 year) 0)))))

(defun verification-failure (handle)
  "The reason, a string, why the certificate of the peer of HANDLE was not verified; NIL if it was."
  (let ((result (%verify-result handle)))
    (unless (zerop result)              ; X509_V_OK
      (c-text (%verify-words result)))))

(defun peer-certificate (handle)
  "The certificate, an X509, that the peer of HANDLE has sent; NIL if it has sent none."
  (let* ((session (%session-of-handle handle))
         ;; All versions of OpenSSL have this function, and its result need not be freed.
         (certificate (if (cffi:null-pointer-p session) session (%peer-of-session session))))
    (unless (cffi:null-pointer-p certificate)
      certificate)))

(defun peer-certificate-facts (handle)
  "Facts about the certificate that the peer of HANDLE, a pointer to an SSL object, has sent; NIL if
it has sent none.  Returns a plist: :OCTETS, the certificate in DER, octets; :FAILURE, the reason
why it was not verified, a string, or NIL; :SUBJECT and :ISSUER, strings in the format of RFC 2253;
:SERIAL-NUMBER, an integer; :NOT-BEFORE and :NOT-AFTER, universal times; and :DIGEST, its SHA-256
digest, 32 octets."
  (uninterruptibly
    (let ((certificate (peer-certificate handle)))
      (when certificate
        (let ((octets (certificate-octets certificate)))
          (list :octets octets
                :failure (verification-failure handle)
                :subject (name-text (%certificate-subject certificate))
                :issuer (name-text (%certificate-issuer certificate))
                :serial-number (serial-number certificate)
                :not-before (universal-time-of (%certificate-begin certificate))
                :not-after (universal-time-of (%certificate-end certificate))
                :digest (digest-of octets)))))))
