(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; The context of all TLS connections of an acceptor: OpenSSL's SSL_CTX, one for each certificate.
;;;;
;;;; Invariant: an SSL_CTX is freed when its TLS-CONTEXT has become garbage, and never before.  So a
;;;; thread that references the TLS-CONTEXT may use the pointers in it without a lock.  An SSL
;;;; object keeps only its own SSL_CTX alive in OpenSSL, not those of the other certificates.

;;; Keys for session tickets (RFC 5077, section 4), vectors of 80 octets.

(defconstant +ticket-key-octets+ 80)    ; a name of 16, 32 for the MAC, 32 for the cipher

(defparameter *ticket-key-milliseconds* (* 24 60 60 1000)
  "The time, in milliseconds, during which a random key makes tickets.  For the same time after
that, the server still accepts those tickets.")

(defstruct (ticket-keys (:include opaque) (:constructor make-ticket-keys (state))
                        (:copier nil))
  "The keys for session tickets, which successive contexts of one acceptor share."
  ;; One list, so that a change is atomic.  Its first element is the moment of MILLISECONDS when the
  ;; first key was made, if that is a random one, or NIL if keys are not replaced.  The other
  ;; elements are the keys, the one for new tickets first.
  (state '() :type list))

(defun make-random-ticket-keys ()
  "Random keys for tickets, which only this process knows, and which are replaced regularly."
  (make-ticket-keys (list (milliseconds) (random-octets +ticket-key-octets+))))

(defun valid-ticket-keys (ticket-keys)
  "The keys of TICKET-KEYS, a list: the first makes tickets, and all of them decrypt tickets.  If
the first is a random key that is too old, replaces it before."
  (let* ((state (ticket-keys-state ticket-keys))
         (made (first state))
         (now (milliseconds)))
    (when (and made (> (- now made) *ticket-key-milliseconds*))
      (let ((old (and (<= (- now made) (* 2 *ticket-key-milliseconds*))
                      (list (second state)))))
        ;; If another thread is faster, its key stays.
        (compare-and-set (ticket-keys-state ticket-keys) state
                         (list* now (random-octets +ticket-key-octets+) old))))
    (rest (ticket-keys-state ticket-keys))))

(define-record (tls-context (:include opaque)
                            (:constructor %make-tls-context (id handles ciphers ticket-keys)))
  "The certificates, keys and settings of TLS connections; see MAKE-TLS-CONTEXT.  A context never
changes.  The owner of an SSL object keeps the context alive during the handshake, since the context
has the certificates for other names."
  (id 0 :type (integer 1) :read-only t)
  (handles '() :type list :read-only t) ; pointers to SSL_CTX, the default one first
  (ciphers "" :type string :read-only t
              :documentation "The ciphers of a context for TLS 1.2, a string in OpenSSL's format.")
  (ticket-keys nil :read-only t
                   :documentation "The keys of a context for session tickets, an object to pass to
MAKE-TLS-CONTEXT for the next context."))

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
    #+sbcl (sb-ext:finalize context #'finish :dont-save t)
    #-sbcl (trivial-garbage:finalize context #'finish)))

(defun make-tls-stream (context stream)
  "Makes a server's stream of CL+SSL under CONTEXT that encrypts the octets on STREAM; returns it
after the handshake.  Signals CL+SSL's conditions if the handshake fails."
  (cl+ssl:ensure-initialized)           ; else CL+SSL would do so later, and make its own context
  (keeping (context)                    ; for the pointers in it
    (cl+ssl:with-global-context ((tls-context-handle context))
      ;; CL+SSL sets ciphers for each connection; by default those would be its own.
      (cl+ssl:make-ssl-server-stream stream :cipher-list (tls-context-ciphers context)))))
