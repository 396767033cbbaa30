(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; The callbacks that OpenSSL calls in a handshake.  No callback may exit non-locally, since that
;;;; would unwind OpenSSL's frames.

(defmacro define-tls-callback (name arguments failure documentation &body body)
  "Defines the callback NAME with ARGUMENTS.  It returns the value of BODY, an int, or FAILURE if
BODY signals.  DOCUMENTATION is for readers of the source only."
  (declare (ignore documentation))
  `(cffi:defcallback ,name :int ,arguments
     ,@(mapcar #'first arguments)       ; ECL warns of unused ones, whatever is declared
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
