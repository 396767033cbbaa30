(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; The callbacks that OpenSSL calls in a handshake.  No callback may exit non-locally, since that
;;;; would unwind OpenSSL's frames.

(defmacro define-tls-callback (name arguments failure documentation &body body)
  "Defines the callback NAME with ARGUMENTS.  It returns the value of BODY, an int, or FAILURE if
BODY signals.  DOCUMENTATION is for readers of the source only."
  (declare (ignore documentation))
  `(cffi:defcallback ,name :int ,arguments
     (declare (ignorable ,@(mapcar #'first arguments)))
     (handler-case (progn ,@body)
       (serious-condition () ,failure))))

(defconstant +answer-taken+ 0)          ; SSL_TLSEXT_ERR_OK
(defconstant +answer-refused+ 2)        ; SSL_TLSEXT_ERR_ALERT_FATAL
(defconstant +answer-ignored+ 3)        ; SSL_TLSEXT_ERR_NOACK

;;; Names

(defconstant +no-wildcards+ 2)          ; X509_CHECK_FLAG_NO_WILDCARDS

(defun context-for-name (handles name)
  "The first of HANDLES, pointers to SSL_CTX, with a certificate for NAME, a C string; NIL for none.
A certificate with the name itself precedes one with a wildcard (RFC 6125, section 6.4.3)."
  (loop for flags in (list +no-wildcards+ 0)
          thereis (find-if (lambda (handle)
                             (= 1 (%check-host (%context-certificate handle) name 0 flags
                                               (cffi:null-pointer))))
                           handles)))

(define-tls-callback choose-certificate ((handle :pointer) (alert :pointer) (argument :pointer))
    +answer-ignored+
    "Selects the certificate for the name that the client asks for (RFC 6066, section 3)."
  (let ((name (%server-name handle 0))  ; 0 is the only kind: a host name
        (context (context-of handle)))
    (when (and context (rest (tls-context-handles context)) (not (cffi:null-pointer-p name)))
      (keeping (context)
        (let ((found (context-for-name (tls-context-handles context) name)))
          (when found
            (%set-context-of-handle handle found)))))
    +answer-taken+))

;;; Protocols

(defparameter *application-protocols*
  (mapcar (lambda (name) (map 'octets #'char-code name)) '("http/1.1" "http/1.0"))
  "The names of the protocols that this server speaks, the preferred one first (RFC 7301, section
6).")

(defun find-protocol (offered length protocol)
  "The index of the first octet of PROTOCOL, octets, in the LENGTH octets at OFFERED, or NIL.
There, each name comes after its length."
  (loop with index = 0
        while (< index length)
        do (let* ((count (cffi:mem-aref offered :uint8 index))
                  (start (1+ index)))
             (setf index (+ start count))
             (when (and (= count (length protocol))
                        (<= index length)
                        (loop for octet across protocol
                              for position from start
                              always (= octet (cffi:mem-aref offered :uint8 position))))
               (return start)))))

(define-tls-callback choose-protocol
    ((handle :pointer) (chosen :pointer) (chosen-length :pointer) (offered :pointer)
     (length :unsigned-int) (argument :pointer))
    +answer-refused+
    "Selects one of the protocols that the client offers (RFC 7301, section 3.2)."
  (dolist (protocol *application-protocols* +answer-refused+)
    (let ((start (find-protocol offered length protocol)))
      (when start
        (setf (cffi:mem-ref chosen :pointer) (cffi:inc-pointer offered start)
              (cffi:mem-ref chosen-length :uint8) (length protocol))
        (return +answer-taken+)))))

;;; Certificates of clients

(define-tls-callback accept-any-certificate ((verified :int) (store :pointer))
    0
    "Accepts any certificate of a client.  The connection still records the failed verification."
  1)

;;; Tickets

(defconstant +ticket-name-octets+ 16)

(cffi:defcstruct ossl-param             ; OSSL_PARAM(3)
  (name :pointer)
  (type :unsigned-int)
  (data :pointer)
  (size :size)
  (returned :size))

(defun set-parameter (parameter name type data size)
  (setf (cffi:foreign-slot-value parameter '(:struct ossl-param) 'name) name
        (cffi:foreign-slot-value parameter '(:struct ossl-param) 'type) type
        (cffi:foreign-slot-value parameter '(:struct ossl-param) 'data) data
        (cffi:foreign-slot-value parameter '(:struct ossl-param) 'size) size
        (cffi:foreign-slot-value parameter '(:struct ossl-param) 'returned) 0))

(defun set-mac-key (mac key)
  "Makes MAC, an EVP_MAC_CTX, use SHA-256 with the 32 octets at KEY.  True on success."
  (cffi:with-foreign-string ((digest digest-size) "SHA256" :null-terminated-p t)
    (cffi:with-foreign-strings ((key-name "key") (digest-name "digest"))
      (cffi:with-foreign-object (parameters '(:struct ossl-param) 3)
        (flet ((parameter (index)
                 (cffi:mem-aptr parameters '(:struct ossl-param) index)))
          (set-parameter (parameter 0) key-name 5 key 32) ; OSSL_PARAM_OCTET_STRING
          ;; 4 is OSSL_PARAM_UTF8_STRING.
          (set-parameter (parameter 1) digest-name 4 digest (1- digest-size))
          (set-parameter (parameter 2) (cffi:null-pointer) 0 (cffi:null-pointer) 0)
          ;; Only OpenSSL 3.0 has this function, and only it calls this callback.
          (= 1 (cffi:foreign-funcall "EVP_MAC_CTX_set_params" :pointer mac :pointer parameters
                                                              :int)))))))

(defun set-ticket-key (key begin start cipher mac)
  "Prepares CIPHER and MAC for KEY, octets.  The function BEGIN starts encryption or decryption,
with the initialization vector START.  True on success."
  (cffi:with-foreign-object (octets :uint8 +ticket-key-octets+)
    (copy-out key octets)
    (and (= 1 (funcall begin cipher (%aes-256-cbc) (cffi:null-pointer)
                       (cffi:inc-pointer octets 48) start))
         (set-mac-key mac (cffi:inc-pointer octets +ticket-name-octets+)))))

(defun make-ticket (keys name start cipher mac)
  "Prepares CIPHER and MAC for a new ticket, and writes its NAME and START.  Returns the callback's
result: 1, or -1 for a failure."
  (copy-out (subseq (first keys) 0 +ticket-name-octets+) name)
  (if (and (= 1 (%random-octets start 16))
           (set-ticket-key (first keys) #'%begin-encryption start cipher mac))
      1
      -1))

(defun take-ticket (keys name start cipher mac single-use-p)
  "Prepares CIPHER and MAC to decrypt a ticket with NAME and START.  Returns the callback's result:
1; 0 if the key is unknown; 2 if the ticket has to be replaced, as always with SINGLE-USE-P; -1 for
a failure."
  (let* ((wanted (copy-in name +ticket-name-octets+))
         (key (find-if (lambda (key) (not (mismatch key wanted :end1 +ticket-name-octets+))) keys)))
    (cond ((null key) 0)
          ((not (set-ticket-key key #'%begin-decryption start cipher mac)) -1)
          ((or single-use-p (not (eq key (first keys)))) 2)
          (t 1))))

(defun single-use-tickets-p (handle)
  "True if the client on HANDLE, an SSL, resumes with each ticket once: TLS 1.3 tells it to (RFC
8446, appendix C.4), so that nobody can tell that two connections are of one client."
  (= +tls-1.3+ (%protocol-number handle)))

(define-tls-callback choose-ticket-key
    ((handle :pointer) (name :pointer) (start :pointer) (cipher :pointer) (mac :pointer)
     (new-p :int))
    -1
    "Selects the key of a ticket; see SSL_CTX_set_tlsext_ticket_key_evp_cb(3)."
  (let* ((context (context-of handle))
         (keys (and context (valid-ticket-keys (tls-context-ticket-keys context)))))
    (cond ((null keys) 0)
          ((zerop new-p)
           (take-ticket keys name start cipher mac (single-use-tickets-p handle)))
          (t (make-ticket keys name start cipher mac)))))
