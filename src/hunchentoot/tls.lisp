(in-package #:hunchentoot-recycling-taskmaster)

;;;; Acceptors that speak TLS.  What their connections are made of, certificates, keys and settings,
;;;; is read once, when the acceptor starts, and again by RELOAD-CERTIFICATES.  When the instance is
;;;; made it is read, too, to tell mistakes: but an image may be saved with the instance, so nothing
;;;; of that is kept.

(defclass parallel-ssl-acceptor (parallel-acceptor hunchentoot:ssl-acceptor)
  ((ssl-certificates :initarg :ssl-certificates :initform '())
   (ssl-minimum-protocol :initarg :ssl-minimum-protocol)
   (ssl-ciphers :initarg :ssl-ciphers :initform nil)
   (ssl-client-ca-file :initarg :ssl-client-ca-file :initform nil)
   (ssl-verify-client :initarg :ssl-verify-client :initform nil)
   (ssl-kernel-tls :initarg :ssl-kernel-tls :initform nil)
   (ssl-ticket-key-files :initarg :ssl-ticket-key-files :initform '())
   (given-files :initform '() :accessor given-files
                :documentation "The arguments that name files, a plist, with links not followed:
where a HTTP connection leads may be another place when certificates are reloaded.")
   (tls-context :initform nil :accessor acceptor-tls-context
                :documentation "What connections are made of that come from now on; NIL before the
first start."))
  (:default-initargs
   :ssl-minimum-protocol :tls-1.2)
  (:documentation "HUNCHENTOOT:SSL-ACCEPTOR on recycled threads.  Files are pathname designators.

  :SSL-CERTIFICATE-FILE     required: a PEM file with the server's certificate, and after it those of
                            who issued it, which are sent, too
  :SSL-PRIVATEKEY-FILE      required: a PEM file with the certificate's private key
  :SSL-PRIVATEKEY-PASSWORD  the key's password, a string
  :SSL-CERTIFICATES         for further names: a list of lists of such a certificate file, a key file
                            and optionally a password.  A client that asks for a name (RFC 6066,
                            section 3) gets the first certificate with that name, or else the first
                            with a wildcard for it, or else that of :SSL-CERTIFICATE-FILE
  :SSL-MINIMUM-PROTOCOL     :TLS-1.2, the default, or :TLS-1.3
  :SSL-CIPHERS              a string of names as OpenSSL has them, see ciphers(1), with colons between.
                            Those that begin with TLS_ are for TLS 1.3.  The default ciphers of each
                            protocol that no name is for have forward secrecy and authenticated
                            encryption
  :SSL-CLIENT-CA-FILE       a PEM file with the certificates of who issues those of clients
  :SSL-VERIFY-CLIENT        :REQUIRED, the default with :SSL-CLIENT-CA-FILE: clients must have a
                            certificate from one of these; :OPTIONAL: or none; :REQUEST: they are asked
                            for one, and it is taken unverified; NIL, the default otherwise: they are
                            not asked
  :SSL-TICKET-KEY-FILES     a list of files of 80 random octets, by which clients resume sessions (RFC
                            8446, section 2.2): tickets are made by the first, and taken by any.
                            Processes with the same files resume each other's sessions.  By default a
                            random key, made at each start, and replaced daily
  :SSL-KERNEL-TLS           true: where kernel and library can do that, the kernel encrypts, and files are
                            sent without a copy; NIL by default

All files are read when the instance is made, and the names among them must be of something that can
be served; they are read again at each start, by RELOAD-CERTIFICATES, and where
REINITIALIZE-INSTANCE is given one of these arguments.

Signals HUNCHENTOOT:PARAMETER-ERROR, with the name of the argument and the file, when a file is
missing, is no PEM file, has no certificate or no private key; when a key belongs to another
certificate; when the password is wrong or missing; when a cipher is unknown.  Warns of certificates
that have expired or are not valid yet, and of a file whose certificates are out of order."))

(defclass parallel-easy-ssl-acceptor (parallel-ssl-acceptor hunchentoot:easy-ssl-acceptor)
  ()
  (:documentation "HUNCHENTOOT:EASY-SSL-ACCEPTOR on recycled threads; see
PARALLEL-SSL-ACCEPTOR for its initargs and errors."))

;;; Settings

(defun current-tls-setting (acceptor name)
  "What the argument NAME of ACCEPTOR is now."
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
  "All settings of ACCEPTOR, where those in INITARGS come first, as a plist."
  (loop for name in *tls-arguments*
        for value = (getf initargs name initargs)
        collect name
        collect (if (eq value initargs) (current-tls-setting acceptor name) value)))

(defun name-where-links-lead (file)
  "The name, a string, of what FILE leads to; its own when that is gone, as while somebody replaces
it."
  (namestring (or (ignore-errors (truename file)) file)))

(defun note-given-files (acceptor initargs)
  "Remembers the files of ACCEPTOR in INITARGS as they were given, and tells of them by the names
where links lead, as Hunchentoot does."
  (loop for name in '(:ssl-certificate-file :ssl-privatekey-file)
        for file = (getf initargs name)
        when file
          do (setf (getf (given-files acceptor) name) (absolute-file file)))
  (with-slots (ssl-certificates ssl-client-ca-file ssl-ticket-key-files) acceptor
    (setf ssl-certificates (loop for (certificate key . password) in ssl-certificates
                                 collect (list* (absolute-file certificate) (absolute-file key)
                                                password))
          ssl-client-ca-file (and ssl-client-ca-file (absolute-file ssl-client-ca-file))
          ssl-ticket-key-files (mapcar #'absolute-file ssl-ticket-key-files)))
  (set-ssl-files acceptor
                 (name-where-links-lead (current-tls-setting acceptor :ssl-certificate-file))
                 (name-where-links-lead (current-tls-setting acceptor :ssl-privatekey-file))))

(defun warn-of-certificates (warnings)
  (dolist (warning warnings)
    (warn "~A" warning)))

(defmethod initialize-instance :before ((acceptor parallel-ssl-acceptor) &rest initargs)
  (warn-of-certificates
   (with-parameter-errors
     (check-argument-types initargs *tls-argument-types*)
     (nth-value 1 (context-of-settings (loop for name in *tls-arguments*
                                             collect name
                                             collect (getf initargs name))
                                       '())))))

(defmethod initialize-instance :after ((acceptor parallel-ssl-acceptor) &rest initargs)
  (note-given-files acceptor initargs))

;;; Contexts

(defun new-tls-context (acceptor initargs)
  "A context for ACCEPTOR with its settings and INITARGS, that resumes the sessions of the one it
has; and warnings."
  (let ((old (acceptor-tls-context acceptor)))
    (with-parameter-errors
      (context-of-settings (tls-settings acceptor initargs)
                           (and old (tls-context-ticket-keys old))))))

(defun take-tls-context (acceptor context)
  "Has connections of ACCEPTOR that come from now on made of CONTEXT; others keep what they have."
  (set-published (acceptor-tls-context acceptor) context))

(defmethod reinitialize-instance :around ((acceptor parallel-ssl-acceptor) &rest initargs)
  (with-parameter-errors
    (check-argument-types initargs *tls-argument-types*))
  (if (get-properties initargs *tls-arguments*)
      (multiple-value-bind (context warnings) (new-tls-context acceptor initargs)
        (prog1 (call-next-method)
          (note-given-files acceptor initargs)
          (take-tls-context acceptor context)
          (warn-of-certificates warnings)))
      (call-next-method)))

(defgeneric reload-certificates (acceptor)
  (:documentation "Reads all files of ACCEPTOR, a PARALLEL-SSL-ACCEPTOR, anew, links followed anew,
and returns ACCEPTOR: certificates, keys, those of who issues certificates of clients, and ticket
keys.  Connections that are made from now on get what was read; no other is affected.  Sessions are
resumed across it.  Signals HUNCHENTOOT:PARAMETER-ERROR, and leaves what was read before in use,
where MAKE-INSTANCE would.")
  (:method ((acceptor parallel-ssl-acceptor))
    (multiple-value-bind (context warnings) (new-tls-context acceptor '())
      (note-given-files acceptor '())
      (take-tls-context acceptor context)
      (warn-of-certificates warnings)
      acceptor)))

(defmethod hunchentoot:start :before ((acceptor parallel-ssl-acceptor))
  (unless (hunchentoot:started-p acceptor)
    (take-tls-context acceptor nil)     ; an image may have been saved with the last one
    (multiple-value-bind (context warnings) (new-tls-context acceptor '())
      (take-tls-context acceptor context)
      (dolist (warning warnings)
        (complain acceptor :warning "~A" warning)))))

(defun tls-context-for-connection (acceptor)
  "The context of ACCEPTOR; a new one where it was started when it was an instance of another
class."
  (or (acceptor-tls-context acceptor)
      (take-tls-context acceptor (values (new-tls-context acceptor '())))))

(defmethod cl+ssl:stream-fd ((stream descriptor-stream))
  ;; So OpenSSL reads and writes the descriptor itself.
  (io-descriptor (stream-io stream)))

(defmethod cl+ssl::ssl-stream-handle ((stream descriptor-stream))
  ;; For HUNCHENTOOT:GET-PEER-SSL-CERTIFICATE and programs that ask the connection's stream.
  (io-tls-handle (stream-io stream)))
