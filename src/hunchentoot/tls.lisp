(in-package #:hunchentoot-recycling-taskmaster)

;;;; Acceptors that speak TLS.  They read certificates, keys and settings once, at a start, and
;;;; again in RELOAD-CERTIFICATES.  MAKE-INSTANCE reads them too, to report mistakes early, but
;;;; keeps nothing, since an image may be saved with the instance.

(defclass parallel-ssl-acceptor (parallel-acceptor hunchentoot:ssl-acceptor)
  ((tls-settings :accessor tls-settings
                 :documentation "The TLS arguments, a plist.")
   (given :initarg :ssl-certificates :initarg :ssl-minimum-protocol :initarg :ssl-ciphers
          :initarg :ssl-client-ca-file :initarg :ssl-verify-client
          :documentation "Nothing: the slot is here for its initargs.")
   (tls-context :initform nil :accessor acceptor-tls-context
                :documentation "The TLS context of new connections; NIL before the first start."))
  (:default-initargs
   :ssl-minimum-protocol :tls-1.2)
  (:documentation "HUNCHENTOOT:SSL-ACCEPTOR on recycled threads; see PARALLEL-ACCEPTOR for further
initargs.  Files are pathname designators.

  :SSL-CERTIFICATE-FILE     required: a PEM file with the server's certificate, followed by those of
                            its issuers, which are sent, too
  :SSL-PRIVATEKEY-FILE      required: a PEM file with the private key of the certificate
  :SSL-PRIVATEKEY-PASSWORD  the password of the key, a string
  :SSL-CERTIFICATES         certificates for further host names: a list of lists of a certificate
                            file, a key file and optionally a password.  A client that asks for a
                            name (RFC 6066, section 3) gets the first certificate with that name,
                            else the first with a matching wildcard, else :SSL-CERTIFICATE-FILE
  :SSL-MINIMUM-PROTOCOL     :TLS-1.2, the default, or :TLS-1.3
  :SSL-CIPHERS              a string of cipher names in OpenSSL's form, see ciphers(1), with colons
                            between, for TLS 1.2.  By default, those with forward secrecy and
                            authenticated encryption
  :SSL-CLIENT-CA-FILE       a PEM file with the certificates of the authorities that issue client
                            certificates
  :SSL-VERIFY-CLIENT        :REQUIRED, the default with :SSL-CLIENT-CA-FILE: clients must have a
                            certificate from one of these authorities; :OPTIONAL: from one of these
                            or none; :REQUEST: clients are asked for a certificate, and it is not
                            verified; NIL, the default otherwise: clients are not asked

All files are read, and checked against each other, when the instance is made, at each start, by
RELOAD-CERTIFICATES, and where REINITIALIZE-INSTANCE gets one of these arguments.

Signals HUNCHENTOOT:PARAMETER-ERROR, with the name of the argument and the file, and OpenSSL's
reason, when OpenSSL cannot use a file; when a key belongs to another certificate; when the password
is wrong or missing; and when OpenSSL knows none of the ciphers."))

(defclass parallel-easy-ssl-acceptor (parallel-ssl-acceptor hunchentoot:easy-ssl-acceptor)
  ()
  (:documentation "HUNCHENTOOT:EASY-SSL-ACCEPTOR on recycled threads; see
PARALLEL-SSL-ACCEPTOR for its initargs and errors."))

;;; Settings

(defmethod shared-initialize :around
    ((acceptor parallel-ssl-acceptor) slot-names &rest initargs)
  "Makes a context before any slot changes, so that a mistake leaves ACCEPTOR as it was."
  (declare (ignore slot-names))
  (flet ((value (slot)
           (and (slot-boundp acceptor slot) (slot-value acceptor slot))))
    (if (get-properties initargs *tls-arguments*)
        (let* ((settings (loop for name in *tls-arguments*
                               collect name
                               collect (getf initargs name (getf (value 'tls-settings) name))))
               (context (with-parameter-errors (context-of-settings settings))))
          (multiple-value-prog1 (call-next-method)
            (setf (tls-settings acceptor) settings)
            (when (value 'tls-context)  ; it was started
              (set-published (acceptor-tls-context acceptor) context))))
        (call-next-method))))

(defun reload-certificates (acceptor)
  "Reads all files of ACCEPTOR, a PARALLEL-SSL-ACCEPTOR, anew: certificates, keys and certificates
of client authorities.  Returns ACCEPTOR.  Only new connections use the new files; they resume no
session of an earlier one.  For a mistake, signals HUNCHENTOOT:PARAMETER-ERROR as MAKE-INSTANCE
does, and keeps the old files in use."
  (let ((context (with-parameter-errors (context-of-settings (tls-settings acceptor)))))
    (set-published (acceptor-tls-context acceptor) context))
  acceptor)

(defmethod renew-files :after ((acceptor parallel-ssl-acceptor))
  (reload-certificates acceptor))

(defmethod hunchentoot:start-listening :before ((acceptor parallel-ssl-acceptor))
  (reload-certificates acceptor))

(defmethod handshake-context ((taskmaster recycling-taskmaster))
  (let ((acceptor (hunchentoot:taskmaster-acceptor taskmaster)))
    (and (typep acceptor 'parallel-ssl-acceptor)
         (acceptor-tls-context acceptor))))

(defmethod hunchentoot:initialize-connection-stream ((acceptor parallel-ssl-acceptor) stream)
  "Completes a TLS handshake over STREAM.  Returns a stream that reads and writes the decrypted
octets.  Hunchentoot's method would read certificates and keys anew for each connection."
  (or (and (stream-io stream) stream)   ; which has done the handshake
      (make-tls-stream (acceptor-tls-context acceptor) stream)))

(defmethod cl+ssl::ssl-stream-handle ((stream descriptor-stream))
  ;; For HUNCHENTOOT:GET-PEER-SSL-CERTIFICATE, and programs that use the connection's stream.
  (io-tls-handle (stream-io stream)))

;;; Facts of a request's TLS connection, for its handler

(defun ask-tls (function)
  "The value of FUNCTION, called with the SSL object of the connection of the current request; NIL
where that is not encrypted."
  (let* ((http (and *exchange* (exchange-http *exchange*)))
         (io (and http (http-io (or (http-carrier http) http)))))
    (if (and io (io-tls io))
        (call-with-tls-handle (io-tls io) function)
        (let ((handle (or (and io (io-tls-handle io))
                          ;; Where a method of the program reads the connection, only the stream is
                          ;; known.
                          (stream-tls-handle (and (boundp '*hunchentoot-stream*)
                                                  *hunchentoot-stream*)))))
          (and handle (funcall function handle))))))

(defun tls-information ()
  "A plist about the TLS connection of the current request; NIL where the connection is plain or
closed.

:PROTOCOL is a string such as \"TLSv1.3\", and :CIPHER one such as \"TLS_AES_128_GCM_SHA256\".
:SERVER-NAME is the host name for which the client asked in the handshake (RFC 6066, section 3), a
string, or NIL; like the header Host, it is the client's claim.  For a resumed session of TLS 1.2 it
is known only where the acceptor has several certificates.  :RESUMED-P is true where the connection
has resumed the session of an earlier one.

Call it only in the thread that serves the request, since it uses the connection."
  (ask-tls #'tls-facts))

(defun client-certificate ()
  "A plist about the certificate that the client of the current request sent in its TLS handshake;
NIL where it sent none, or where the connection is plain.  The acceptor's :SSL-VERIFY-CLIENT has
clients asked for one.

:FAILURE is why the certificate is not trusted, a string in OpenSSL's words, or NIL where it is
valid, and an authority in :SSL-CLIENT-CA-FILE has issued it: look at it first with
:SSL-VERIFY-CLIENT :REQUEST.  :SUBJECT and :ISSUER are strings such as \"CN=anna,O=Example\" (RFC
2253), and :FINGERPRINT is the SHA-256 hash of it all, 64 hexadecimal digits in lower case.

Call it only in the thread that serves the request, since it uses the connection."
  (ask-tls #'peer-certificate-facts))
