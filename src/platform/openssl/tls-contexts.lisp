(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; The context of all TLS connections of an acceptor: OpenSSL's SSL_CTX, one for each certificate.

(define-condition tls-mistake (recycling-error)
  ((subject :initarg :subject :reader tls-mistake-subject)
   (words :initarg :words :reader tls-mistake-words))
  (:documentation "A setting, a certificate or a key for TLS cannot be used.  It is signalled at the
start, before a client meets the mistake."))

(defun check-openssl (result subject value words)
  "Signals a TLS-MISTAKE about SUBJECT, a keyword of MAKE-TLS-CONTEXT, and VALUE, a string or
pathname, unless RESULT, of OpenSSL, is 1.  WORDS, the end of a sentence, say what it means."
  (unless (= 1 result)
    (error 'tls-mistake :subject subject
                        :words (format nil ", ~S, ~A (~A)" (princ-to-string value) words
                                       (why-it-failed)))))

(defstruct (tls-context (:include opaque)
                        (:constructor %make-tls-context (handles ciphers)))
  "The certificates, keys and settings of TLS connections; see MAKE-TLS-CONTEXT.  A context never
changes.

Invariant: an SSL_CTX is freed when its TLS-CONTEXT has become garbage, and never before.  So a
thread that references the TLS-CONTEXT may use the pointers in it without a lock.  An SSL object
keeps only its own SSL_CTX alive in OpenSSL; so its owner keeps the TLS-CONTEXT alive during the
handshake, which may choose another certificate."
  (handles '() :type list :read-only t) ; pointers to SSL_CTX, the default one first
  (ciphers "" :type string :read-only t)) ; for TLS 1.2, in OpenSSL's format

(defun make-tls-stream (context stream)
  "Makes a server's stream of CL+SSL under CONTEXT that encrypts the octets on STREAM; returns it
after the handshake.  Signals CL+SSL's conditions if the handshake fails."
  (cl+ssl:ensure-initialized)           ; else CL+SSL would do so later, and make its own context
  (prog1 (cl+ssl:with-global-context ((first (tls-context-handles context)))
           ;; CL+SSL sets ciphers for each connection; by default those would be its own.
           (cl+ssl:make-ssl-server-stream stream :cipher-list (tls-context-ciphers context)))
    (keep context)))                    ; for the pointers in it

;;; The callbacks that OpenSSL calls in a handshake.  No callback may exit non-locally, since that
;;; would unwind OpenSSL's frames.

(defmacro define-tls-callback (name arguments failure &body body)
  "Defines the callback NAME with ARGUMENTS.  It returns the value of BODY, an int, or FAILURE if
BODY signals."
  `(cffi:defcallback ,name :int ,arguments
     ,@(mapcar #'first arguments)       ; ECL warns of unused ones, whatever is declared
     (handler-case (progn ,@body)
       (serious-condition () ,failure))))

(define-tls-callback choose-certificate ((handle :pointer) (alert :pointer) (argument :pointer))
    3                                   ; SSL_TLSEXT_ERR_NOACK
  ;; It selects the certificate for the name that the client asks for (RFC 6066, section 3).  A
  ;; certificate with the name itself precedes one with a wildcard (RFC 6125, section 6.4.3).
  (let ((name (openssl :pointer "SSL_get_servername" handle (:int 0)))) ; 0 is the name of a host
    (unless (cffi:null-pointer-p name)
      (loop for flags in '(2 0)         ; X509_CHECK_FLAG_NO_WILDCARDS
              thereis
              (loop for context = (openssl :pointer "SSL_get_SSL_CTX" handle)
                      then (openssl :pointer "SSL_CTX_get_ex_data" context (:int 0))
                    until (cffi:null-pointer-p context)
                    when (= 1 (openssl :int "X509_check_host"
                                       (openssl :pointer "SSL_CTX_get0_certificate" context)
                                       name (:size 0) (:unsigned-int flags)
                                       (cffi:null-pointer)))
                      return (openssl :pointer "SSL_set_SSL_CTX" handle context))))
    0))                                 ; SSL_TLSEXT_ERR_OK

(define-tls-callback choose-protocol
    ((handle :pointer) (chosen :pointer) (chosen-length :pointer) (offered :pointer)
     (length :unsigned-int) (argument :pointer))
    2                                   ; SSL_TLSEXT_ERR_ALERT_FATAL
  ;; If the client offers protocols, it selects HTTP/1.1, or HTTP/2 if ARGUMENT says so (RFC 7301,
  ;; sections 3.2 and 6).  OpenSSL leaves a pointer into the first list, the client's, which
  ;; outlives this call.
  (cffi:with-foreign-string (ours (format nil "~Ch2~Chttp/1.1" ; each after its length
                                          (code-char 2) (code-char 8)))
    (let ((skipped (if (cffi:null-pointer-p argument) 3 0)))
      (if (= 1 (openssl :int "SSL_select_next_proto" chosen chosen-length
                        offered (:unsigned-int length)
                        (cffi:inc-pointer ours skipped) (:unsigned-int (- 12 skipped))))
          0
          2))))

(define-tls-callback accept-any-certificate ((verified :int) (store :pointer))
    0
  ;; The connection still records the failed verification.
  1)

;;; The whole context

(defparameter *default-tls-ciphers*
  "ECDHE+AES128+AESGCM:ECDHE+AES256+AESGCM:ECDHE+CHACHA20"
  "The ciphers for TLS 1.2: those with forward secrecy and authenticated encryption (RFC 9325,
section 4.2).")

(defun name-for-openssl (file)
  "The name of FILE, a pathname designator, for OpenSSL."
  (uiop:native-namestring (merge-pathnames file)))

(defun settle-context (context minimum-protocol ciphers verify-client client-ca-file http2)
  "Gives CONTEXT, an SSL_CTX, what all contexts have, and these settings; see MAKE-TLS-CONTEXT."
  (flet ((control (command number)
           (openssl :long "SSL_CTX_ctrl" context (:int command) (:long number)
                    (cffi:null-pointer))))
    (openssl :unsigned-long "SSL_CTX_set_options" context
             ;; Bits 7, IGNORE_UNEXPECTED_EOF (an answer is to follow); 17, NO_COMPRESSION; 21,
             ;; PRIORITIZE_CHACHA (if the client prefers it); 22, CIPHER_SERVER_PREFERENCE; 30,
             ;; NO_RENEGOTIATION
             (:unsigned-long #x40620080))
    ;; SSL_CTRL_MODE.  OpenSSL writes one record at a time (SSL_MODE_ENABLE_PARTIAL_WRITE).  It
    ;; accepts the rest of a write from another address (ACCEPT_MOVING_WRITE_BUFFER), since the
    ;; garbage collector moves octets.  It frees empty buffers (RELEASE_BUFFERS).
    (control 33 (logior 1 2 16))
    ;; SSL_CTRL_SET_MIN_PROTO_VERSION
    (control 123 (ecase minimum-protocol (:tls-1.2 #x303) (:tls-1.3 #x304)))
    ;; SSL_CTRL_SET_READ_AHEAD: sessions read all octets that are there.  Elsewhere a wait for
    ;; octets on the socket would miss those that OpenSSL has read.
    (control 41 (if (readiness-supported-p) 1 0))
    (control 44 0))                     ; SSL_CTRL_SET_SESS_CACHE_MODE: tickets do
  (openssl :void "SSL_CTX_set_alpn_select_cb" context (cffi:callback choose-protocol)
           (cffi:make-pointer (if (eq t http2) 1 0)))
  (openssl :int "SSL_CTX_set_ciphersuites" context ; for TLS 1.3 (RFC 8446, section 9.1)
           (:string "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256"))
  (check-openssl (openssl :int "SSL_CTX_set_cipher_list" context (:string ciphers))
                 :ssl-ciphers ciphers "cannot be used")
  ;; Certificates of clients.  Tickets need some name of our own then.
  (openssl :int "SSL_CTX_set_session_id_context" context (:string "h") (:unsigned-int 1))
  (when client-ca-file
    (let ((file (name-for-openssl client-ca-file)))
      (check-openssl (openssl :int "SSL_CTX_load_verify_locations" context (:string file)
                              (cffi:null-pointer))
                     :ssl-client-ca-file client-ca-file
                     "has no certificate that OpenSSL can use")
      (openssl :void "SSL_CTX_set_client_CA_list" context
               (openssl :pointer "SSL_load_client_CA_file" (:string file)))))
  (when verify-client
    (openssl :void "SSL_CTX_set_verify" context
             (:int (if (eq :required verify-client) 3 1)) ; SSL_VERIFY_PEER, ...FAIL_IF_NO_PEER_CERT
             (if (eq :request verify-client)
                 (cffi:callback accept-any-certificate)
                 (cffi:null-pointer)))))

(defun load-pair (context subject certificate-file key-file password)
  "Loads into CONTEXT, an SSL_CTX, the private key in KEY-FILE, with PASSWORD, and the certificates
in CERTIFICATE-FILE: the server's own, and then those of its issuers.  The subject of a mistake is
SUBJECT; or, for NIL, the argument for the first of these files."
  (cffi:with-foreign-string (text (or password "")) ; else OpenSSL would ask at the terminal
    (openssl :void "SSL_CTX_set_default_passwd_cb_userdata" context text)
    ;; The key comes first: OpenSSL drops a key that does not match the certificate.
    (check-openssl (openssl :int "SSL_CTX_use_PrivateKey_file" context
                            (:string (name-for-openssl key-file)) (:int 1)) ; SSL_FILETYPE_PEM
                   (or subject :ssl-privatekey-file) key-file
                   (format nil "has no private key that OpenSSL reads ~:[without a~;with its~] ~
                                password"
                           password))
    (check-openssl (openssl :int "SSL_CTX_use_certificate_chain_file" context
                            (:string (name-for-openssl certificate-file)))
                   (or subject :ssl-certificate-file) certificate-file
                   "has no certificate that OpenSSL can use")
    (openssl :void "SSL_CTX_set_default_passwd_cb_userdata" context (cffi:null-pointer)))
  (check-openssl (openssl :int "SSL_CTX_check_private_key" context)
                 (or subject :ssl-privatekey-file) key-file
                 (format nil "has another key than the certificate in ~A" certificate-file)))

(defun make-tls-context (&key ssl-certificate-file ssl-privatekey-file ssl-privatekey-password
                           ssl-certificates ssl-minimum-protocol ssl-ciphers
                           ssl-client-ca-file ssl-verify-client http2)
  "Returns a TLS-CONTEXT for a server.

SSL-CERTIFICATE-FILE, SSL-PRIVATEKEY-FILE and SSL-PRIVATEKEY-PASSWORD: a certificate file and a file
with its private key, both pathname designators of PEM files, and the key's password, a string or
NIL.  SSL-CERTIFICATES: a list of lists of the same.  After the server's own certificate, its file
may have the certificates of its issuers, which are sent as well.  A client gets the certificate
that names the host for which it asks, or else the first one (RFC 6066, section 3).

SSL-MINIMUM-PROTOCOL: the oldest version that the server speaks, :TLS-1.2 or :TLS-1.3.

SSL-CIPHERS: the ciphers for TLS 1.2, a string in OpenSSL's format, see ciphers(1); by default those
with forward secrecy and authenticated encryption.

SSL-VERIFY-CLIENT: :REQUIRED if each client must have a valid certificate, the default with
SSL-CLIENT-CA-FILE, a PEM file with the certificates of the issuers of clients' certificates;
:OPTIONAL if a client may have a valid one or none; :REQUEST if the server asks for one, and accepts
any or none; NIL if the server does not ask.

HTTP2: T if it speaks HTTP/2 with clients that want that.

Signals TLS-MISTAKE."
  (let* ((ciphers (or ssl-ciphers *default-tls-ciphers*))
         (handles '())
         (free (lambda ()
                 (uninterruptibly
                   (dolist (handle handles)
                     (openssl :void "SSL_CTX_free" handle))))))
    (uninterruptibly                    ; see tls-sessions.lisp
      (clear-errors)
      (unless-returned
          (loop for (certificate-file key-file password)
                  in (list* (list ssl-certificate-file ssl-privatekey-file ssl-privatekey-password)
                            ssl-certificates)
                for subject = nil then :ssl-certificates
                for handle = (openssl :pointer "SSL_CTX_new"
                                      (openssl :pointer "TLS_server_method"))
                do (when (cffi:null-pointer-p handle)
                     (error "OpenSSL cannot make a context: ~A." (why-it-failed)))
                   (setf handles (append handles (list handle)))
                   (settle-context handle ssl-minimum-protocol ciphers
                                   (or ssl-verify-client (and ssl-client-ca-file :required))
                                   ssl-client-ca-file http2)
                   (load-pair handle subject certificate-file key-file password)
                finally
                   (loop for (handle next) on handles
                         while (rest handles) ; with one certificate, there is no choice
                         do (openssl :long "SSL_CTX_callback_ctrl" handle
                                     (:int 53) ; SSL_CTRL_SET_TLSEXT_SERVERNAME_CB
                                     (cffi:callback choose-certificate))
                            (when next  ; CHOOSE-CERTIFICATE goes from each to the next
                              (openssl :int "SSL_CTX_set_ex_data" handle (:int 0) next)))
                   (let ((context (%make-tls-context handles ciphers)))
                     ;; A saved image still has the structure, but the SSL_CTX are gone.
                     #+sbcl (sb-ext:finalize context free :dont-save t)
                     #-sbcl (trivial-garbage:finalize context free)
                     (clear-errors)
                     (return context)))
        (clear-errors)
        (funcall free)))))
