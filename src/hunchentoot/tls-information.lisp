(in-package #:hunchentoot-recycling-taskmaster)

;;;; Facts of a request's TLS connection, for its handler.

(defun current-tls-handle ()
  "The SSL object of the connection of the current request; NIL where that is not encrypted."
  (let* ((http (and *exchange* (exchange-http *exchange*)))
         (io (and http (http-io http))))
    (or (and io (io-tls-handle io))
        ;; Where a method of the program reads the connection, only the stream is known.
        (stream-tls-handle (and (boundp '*hunchentoot-stream*) *hunchentoot-stream*)))))

(defun tls-information ()
  "A plist about the TLS connection of the current request; NIL where the connection is plain or
closed.

:PROTOCOL is a string such as \"TLSv1.3\", and :CIPHER one such as \"TLS_AES_128_GCM_SHA256\".
:SERVER-NAME is the host name for which the client asked in the handshake (RFC 6066, section 3), a
string, or NIL; like the header Host, it is the client's claim.  For a resumed session of TLS 1.2 it
is known only where the acceptor has several certificates.  :APPLICATION-PROTOCOL is the protocol
that ALPN selected (RFC 7301), a string such as \"http/1.1\", or NIL.  :RESUMED-P is true where the
connection has resumed the session of an earlier one.

Call it only in the thread that serves the request, since it uses the connection."
  (let ((handle (current-tls-handle)))
    (and handle (tls-facts handle))))

(defstruct (client-certificate (:include opaque) (:copier nil)
                               (:constructor make-client-certificate
                                   (octets failure subject issuer serial-number not-before
                                    not-after fingerprint)))
  "The certificate of a client, see the function CLIENT-CERTIFICATE."
  (octets nil :read-only t)
  (failure nil :type (or null string) :read-only t)
  (subject "" :type string :read-only t)
  (issuer "" :type string :read-only t)
  (serial-number 0 :type integer :read-only t)
  (not-before nil :type (or null integer) :read-only t)
  (not-after nil :type (or null integer) :read-only t)
  (fingerprint "" :type string :read-only t))

(loop for (name text)
        in '((client-certificate-p
              "True when OBJECT is a CLIENT-CERTIFICATE, see the function of that name.")
             (client-certificate-octets "All of CERTIFICATE in DER, a vector of octets (RFC 5280).")
             (client-certificate-failure
              "Why CERTIFICATE is not trusted, a string in OpenSSL's words; NIL where it is.")
             (client-certificate-subject
              "The owner of CERTIFICATE, a string such as \"CN=anna,O=Example\" (RFC 2253).")
             (client-certificate-issuer
              "The issuer of CERTIFICATE, in the form of CLIENT-CERTIFICATE-SUBJECT.")
             (client-certificate-serial-number
              "The number that its issuer gave to CERTIFICATE, an integer.")
             (client-certificate-not-before
              "The time from which CERTIFICATE is valid, a universal time.")
             (client-certificate-not-after
              "The time until which CERTIFICATE is valid, a universal time.")
             (client-certificate-fingerprint
              "The SHA-256 hash of CERTIFICATE, a string of 64 hexadecimal digits in lower case."))
      do (setf (documentation name 'function) text))

(defun client-certificate-verified-p (certificate)
  "True when CERTIFICATE is valid and was issued by an authority in :SSL-CLIENT-CA-FILE.  Only with
:SSL-VERIFY-CLIENT :REQUEST can a client have an unverified certificate."
  (null (client-certificate-failure certificate)))

(defun client-certificate-pem (certificate)
  "CERTIFICATE in PEM (RFC 7468), a string."
  (format nil "-----BEGIN CERTIFICATE-----~%~A~%-----END CERTIFICATE-----~%"
          (string-right-trim '(#\Newline)
                             (cl-base64:usb8-array-to-base64-string
                              (client-certificate-octets certificate) :columns 64))))

(defun client-certificate ()
  "The certificate that the client of the current request sent in its TLS handshake, a structure
CLIENT-CERTIFICATE; NIL where it sent none, or where the connection is plain.  The acceptor's
:SSL-VERIFY-CLIENT has clients asked for one.  CLIENT-CERTIFICATE-VERIFIED-P tells whether it can be
trusted.

Call it only in the thread that serves the request, since it uses the connection."
  (let* ((handle (current-tls-handle))
         (facts (and handle (peer-certificate-facts handle))))
    (when facts
      (destructuring-bind (&key octets failure subject issuer serial-number not-before not-after
                             digest)
          facts
        (make-client-certificate octets failure subject issuer serial-number not-before not-after
                                 (format nil "~(~{~2,'0X~}~)" (coerce digest 'list)))))))
