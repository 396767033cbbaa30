(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; Calls of OpenSSL, whose library CL+SSL has loaded.  OpenSSL 1.1.1 has all that we call.

(defmacro openssl (result name &rest arguments)
  "Calls the C function NAME, which returns a RESULT, a type of CFFI, with ARGUMENTS: forms for
pointers, and lists of another type and a form."
  `(cffi:foreign-funcall ,name
                         ,@(loop for argument in arguments
                                 append (if (and (consp argument) (keywordp (first argument)))
                                            argument
                                            (list :pointer argument)))
                         ,result))

(defun control-context (context command number &optional (pointer (cffi:null-pointer)))
  "Calls SSL_CTX_ctrl for CONTEXT, an SSL_CTX, with COMMAND, NUMBER and POINTER; returns its
result."
  (openssl :long "SSL_CTX_ctrl" context (:int command) (:long number) pointer))

(defun copy-out (octets pointer)
  "Copies OCTETS, a vector, to the foreign memory at POINTER, and returns POINTER."
  (loop for octet across octets
        for index from 0
        do (setf (cffi:mem-aref pointer :uint8 index) octet))
  pointer)

(defun copy-in (pointer count)
  "The COUNT octets at POINTER."
  (let ((octets (make-octets count)))
    (dotimes (index count octets)
      (setf (aref octets index) (cffi:mem-aref pointer :uint8 index)))))

(defun digest-of (octets)
  "The SHA-256 digest of OCTETS, 32 octets."
  (cffi:with-foreign-objects ((pointer :uint8 (max 1 (length octets))) (digest :uint8 32))
    (openssl :pointer "SHA256" (copy-out octets pointer) (:size (length octets)) digest)
    (copy-in digest 32)))

;;; OpenSSL keeps a queue of errors for each thread.  A call that finds an error of an earlier call
;;; there would take it for its own; see SSL_get_error(3).

(defun clear-errors ()
  (openssl :void "ERR_clear_error"))

(defun why-it-failed ()
  "OpenSSL's reason for its failure, as the end of a sentence: its text for the first error of this
thread, or its numbers if there is no text.  Clears all errors of this thread."
  (let ((code (openssl :unsigned-long "ERR_get_error")))
    (clear-errors)
    (cond ((zerop code) "OpenSSL does not say why")
          ((openssl :string "ERR_reason_error_string" (:unsigned-long code)))
          (t                            ; an error of the system
           (cffi:with-foreign-object (text :char 256)
             (openssl :void "ERR_error_string_n" (:unsigned-long code) text (:size 256))
             (cffi:foreign-string-to-lisp text))))))

(defmethod tls-failure-words ((condition cl+ssl::ssl-error/handle))
  (let* ((text (princ-to-string condition)) ; in the format of ERR_print_errors(3)
         (fields (uiop:split-string text :separator '(#\: #\Newline))))
    ;; The fields are "error", its number, the library, the function and the reason.
    (or (nth 4 (member "error" fields :test #'string=))
        (typecase condition
          ((or cl+ssl::ssl-error-syscall cl+ssl::ssl-error-zero-return) :gone)
          (t text)))))

;;; Names of hosts

(defun server-name (handle)
  "The name, a C string, for which the client of HANDLE, an SSL, asks (RFC 6066, section 3); a null
pointer for none."
  (openssl :pointer "SSL_get_servername" handle (:int 0))) ; 0 is the only kind: a host name
