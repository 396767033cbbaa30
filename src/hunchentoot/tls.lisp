(in-package #:hunchentoot-recycling-taskmaster)

(defclass parallel-ssl-acceptor (parallel-acceptor hunchentoot:ssl-acceptor)
  ()
  (:documentation "HUNCHENTOOT:SSL-ACCEPTOR on recycled threads.  :SSL-CERTIFICATE-FILE and
:SSL-PRIVATEKEY-FILE, pathname designators of PEM files, are required,
:SSL-PRIVATEKEY-PASSWORD is optional.
Signals HUNCHENTOOT:PARAMETER-ERROR when one of the files is missing or is no PEM file."))

(defclass parallel-easy-ssl-acceptor (parallel-ssl-acceptor hunchentoot:easy-ssl-acceptor)
  ()
  (:documentation "HUNCHENTOOT:EASY-SSL-ACCEPTOR on recycled threads; see
PARALLEL-SSL-ACCEPTOR for its initargs and errors."))

(defun pem-file-p (pathname)
  "True when the file PATHNAME has a line that begins something in PEM (RFC 7468, section 2)."
  (with-open-file (stream pathname :external-format :iso-8859-1) ; ABCL knows no :LATIN-1
    (loop for line = (read-line stream nil)
          while line
          thereis (and (search "-----BEGIN " line) t))))

(defun check-pem-file (name pathname)
  (flet ((refuse-it (reason)
           (hunchentoot:parameter-error "~A, ~S, ~A." name pathname reason)))
    (unless pathname
      (refuse-it "must name a file in PEM format"))
    (unless (and (probe-file pathname) (pathname-name (probe-file pathname)))
      (refuse-it "does not name an existing file"))
    (unless (handler-case (pem-file-p pathname)
              (file-error () (refuse-it "cannot be read")))
      (refuse-it "is not in PEM format"))))

(defmethod initialize-instance :before
    ((acceptor parallel-ssl-acceptor) &key ssl-certificate-file ssl-privatekey-file)
  (check-pem-file :ssl-certificate-file ssl-certificate-file)
  (check-pem-file :ssl-privatekey-file ssl-privatekey-file))

(defmethod cl+ssl:stream-fd ((stream descriptor-stream))
  ;; So OpenSSL reads and writes the descriptor itself.
  (wire-descriptor (stream-wire stream)))
