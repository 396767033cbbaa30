(in-package #:hunchentoot-recycling-taskmaster)

;;;; Acceptors that speak TLS.  They read certificates, keys and settings once, at a start, and
;;;; again in RELOAD-CERTIFICATES.  MAKE-INSTANCE reads them too, to report mistakes early, but
;;;; keeps nothing, since an image may be saved with the instance.

(defclass parallel-ssl-acceptor (parallel-acceptor hunchentoot:ssl-acceptor)
  ((ssl-certificates :initarg :ssl-certificates :initform '())
   (ssl-minimum-protocol :initarg :ssl-minimum-protocol)
   (ssl-ciphers :initarg :ssl-ciphers :initform nil)
   (ssl-client-ca-file :initarg :ssl-client-ca-file :initform nil)
   (ssl-verify-client :initarg :ssl-verify-client :initform nil)
   (ssl-ticket-key-file :initarg :ssl-ticket-key-file :initform nil)
   (given-files :initform '() :accessor given-files
                :documentation "The arguments that name files, a plist.  Links in them are not
resolved, since they may lead to other files when certificates are reloaded.")
   (own-handshakes-p :initform t
                     :documentation "True if, at the last start, the program had no method that may
read before the handshake.")
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
                            between.  Names that begin with TLS_ are for TLS 1.3.  A protocol
                            without a name keeps its defaults, which have forward secrecy and
                            authenticated encryption
  :SSL-CLIENT-CA-FILE       a PEM file with the certificates of the authorities that issue client
                            certificates
  :SSL-VERIFY-CLIENT        :REQUIRED, the default with :SSL-CLIENT-CA-FILE: clients must have a
                            certificate from one of these authorities; :OPTIONAL: from one of these
                            or none; :REQUEST: clients are asked for a certificate, and it is not
                            verified; NIL, the default otherwise: clients are not asked
  :SSL-TICKET-KEY-FILE      a file of 80 random octets, the key of session tickets (RFC 8446,
                            section 2.2).  Processes with the same file resume each other's
                            sessions.  By default, a random key that each start makes

All files are read, and checked against each other, when the instance is made, at each start, by
RELOAD-CERTIFICATES, and where REINITIALIZE-INSTANCE gets one of these arguments.

Signals HUNCHENTOOT:PARAMETER-ERROR, with the name of the argument and the file, and OpenSSL's
reason, when OpenSSL cannot use a file; when a key belongs to another certificate; when the password
is wrong or missing; and when OpenSSL knows none of the ciphers.  Warns of
certificates that have expired or are not valid yet, and of a file whose certificates are out of
order."))

(defclass parallel-easy-ssl-acceptor (parallel-ssl-acceptor hunchentoot:easy-ssl-acceptor)
  ()
  (:documentation "HUNCHENTOOT:EASY-SSL-ACCEPTOR on recycled threads; see
PARALLEL-SSL-ACCEPTOR for its initargs and errors."))

;;; Settings

(defun current-tls-setting (acceptor name)
  "The current value of the argument NAME of ACCEPTOR."
  (case name
    (:ssl-certificate-file
     (getf (given-files acceptor) name (hunchentoot:acceptor-ssl-certificate-file acceptor)))
    (:ssl-privatekey-file
     (getf (given-files acceptor) name (hunchentoot:acceptor-ssl-privatekey-file acceptor)))
    (:ssl-privatekey-password
     (hunchentoot:acceptor-ssl-privatekey-password acceptor))
    (t
     (slot-value acceptor (find-symbol (string name) '#:hunchentoot-recycling-taskmaster)))))

(defun tls-settings (acceptor initargs)
  "A plist of all TLS settings of ACCEPTOR; those in INITARGS take precedence."
  (loop for name in *tls-arguments*
        for value = (getf initargs name initargs)
        collect name
        collect (if (eq value initargs) (current-tls-setting acceptor name) value)))

(defun name-where-links-lead (file)
  "The true name of FILE, a string; its own name where the file is missing, as in the moment in
which it is replaced."
  (namestring (or (ignore-errors (truename file)) file)))

(defun note-given-files (acceptor initargs)
  "Stores the files of ACCEPTOR that INITARGS name, with links not resolved.  The slots that
programs read have the true names, as with Hunchentoot."
  (loop for name in '(:ssl-certificate-file :ssl-privatekey-file)
        for file = (getf initargs name)
        when file
          do (setf (getf (given-files acceptor) name) (absolute-file file)))
  (with-slots (ssl-certificates ssl-client-ca-file ssl-ticket-key-file) acceptor
    (setf ssl-certificates (loop for (certificate key . password) in ssl-certificates
                                 collect (list* (absolute-file certificate) (absolute-file key)
                                                password))
          ssl-client-ca-file (and ssl-client-ca-file (absolute-file ssl-client-ca-file))
          ssl-ticket-key-file (and ssl-ticket-key-file (absolute-file ssl-ticket-key-file))))
  (set-ssl-files acceptor
                 (name-where-links-lead (current-tls-setting acceptor :ssl-certificate-file))
                 (name-where-links-lead (current-tls-setting acceptor :ssl-privatekey-file))))

(defun warn-of-certificates (warnings)
  (dolist (warning warnings)
    (warn "~A" warning)))

(defmethod initialize-instance :before ((acceptor parallel-ssl-acceptor) &rest initargs)
  (warn-of-certificates
   (with-parameter-errors
     (nth-value 1 (context-of-settings (loop for name in *tls-arguments*
                                             collect name
                                             collect (getf initargs name))
                                       nil)))))

(defmethod initialize-instance :after ((acceptor parallel-ssl-acceptor) &rest initargs)
  (note-given-files acceptor initargs))

;;; Contexts

(defun new-tls-context (acceptor initargs)
  "A TLS context for ACCEPTOR with its settings and INITARGS, which resumes sessions of the last
one; and a list of warnings."
  (let ((old (acceptor-tls-context acceptor)))
    (with-parameter-errors
      (context-of-settings (tls-settings acceptor initargs) old))))

(defun take-tls-context (acceptor context)
  "Makes CONTEXT the TLS context of new connections of ACCEPTOR.  Earlier ones keep theirs."
  (set-published (acceptor-tls-context acceptor) context))

(defmethod reinitialize-instance :around ((acceptor parallel-ssl-acceptor) &rest initargs)
  (if (get-properties initargs *tls-arguments*)
      (multiple-value-bind (context warnings) (new-tls-context acceptor initargs)
        (prog1 (call-next-method)
          (note-given-files acceptor initargs)
          (take-tls-context acceptor context)
          (warn-of-certificates warnings)))
      (call-next-method)))

(defgeneric reload-certificates (acceptor)
  (:documentation "Reads all files of ACCEPTOR, a PARALLEL-SSL-ACCEPTOR, anew: certificates, keys,
certificates of client authorities, and the ticket key.  Links are resolved anew.  Returns ACCEPTOR.
Only new connections use the new files.  Sessions of earlier connections can still be resumed.  For
a mistake, signals HUNCHENTOOT:PARAMETER-ERROR as MAKE-INSTANCE does, and keeps the old files in
use.")
  (:method ((acceptor parallel-ssl-acceptor))
    (multiple-value-bind (context warnings) (new-tls-context acceptor '())
      (note-given-files acceptor '())
      (take-tls-context acceptor context)
      (warn-of-certificates warnings)
      acceptor)))

(defmethod renew-files :after ((acceptor parallel-ssl-acceptor))
  (reload-certificates acceptor))

(defmethod hunchentoot:start :before ((acceptor parallel-ssl-acceptor))
  (unless (hunchentoot:started-p acceptor)
    (take-tls-context acceptor nil)     ; the last one may come from a saved image
    (multiple-value-bind (context warnings) (new-tls-context acceptor '())
      (take-tls-context acceptor context)
      (setf (slot-value acceptor 'own-handshakes-p)
            (every (lambda (method) (equal '(:after) (method-qualifiers method)))
                   (methods-of-program #'hunchentoot:initialize-connection-stream acceptor nil)))
      (dolist (warning warnings)
        (complain acceptor :warning "~A" warning)))))

(defun tls-context-for-connection (acceptor)
  "The TLS context of ACCEPTOR; a new one where ACCEPTOR belonged to another class when it was
started."
  (or (acceptor-tls-context acceptor)
      (take-tls-context acceptor (values (new-tls-context acceptor '())))))

(defmethod handshake-context ((taskmaster recycling-taskmaster))
  "The TLS context of the acceptor; NIL where the program has a method that may read before the
handshake, or make a TLS stream of its own."
  (let ((acceptor (hunchentoot:taskmaster-acceptor taskmaster)))
    (and (typep acceptor 'parallel-ssl-acceptor)
         (slot-value acceptor 'own-handshakes-p)
         (tls-context-for-connection acceptor))))

(defmethod hunchentoot:initialize-connection-stream ((acceptor parallel-ssl-acceptor) stream)
  "Completes a TLS handshake over STREAM.  Returns a stream that reads and writes the decrypted
octets.  Hunchentoot's method would read certificates and keys anew for each connection."
  (let ((context (tls-context-for-connection acceptor)))
    (or (encrypted-stream stream context)
        (make-tls-stream context stream))))

(defmethod cl+ssl:stream-fd ((stream descriptor-stream))
  ;; So that OpenSSL reads and writes the descriptor itself.
  (io-descriptor (stream-io stream)))

(defmethod cl+ssl::ssl-stream-handle ((stream descriptor-stream))
  ;; For HUNCHENTOOT:GET-PEER-SSL-CERTIFICATE, and programs that use the connection's stream.
  (io-tls-handle (stream-io stream)))
