(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; Calls of OpenSSL, whose library CL+SSL has loaded, and what it tells of a connection.  OpenSSL
;;;; 1.1.1 has all that we call.

(defmacro openssl (result name &rest arguments)
  "Calls the C function NAME, which returns a RESULT, a type of CFFI, with ARGUMENTS: forms for
pointers, and lists of another type and a form."
  `(cffi:foreign-funcall ,name
                         ,@(loop for argument in arguments
                                 append (if (and (consp argument) (keywordp (first argument)))
                                            argument
                                            (list :pointer argument)))
                         ,result))

;;; OpenSSL keeps a queue of errors for each thread.  A call that finds an error of an earlier call
;;; there would take it for its own; see SSL_get_error(3).

(defun clear-errors ()
  (openssl :void "ERR_clear_error"))

(defun why-it-failed ()
  "OpenSSL's words for the first error of this thread.  Clears all errors of this thread."
  (cffi:with-foreign-object (text :char 256)
    (openssl :void "ERR_error_string_n"
             (:unsigned-long (openssl :unsigned-long "ERR_get_error")) text (:size 256))
    (clear-errors)
    (cffi:foreign-string-to-lisp text)))

(defmethod tls-failure-words ((condition cl+ssl::ssl-error/handle))
  ;; In the format of ERR_print_errors(3), the fields of an error are "error", its number, the
  ;; library, the function and the reason.
  (or (nth 4 (member "error" (uiop:split-string (princ-to-string condition)
                                                :separator '(#\: #\Newline))
                     :test #'string=))
      :gone))

;;; Facts about a TLS connection after its handshake, and about its client's certificate
;;;
;;; Invariant: all pointers here belong to OpenSSL, and are valid as long as the SSL object.  The
;;; caller ensures that no thread frees that object meanwhile.

(defun stream-tls-handle (stream)
  "The SSL object of OpenSSL, a CFFI pointer, of STREAM, a stream of CL+SSL; NIL for other streams
and for a closed one."
  (and (typep stream 'cl+ssl::ssl-stream)
       (cl+ssl::ssl-stream-handle stream)))

(defun tls-facts (handle)
  "Facts about the connection of HANDLE, a pointer to an SSL object whose handshake is complete.
Returns a plist: :PROTOCOL and :CIPHER, strings; :SERVER-NAME, the name for which the client has
asked, a string or NIL (RFC 6066, section 3); and :RESUMED-P, true if the handshake has resumed a
session of an earlier connection."
  (uninterruptibly
    (list :protocol (openssl :string "SSL_get_version" handle)
          :cipher (openssl :string "SSL_CIPHER_get_name"
                           (openssl :pointer "SSL_get_current_cipher" handle))
          :server-name (openssl (:string :encoding :latin-1) "SSL_get_servername" handle (:int 0))
          :resumed-p (= 1 (openssl :int "SSL_session_reused" handle)))))

(defun name-text (name)
  "The X509_NAME NAME as a string in the format of RFC 2253, but with characters beyond ASCII as
they are."
  (let ((bio (openssl :pointer "BIO_new" (openssl :pointer "BIO_s_mem"))))
    (unwind-protect
         (cffi:with-foreign-object (octets :pointer)
           (openssl :int "X509_NAME_print_ex" bio name (:int 0)
                    (:unsigned-long #x1110313)) ; XN_FLAG_RFC2253 without ASN1_STRFLGS_ESC_MSB
           (let ((count (openssl :long "BIO_ctrl" bio (:int 3) (:long 0) octets))) ; BIO_CTRL_INFO
             (values (cffi:foreign-string-to-lisp (cffi:mem-ref octets :pointer)
                                                  :count count :encoding :utf-8))))
      (openssl :int "BIO_free" bio))))

(defun peer-certificate-facts (handle)
  "Facts about the certificate that the peer of HANDLE, a pointer to an SSL object, has sent; NIL if
it has sent none.  Returns a plist: :FAILURE, the reason why it was not verified, a string, or NIL;
:SUBJECT and :ISSUER, strings in the format of RFC 2253; and :FINGERPRINT, its SHA-256 digest, a
string of hexadecimal digits in lower case."
  (uninterruptibly
    (let* ((session (openssl :pointer "SSL_get_session" handle))
           ;; All versions of OpenSSL have this function, and its result need not be freed.
           (certificate (if (cffi:null-pointer-p session)
                            session
                            (openssl :pointer "SSL_SESSION_get0_peer" session))))
      (unless (cffi:null-pointer-p certificate)
        (cffi:with-foreign-object (digest :uint8 32)
          (openssl :int "X509_digest" certificate (openssl :pointer "EVP_sha256") digest
                   (cffi:null-pointer))
          (let ((verified (openssl :long "SSL_get_verify_result" handle)))
            (list :failure (unless (zerop verified) ; X509_V_OK
                             (openssl :string "X509_verify_cert_error_string" (:long verified)))
                  :subject (name-text (openssl :pointer "X509_get_subject_name" certificate))
                  :issuer (name-text (openssl :pointer "X509_get_issuer_name" certificate))
                  :fingerprint (format nil "~(~{~2,'0X~}~)"
                                       (loop for place below 32
                                             collect (cffi:mem-aref digest :uint8 place))))))))))
