(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; The functions of OpenSSL's library, which CL+SSL has loaded, for making contexts: their names
;;;; and constants, and the errors that OpenSSL keeps for each thread.  OpenSSL 1.1.1 has all of
;;;; them, unless a comment says otherwise.

;;; Contexts, see ssl(7)

(cffi:defcfun ("TLS_server_method" %server-method) :pointer)

(cffi:defcfun ("SSL_CTX_new" %new-context) :pointer (method :pointer))

(cffi:defcfun ("SSL_CTX_free" %free-context) :void (context :pointer))

(cffi:defcfun ("SSL_CTX_ctrl" %context-control) :long
  (context :pointer) (command :int) (number :long) (pointer :pointer))

(cffi:defcfun ("SSL_CTX_callback_ctrl" %context-callback-control) :long
  (context :pointer) (command :int) (callback :pointer))

(cffi:defcfun ("SSL_CTX_set_options" %set-context-options) :unsigned-long
  (context :pointer) (options :unsigned-long))

(cffi:defcfun ("SSL_CTX_set_cipher_list" %set-context-ciphers) :int
  (context :pointer) (names :string))

(cffi:defcfun ("SSL_CTX_set_ciphersuites" %set-context-cipher-suites) :int
  (context :pointer) (names :string))

(cffi:defcfun ("SSL_CTX_set_session_id_context" %set-session-id-context) :int
  (context :pointer) (octets :pointer) (length :unsigned-int))

(cffi:defcfun ("SSL_CTX_set_alpn_select_cb" %set-protocol-selector) :void
  (context :pointer) (callback :pointer) (argument :pointer))

(cffi:defcfun ("SSL_CTX_set_ex_data" %set-context-data) :int
  (context :pointer) (index :int) (data :pointer))

(cffi:defcfun ("SSL_CTX_get_ex_data" %context-data) :pointer
  (context :pointer) (index :int))

(cffi:defcfun ("SSL_get_SSL_CTX" %context-of-handle) :pointer (handle :pointer))

(cffi:defcfun ("SSL_set_SSL_CTX" %set-context-of-handle) :pointer
  (handle :pointer) (context :pointer))

(defconstant +tls-1.2+ #x303)
(defconstant +tls-1.3+ #x304)

(cffi:defcfun ("SSL_get_servername" %server-name) :pointer (handle :pointer) (type :int))

(defconstant +control-mode+ 33)               ; SSL_CTRL_MODE
(defconstant +control-read-ahead+ 41)         ; SSL_CTRL_SET_READ_AHEAD
(defconstant +control-session-cache+ 44)      ; SSL_CTRL_SET_SESS_CACHE_MODE
(defconstant +control-name-callback+ 53)      ; SSL_CTRL_SET_TLSEXT_SERVERNAME_CB
(defconstant +control-ticket-keys+ 59)        ; SSL_CTRL_SET_TLSEXT_TICKET_KEYS
(defconstant +control-chain+ 115)             ; SSL_CTRL_GET_CHAIN_CERTS
(defconstant +control-minimum-protocol+ 123)  ; SSL_CTRL_SET_MIN_PROTO_VERSION

(defun control-context (context command number &optional (pointer (cffi:null-pointer)))
  "Calls SSL_CTX_ctrl for CONTEXT, an SSL_CTX, with COMMAND, NUMBER and POINTER; returns its
result."
  (%context-control context command number pointer))

;;; Certificates and keys

(cffi:defcfun ("SSL_CTX_set_default_passwd_cb_userdata" %set-password) :void
  (context :pointer) (password :pointer))

(cffi:defcfun ("SSL_CTX_use_certificate_chain_file" %use-certificate-chain) :int
  (context :pointer) (file :string))

(cffi:defcfun ("SSL_CTX_use_PrivateKey_file" %use-private-key) :int
  (context :pointer) (file :string) (type :int))

(cffi:defcfun ("SSL_CTX_check_private_key" %check-private-key) :int (context :pointer))

(cffi:defcfun ("SSL_CTX_get0_certificate" %context-certificate) :pointer (context :pointer))

(cffi:defcfun ("SSL_CTX_set_verify" %set-verification) :void
  (context :pointer) (mode :int) (callback :pointer))

(cffi:defcfun ("SSL_CTX_load_verify_locations" %load-authorities) :int
  (context :pointer) (file :string) (directory :pointer))

(cffi:defcfun ("SSL_load_client_CA_file" %read-authority-names) :pointer (file :string))

(cffi:defcfun ("SSL_CTX_set_client_CA_list" %set-authority-names) :void
  (context :pointer) (names :pointer))

(cffi:defcfun ("OPENSSL_sk_num" %stack-count) :int (stack :pointer))

(cffi:defcfun ("OPENSSL_sk_value" %stack-element) :pointer (stack :pointer) (index :int))

(cffi:defcfun ("X509_check_host" %check-host) :int
  (certificate :pointer) (name :pointer) (length :size) (flags :unsigned-int) (found :pointer))

(cffi:defcfun ("X509_check_issued" %check-issued) :int (issuer :pointer) (subject :pointer))

(cffi:defcfun ("X509_get0_notBefore" %certificate-begin) :pointer (certificate :pointer))

(cffi:defcfun ("X509_get0_notAfter" %certificate-end) :pointer (certificate :pointer))

(cffi:defcfun ("X509_cmp_current_time" %compare-with-now) :int (time :pointer))

(cffi:defcfun ("ASN1_TIME_to_tm" %broken-down-time) :int (time :pointer) (result :pointer))

(defun certificate-chain (context)
  "The certificates that CONTEXT, an SSL_CTX, sends, the server's own first; a list of pointers to
X509."
  (cffi:with-foreign-object (chain :pointer)
    (setf (cffi:mem-ref chain :pointer) (cffi:null-pointer))
    (control-context context +control-chain+ 0 chain)
    (let ((stack (cffi:mem-ref chain :pointer)))
      (cons (%context-certificate context)
            (unless (cffi:null-pointer-p stack)
              (loop for index below (%stack-count stack)
                    collect (%stack-element stack index)))))))

;;; Random octets and digests

(cffi:defcfun ("RAND_bytes" %random-octets) :int (octets :pointer) (count :int))

(cffi:defcfun ("SHA256" %sha256) :pointer (octets :pointer) (count :size) (digest :pointer))

(defun copy-out (octets pointer)
  "Copies OCTETS, a vector, to the foreign memory at POINTER."
  (loop for octet across octets
        for index from 0
        do (setf (cffi:mem-aref pointer :uint8 index) octet)))

(defun copy-in (pointer count)
  "The COUNT octets at POINTER."
  (let ((octets (make-octets count)))
    (dotimes (index count octets)
      (setf (aref octets index) (cffi:mem-aref pointer :uint8 index)))))

(defun random-octets (count)
  "A vector of COUNT unpredictable octets."
  (cffi:with-foreign-object (pointer :uint8 count)
    (unless (= 1 (%random-octets pointer count))
      (error "OpenSSL has no random octets."))
    (copy-in pointer count)))

(defun digest-of (octets)
  "The SHA-256 digest of OCTETS, 32 octets."
  (cffi:with-foreign-objects ((pointer :uint8 (max 1 (length octets))) (digest :uint8 32))
    (copy-out octets pointer)
    (%sha256 pointer (length octets) digest)
    (copy-in digest 32)))

;;; Errors.  OpenSSL keeps a queue of errors for each thread.  A call that finds an error of an
;;; earlier call there would take it for its own; see SSL_get_error(3).

(cffi:defcfun ("ERR_clear_error" %clear-errors) :void)

(cffi:defcfun ("ERR_get_error" %next-error) :unsigned-long)

(cffi:defcfun ("ERR_reason_error_string" %reason-of-error) :string (code :unsigned-long))

(cffi:defcfun ("ERR_error_string_n" %describe-error) :void
  (code :unsigned-long) (text :pointer) (length :size))

(defun error-words (code)
  "OpenSSL's text, a string, for the error CODE; its numbers if there is no text."
  (or (%reason-of-error code)
      (cffi:with-foreign-object (text :char 256)
        (%describe-error code text 256)
        (cffi:foreign-string-to-lisp text))))

(defun take-error ()
  "OpenSSL's text for the first error of this thread, or NIL.  Clears all errors of this thread."
  (let ((code (%next-error)))
    (%clear-errors)
    (unless (zerop code)
      (error-words code))))
