(in-package #:hunchentoot-recycling-taskmaster)

(defclass parallel-ssl-acceptor (parallel-acceptor hunchentoot:ssl-acceptor)
  ((tls-context :initform nil :accessor acceptor-tls-context))
  (:documentation "HUNCHENTOOT:SSL-ACCEPTOR on recycled threads.  :SSL-CERTIFICATE-FILE and
:SSL-PRIVATEKEY-FILE, pathname designators of PEM files, are required,
:SSL-PRIVATEKEY-PASSWORD is optional.
Signals HUNCHENTOOT:PARAMETER-ERROR when one of the files is missing, is no PEM file, or has no
certificate or no private key."))

(defclass parallel-easy-ssl-acceptor (parallel-ssl-acceptor hunchentoot:easy-ssl-acceptor)
  ()
  (:documentation "HUNCHENTOOT:EASY-SSL-ACCEPTOR on recycled threads; see
PARALLEL-SSL-ACCEPTOR for its initargs and errors."))

(defun pem-labels (pathname)
  "What the file PATHNAME has in PEM, as its lines say that begin something (RFC 7468, section 2)."
  (with-open-file (stream pathname :external-format :iso-8859-1) ; ABCL knows no :LATIN-1
    (loop with mark = "-----BEGIN "
          for line = (read-line stream nil)
          while line
          when (search mark line)
            collect (subseq line (+ (search mark line) (length mark))))))

(defun check-pem-file (name pathname wanted)
  "Checks that PATHNAME, the argument NAME, is a file in PEM that has a WANTED."
  (flet ((refuse-it (reason)
           (hunchentoot:parameter-error "~A, ~S, ~A." name pathname reason)))
    (unless pathname
      (refuse-it "must name a file in PEM format"))
    (unless (and (probe-file pathname) (pathname-name (probe-file pathname)))
      (refuse-it "does not name an existing file"))
    (let ((labels (handler-case (pem-labels pathname)
                    (file-error () (refuse-it "cannot be read")))))
      (cond ((null labels)
             (refuse-it "is not in PEM format"))
            ((notany (lambda (label) (search wanted label)) labels)
             (refuse-it (format nil "has no ~A, but ~{~A~^, ~}" wanted
                                (mapcar (lambda (label) (string-right-trim '(#\- #\Return) label))
                                        labels))))))))

(defmethod initialize-instance :before
    ((acceptor parallel-ssl-acceptor) &key ssl-certificate-file ssl-privatekey-file)
  (check-pem-file :ssl-certificate-file ssl-certificate-file "CERTIFICATE")
  (check-pem-file :ssl-privatekey-file ssl-privatekey-file "PRIVATE KEY"))

(defmethod reinitialize-instance :before
    ((acceptor parallel-ssl-acceptor)
     &key (ssl-certificate-file nil certificate-p) (ssl-privatekey-file nil key-p))
  (when certificate-p
    (check-pem-file :ssl-certificate-file ssl-certificate-file "CERTIFICATE"))
  (when key-p
    (check-pem-file :ssl-privatekey-file ssl-privatekey-file "PRIVATE KEY")))

(defun file-for-openssl (file)
  "FILE, a pathname designator, as OpenSSL takes it; FILE itself where there is none, to be refused."
  (if (and file (probe-file file))
      (namestring (truename file))
      file))

(defmethod reinitialize-instance :around ((acceptor parallel-ssl-acceptor) &rest initargs)
  ;; Hunchentoot does this when an instance is made only, and OpenSSL knows no pathnames.
  (apply #'call-next-method acceptor
         (loop for (name value) on initargs by #'cddr
               collect name
               collect (if (member name '(:ssl-certificate-file :ssl-privatekey-file))
                           (file-for-openssl value)
                           value))))

(defmethod cl+ssl:stream-fd ((stream descriptor-stream))
  ;; So OpenSSL reads and writes the descriptor itself.
  (wire-descriptor (stream-wire stream)))

(defmethod cl+ssl::ssl-stream-handle ((stream descriptor-stream))
  ;; For HUNCHENTOOT:GET-PEER-SSL-CERTIFICATE and programs that ask the connection's stream.
  (wire-tls-handle (stream-wire stream)))

(defmethod handshake-context ((taskmaster recycling-taskmaster))
  (let ((acceptor (hunchentoot:taskmaster-acceptor taskmaster)))
    (and (typep acceptor 'parallel-ssl-acceptor)
         (acceptor-tls-context acceptor))))

(defmethod hunchentoot:initialize-connection-stream ((acceptor parallel-ssl-acceptor) stream)
  (or (encrypted-stream stream (acceptor-tls-context acceptor))
      (call-next-method)))

(defmethod hunchentoot:start :before ((acceptor parallel-ssl-acceptor))
  (setf (acceptor-tls-context acceptor)
        (make-tls-context (list (list (hunchentoot:acceptor-ssl-certificate-file acceptor)
                                      (hunchentoot:acceptor-ssl-privatekey-file acceptor)
                                      (hunchentoot:acceptor-ssl-privatekey-password acceptor))))))
