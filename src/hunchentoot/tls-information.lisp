(in-package #:hunchentoot-recycling-taskmaster)

;;;; What a handler may ask of the TLS connection that its request came over.

(defun current-tls-handle ()
  "The SSL object of the connection of the current request; NIL where that is not encrypted."
  (let* ((http (and *exchange* (exchange-http *exchange*)))
         (io (and http (http-io http))))
    (or (and io (io-tls-handle io))
        ;; Where others read the connection, only the stream is known.
        (stream-tls-handle (handler-stream)))))

(defun tls-information ()
  "What is known of the TLS connection of the current request, a plist; NIL where it came over a
plain one, or the connection is closed.

:PROTOCOL is a string such as \"TLSv1.3\", and :CIPHER one such as \"TLS_AES_128_GCM_SHA256\".
:SERVER-NAME is the host name, a string, that the client has asked for in the handshake (RFC 6066,
section 3), or NIL; it is what the client says, as the header Host is.  Of a session of TLS 1.2 that
was resumed it is known only where the acceptor has several certificates.  :APPLICATION-PROTOCOL is
what was agreed on by ALPN (RFC 7301), a string such as \"http/1.1\", or NIL.  :RESUMED-P is true
where the connection has resumed the session of an earlier one.

To be called in the thread that serves the request, as all that asks the connection."
  (let ((handle (current-tls-handle)))
    (and handle (tls-facts handle))))

(define-record (client-certificate (:include opaque) (:copier nil)
                                   (:constructor make-client-certificate
                                       (octets failure subject issuer serial-number not-before not-after
                                        fingerprint)))
  "The certificate of a client, see the function CLIENT-CERTIFICATE."
  (octets nil :read-only t
   :documentation "All of CERTIFICATE in DER, a vector of octets (RFC 5280).")
  (failure nil :type (or null string) :read-only t
   :documentation "Why CERTIFICATE is not to be trusted, a string in OpenSSL's words; NIL where it
was verified.")
  (subject "" :type string :read-only t
   :documentation "Whose CERTIFICATE is: a name such as \"CN=anna,O=Example\", a string (RFC
2253).")
  (issuer "" :type string :read-only t
   :documentation "Who issued CERTIFICATE: a name, as CLIENT-CERTIFICATE-SUBJECT returns it.")
  (serial-number 0 :type integer :read-only t
   :documentation "The number that its issuer gave to CERTIFICATE, an integer.")
  (not-before nil :type (or null integer) :read-only t
   :documentation "From when on CERTIFICATE is valid, a universal time.")
  (not-after nil :type (or null integer) :read-only t
   :documentation "Until when CERTIFICATE is valid, a universal time.")
  (fingerprint "" :type string :read-only t
   :documentation "What SHA-256 makes of CERTIFICATE, a string of 64 hexadecimal digits in lower
case: the same for the same certificate, and for no other."))

(setf (documentation 'client-certificate-p 'function)
      "True where OBJECT is what CLIENT-CERTIFICATE returns, a CLIENT-CERTIFICATE.")

(defun client-certificate-verified-p (certificate)
  "True where CERTIFICATE was issued by who is trusted by :SSL-CLIENT-CA-FILE, and is valid.  A
client may have shown one that was not verified only where :SSL-VERIFY-CLIENT is :REQUEST."
  (null (client-certificate-failure certificate)))

(defun client-certificate-pem (certificate)
  "CERTIFICATE in PEM (RFC 7468), a string."
  (format nil "-----BEGIN CERTIFICATE-----~%~A~%-----END CERTIFICATE-----~%"
          (string-right-trim '(#\Newline)
                             (cl-base64:usb8-array-to-base64-string
                              (client-certificate-octets certificate) :columns 64))))

(defun client-certificate ()
  "The certificate that the client of the current request has shown in its TLS handshake, a
structure CLIENT-CERTIFICATE; NIL where it has shown none, or speaks no TLS.  Clients are asked for
one by :SSL-VERIFY-CLIENT of the acceptor.  Whether it is to be trusted,
CLIENT-CERTIFICATE-VERIFIED-P tells; what else there is to know of it, the readers of the structure
do.

To be called in the thread that serves the request, as all that asks the connection."
  (let* ((handle (current-tls-handle))
         (facts (and handle (peer-certificate-facts handle))))
    (when facts
      (destructuring-bind (&key octets failure subject issuer serial-number not-before not-after digest)
          facts
        (make-client-certificate octets failure subject issuer serial-number not-before not-after
                                 (format nil "~(~{~2,'0X~}~)" (coerce digest 'list)))))))
