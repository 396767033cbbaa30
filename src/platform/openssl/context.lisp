(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; The context of all TLS connections of an acceptor: OpenSSL's SSL_CTX, one for each certificate.
;;;;
;;;; Invariant: an SSL_CTX is freed when its TLS-CONTEXT has become garbage, and never before.  So a
;;;; thread that references the TLS-CONTEXT may use the pointers in it without a lock.  An SSL
;;;; object keeps only its own SSL_CTX alive in OpenSSL, not those of the other certificates.

(defstruct (tls-context (:include opaque)
                        (:constructor %make-tls-context (id handles ciphers ticket-key)))
  "The certificates, keys and settings of TLS connections; see MAKE-TLS-CONTEXT.  A context never
changes.  The owner of an SSL object keeps the context alive during the handshake, since the context
has the certificates for other names."
  (id 0 :type (integer 1) :read-only t)
  (handles '() :type list :read-only t) ; pointers to SSL_CTX, the default one first
  ;; The ciphers of a context for TLS 1.2, a string in OpenSSL's format.
  (ciphers "" :type string :read-only t)
  ;; The key of a context for session tickets, octets to pass to MAKE-TLS-CONTEXT for the next
  ;; context.
  (ticket-key nil :read-only t))

(defun tls-context-handle (context)
  "OpenSSL's SSL_CTX for a new connection under CONTEXT, a foreign pointer.  It is valid as long as
CONTEXT is not garbage."
  (first (tls-context-handles context)))

;;; Each SSL_CTX has the number of its TLS-CONTEXT, by which callbacks find the TLS-CONTEXT.

(defconstant +application-data+ 0)      ; the index that OpenSSL leaves to applications

(defvar *tls-contexts* '()
  "An alist from numbers of contexts to weak pointers to them.")

(defvar *last-tls-context* 0
  "The highest number of a context.")

(defvar *tls-contexts-lock* (bt:make-lock "TLS contexts")
  "Guards changes of the two variables above.")

(defun new-context-id ()
  (with-lock-briefly (*tls-contexts-lock*)
    (incf *last-tls-context*)))

(defun make-findable (context)
  "Lets callbacks find CONTEXT until it is garbage."
  (with-lock-briefly (*tls-contexts-lock*)
    (set-published *tls-contexts*
                   (acons (tls-context-id context) (trivial-garbage:make-weak-pointer context)
                          (remove-if-not #'trivial-garbage:weak-pointer-value *tls-contexts*
                                         :key #'cdr)))))

(defun context-of (handle)
  "The context of HANDLE, a pointer to an SSL object; NIL if the context was garbage."
  (let ((entry (assoc (cffi:pointer-address
                       (%context-data (%context-of-handle handle) +application-data+))
                      *tls-contexts*)))
    (and entry (trivial-garbage:weak-pointer-value (cdr entry)))))

(defun free-contexts (handles)
  "Frees HANDLES, pointers to SSL_CTX.  OpenSSL keeps those that SSL objects still use."
  (uninterruptibly
    (mapc #'%free-context handles)))

(defun free-when-forgotten (context handles)
  "Frees HANDLES when CONTEXT has become garbage."
  (flet ((finish () (free-contexts handles)))
    ;; A saved image still has the structure, but the SSL_CTX are gone.
    #+sbcl (call-when-forgotten context #'finish)
    #-sbcl (trivial-garbage:finalize context #'finish)))

(defun make-tls-stream (context stream)
  "Makes a server's stream of CL+SSL under CONTEXT that encrypts the octets on STREAM; returns it
after the handshake.  Signals CL+SSL's conditions if the handshake fails."
  (cl+ssl:ensure-initialized)           ; else CL+SSL would do so later, and make its own context
  (keeping (context)                    ; for the pointers in it
    (cl+ssl:with-global-context ((tls-context-handle context))
      ;; CL+SSL sets ciphers for each connection; by default those would be its own.
      (cl+ssl:make-ssl-server-stream stream :cipher-list (tls-context-ciphers context)))))
