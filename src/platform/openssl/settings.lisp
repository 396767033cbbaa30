(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; The making of contexts: protocols, ciphers, tickets, and then the certificates.

;;; Protocols and behaviour

(defconstant +context-options+
  (logior (ash 1 17)                    ; SSL_OP_NO_COMPRESSION
          (ash 1 21)                    ; SSL_OP_PRIORITIZE_CHACHA: if the client prefers that
          (ash 1 22)                    ; SSL_OP_CIPHER_SERVER_PREFERENCE
          (ash 1 30)))                  ; SSL_OP_NO_RENEGOTIATION

(defconstant +tls-modes+
  (logior 1                             ; SSL_MODE_ENABLE_PARTIAL_WRITE
          2                             ; SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER
          16)                           ; SSL_MODE_RELEASE_BUFFERS
  "The modes of OpenSSL; see SSL_CTX_set_mode(3).  OpenSSL writes one record at a time.  It accepts
the rest of a write from another address, since the garbage collector moves octets.  It frees empty
buffers.")

;;; Ciphers

(defparameter *default-tls-ciphers*
  (format nil "~{~A~^:~}"
          '("ECDHE-ECDSA-AES128-GCM-SHA256" "ECDHE-RSA-AES128-GCM-SHA256"
            "ECDHE-ECDSA-AES256-GCM-SHA384" "ECDHE-RSA-AES256-GCM-SHA384"
            "ECDHE-ECDSA-CHACHA20-POLY1305" "ECDHE-RSA-CHACHA20-POLY1305"))
  "The ciphers for TLS 1.2: those with forward secrecy and authenticated encryption (RFC 9325,
section 4.2).")

(defparameter *default-tls-cipher-suites*
  "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256"
  "The ciphers for TLS 1.3 (RFC 8446, section 9.1).")

;;; Sessions

(defun session-id-context (verify-client client-ca-file)
  "The session ID context, octets; see SSL_CTX_set_session_id_context(3).  It depends on the way
clients are verified, so that a client that was verified in another way cannot resume its session."
  (digest-of (concatenate 'octets
                          (map 'octets #'char-code (format nil "~A" verify-client))
                          (and client-ca-file (file-octets :client-ca-file client-ca-file)))))

(defun file-octets (subject file)
  "The octets of FILE.  Signals a TLS-MISTAKE about SUBJECT if it cannot be read."
  (handler-case (with-open-file (stream file :element-type 'octet)
                  (let ((octets (make-octets (file-length stream))))
                    (subseq octets 0 (read-sequence octets stream))))
    (error (condition)
      (tls-mistaken subject nil (princ-to-string file) "cannot be read (~A)" condition))))

(defconstant +ticket-key-octets+ 80)    ; a name of 16, 32 for the MAC, 32 for the cipher

(defun read-ticket-key (file)
  "The key in FILE, 80 octets."
  (let ((octets (file-octets :ticket-key-file file)))
    (unless (= +ticket-key-octets+ (length octets))
      (tls-mistaken :ticket-key-file nil (princ-to-string file) "has ~D octets in place of ~D"
                    (length octets) +ticket-key-octets+))
    octets))

;;; The whole context

(defun new-context (id)
  "A new SSL_CTX, from which callbacks find the context with ID."
  (let ((context (%new-context (%server-method))))
    (when (cffi:null-pointer-p context)
      (error "OpenSSL cannot make a context: ~A." (why-it-failed)))
    (%set-context-data context +application-data+ (cffi:make-pointer id))
    context))

(defun prepare-context (context certificate index
                        &key minimum-protocol ciphers cipher-suites client-ca-file verify-client
                          read-ahead session-id-context ticket-key)
  "Gives CONTEXT, an SSL_CTX, all settings, and CERTIFICATE, the one at INDEX; returns a list of
warnings."
  (control-context context +control-minimum-protocol+
                   (ecase minimum-protocol (:tls-1.2 +tls-1.2+) (:tls-1.3 +tls-1.3+)))
  (%set-context-options context +context-options+)
  (control-context context +control-mode+ +tls-modes+)
  (control-context context +control-read-ahead+ (if read-ahead 1 0))
  (control-context context +control-session-cache+ 0)
  (%set-protocol-selector context (cffi:callback choose-protocol) (cffi:null-pointer))
  (flet ((set-names (names setter)
           (unless (= 1 (funcall setter context names))
             (tls-mistaken :ciphers nil names "cannot be used (~A)" (why-it-failed)))))
    (set-names cipher-suites #'%set-context-cipher-suites)
    (set-names ciphers #'%set-context-ciphers))
  (cffi:with-foreign-object (pointer :uint8 (length session-id-context))
    (copy-out session-id-context pointer)
    (%set-session-id-context context pointer (length session-id-context)))
  (cffi:with-foreign-object (pointer :uint8 +ticket-key-octets+) ; RFC 5077, section 4
    (copy-out ticket-key pointer)
    (control-context context +control-ticket-keys+ +ticket-key-octets+ pointer))
  (when client-ca-file
    (load-authorities context client-ca-file))
  (set-verification context verify-client)
  (destructuring-bind (certificate-file key-file &optional password) certificate
    (load-pair context index certificate-file key-file password)
    (certificate-warnings context certificate-file)))

(defun build-context (certificates ciphers ticket-key settings)
  "The context for CERTIFICATES with CIPHERS, TICKET-KEY and SETTINGS; and a list of warnings."
  (let ((id (new-context-id)) (handles '()) (complete nil))
    (unwind-protect
         (let ((warnings
                 (loop for certificate in certificates
                       for index from 0
                       do (push (new-context id) handles)
                       append (apply #'prepare-context (first handles) certificate index
                                     :ciphers ciphers :ticket-key ticket-key settings)))
               (context (%make-tls-context id (reverse handles) ciphers ticket-key)))
           (when (rest handles)         ; with one certificate, there is no choice
             (dolist (handle handles)
               (%context-callback-control handle +control-name-callback+
                                          (cffi:callback choose-certificate))))
           (free-when-forgotten context handles)
           (setf complete t)
           (make-findable context)
           (values context warnings))
      (%clear-errors)
      (unless complete
        (free-contexts handles)))))

(defun make-tls-context (certificates
                         &key (minimum-protocol :tls-1.2) ciphers cipher-suites client-ca-file
                           verify-client ticket-key ticket-key-file (read-ahead t))
  "Returns a TLS-CONTEXT for a server, and a list of warnings, strings, about certificates that
clients will not trust: one that has expired or is not valid yet, or a chain out of order.

CERTIFICATES is a list of lists: a certificate file and a file with its private key, both pathname
designators of PEM files, and the key's password, a string or NIL.  After the server's own
certificate, its file may have the certificates of its issuers, which are sent as well.  A client
gets the certificate that names the host for which it asks, or else the first one (RFC 6066, section
3).

MINIMUM-PROTOCOL: the oldest version that the server speaks, :TLS-1.2 or :TLS-1.3.

CIPHERS: the ciphers for TLS 1.2, a string in OpenSSL's format, see ciphers(1); by default those
with forward secrecy and authenticated encryption.  CIPHER-SUITES: likewise, for TLS 1.3.

VERIFY-CLIENT: :REQUIRED if each client must have a valid certificate; :OPTIONAL if a client may
have a valid one or none; :REQUEST if the server asks for one, and accepts any or none; NIL if the
server does not ask.  CLIENT-CA-FILE: a PEM file with the certificates of the issuers of clients'
certificates.

TICKET-KEY-FILE: a file with 80 secret octets, the key for session tickets (RFC 5077).  Processes
with the same file resume each other's sessions.  TICKET-KEY: instead of a file, the key of another
context; see TLS-CONTEXT-TICKET-KEY.  The default is a random key.

READ-AHEAD: false if OpenSSL shall read no more from a socket than the current record.

Signals TLS-MISTAKE."
  (multiple-value-bind (context warnings mistake)
      (uninterruptibly                  ; see session.lisp
        (%clear-errors)
        (handler-case
            (build-context certificates
                           (or ciphers *default-tls-ciphers*)
                           (cond (ticket-key-file (read-ticket-key ticket-key-file))
                                 (ticket-key)
                                 (t (random-octets +ticket-key-octets+)))
                           (list :minimum-protocol minimum-protocol
                                 :cipher-suites (or cipher-suites *default-tls-cipher-suites*)
                                 :client-ca-file client-ca-file
                                 :verify-client verify-client
                                 :session-id-context
                                 (session-id-context verify-client client-ca-file)
                                 :read-ahead read-ahead))
          (tls-mistake (mistake) (values nil '() mistake))))
    (when mistake
      (error mistake))
    (values context warnings)))
