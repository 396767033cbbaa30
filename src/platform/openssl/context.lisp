(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; What all TLS connections of an acceptor have in common: OpenSSL's SSL_CTX, one for each
;;;; certificate.
;;;;
;;;; Invariant: an SSL_CTX is freed when nobody has its structure any more, and never before.  So
;;;; whoever has the structure may use the pointers in it, without a lock.  An SSL object counts as
;;;; a user of the SSL_CTX that it has, for OpenSSL, but of no other.

;;; Keys for session tickets (RFC 5077, section 4), vectors of 80 octets.

(defconstant +ticket-key-octets+ 80)    ; a name of 16, 32 for the MAC, 32 for the cipher

(defparameter *ticket-key-milliseconds* (* 24 60 60 1000)
  "For how long tickets are made with a random key; for as long after that they are still taken.")

(defstruct (ticket-keys (:include opaque) (:constructor make-ticket-keys (state))
                        (:copier nil))
  "What contexts of one acceptor, one after the other, make and take session tickets with."
  ;; One list, so that it changes at once: when the first key, a random one, was made, in
  ;; MILLISECONDS, or NIL where keys are not replaced; then the keys, the one for new tickets first.
  (state '() :type list))

(defun make-random-ticket-keys ()
  "Keys for tickets of which only this process knows, and which are replaced."
  (make-ticket-keys (list (milliseconds) (random-octets +ticket-key-octets+))))

(defun valid-ticket-keys (ticket-keys)
  "The keys of TICKET-KEYS, a list: tickets are made with the first, and taken with any.  A random
one that is too old is replaced before."
  (let* ((state (ticket-keys-state ticket-keys))
         (made (first state))
         (now (milliseconds)))
    (when (and made (> (- now made) *ticket-key-milliseconds*))
      (let ((old (and (<= (- now made) (* 2 *ticket-key-milliseconds*))
                      (list (second state)))))
        ;; Where another thread is faster, its key counts.
        (compare-and-set (ticket-keys-state ticket-keys) state
                         (list* now (random-octets +ticket-key-octets+) old))))
    (rest (ticket-keys-state ticket-keys))))

(define-record (tls-context (:include opaque)
                            (:constructor %make-tls-context (id handles ciphers ticket-keys)))
  "What TLS connections are made of: certificates, keys and settings; see MAKE-TLS-CONTEXT.  It is
not changed any more.  Whoever has an SSL object of it in its handshake keeps the structure, too:
that has the certificates for other names."
  (id 0 :type (integer 1) :read-only t)
  (handles '() :type list :read-only t) ; pointers to SSL_CTX, the default one first
  (ciphers "" :type string :read-only t
              :documentation "The ciphers for TLS 1.2 of a context, a string as OpenSSL has them.")
  (ticket-keys nil :read-only t
                   :documentation "What a context makes and takes session tickets with; for
MAKE-TLS-CONTEXT of the one that succeeds it."))

(defun tls-context-handle (context)
  "OpenSSL's SSL_CTX for a new connection under CONTEXT, a foreign pointer that may be used as long
as somebody has CONTEXT."
  (first (tls-context-handles context)))

;;; Callbacks find the structure by a number that each SSL_CTX of it has.

(defconstant +application-data+ 0)      ; the index that OpenSSL leaves to applications

(defvar *tls-contexts* '()
  "An alist from numbers of contexts to weak pointers to them.")

(defvar *last-tls-context* 0
  "The highest number of a context.")

(defvar *tls-contexts-lock* (bt:make-lock "TLS contexts")
  "Held while these are changed.")

(defun new-context-id ()
  (with-lock-briefly (*tls-contexts-lock*)
    (incf *last-tls-context*)))

(defun make-findable (context)
  "Lets callbacks find CONTEXT, as long as somebody has it."
  (with-lock-briefly (*tls-contexts-lock*)
    (set-published *tls-contexts*
             (acons (tls-context-id context) (trivial-garbage:make-weak-pointer context)
                    (remove-if-not #'trivial-garbage:weak-pointer-value *tls-contexts* :key #'cdr)))))

(defun context-of (handle)
  "The context of HANDLE, a pointer to an SSL object; NIL where nobody has it any more."
  (let ((entry (assoc (cffi:pointer-address
                       (%context-data (%context-of-handle handle) +application-data+))
                      *tls-contexts*)))
    (and entry (trivial-garbage:weak-pointer-value (cdr entry)))))

(defun free-contexts (handles)
  "Frees HANDLES, pointers to SSL_CTX, as far as no SSL object uses them."
  (uninterruptibly
    (mapc #'%free-context handles)))

(defun free-when-forgotten (context handles)
  "Has HANDLES freed when nobody has CONTEXT any more."
  (flet ((finish () (free-contexts handles)))
    ;; An image that is saved has the structure still, but no SSL_CTX behind it.
    #+sbcl (sb-ext:finalize context #'finish :dont-save t)
    #-sbcl (trivial-garbage:finalize context #'finish)))

(defun make-tls-stream (context stream)
  "A stream of CL+SSL's for a server under CONTEXT, by which octets on STREAM are encrypted, after
the handshake.  Signals what CL+SSL does when that fails."
  (cl+ssl:ensure-initialized)           ; or it would do so now, and make a context of its own
  (keeping (context)                    ; it has pointers that are used
    (cl+ssl:with-global-context ((tls-context-handle context))
      ;; It sets ciphers for each connection: its own, if it is not given any.
      (cl+ssl:make-ssl-server-stream stream :cipher-list (tls-context-ciphers context)))))
