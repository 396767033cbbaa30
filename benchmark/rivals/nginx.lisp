(in-package #:hunchentoot-recycling-taskmaster-benchmark)

(defun nginx-tls (certificate)
  "What nginx.conf says of TLS with CERTIFICATE, a directory: of the socket, and of the server."
  (list "ssl"
        (format nil "ssl_certificate ~a;~%    ssl_certificate_key ~a;~%    ~
                     ssl_protocols TLSv1.2 TLSv1.3;~%    ssl_session_tickets on;"
                (uiop:native-namestring (first (certificate-files certificate)))
                (uiop:native-namestring (second (certificate-files certificate))))))

(defun nginx-configuration (port certificate)
  "What nginx.conf says for PORT, over TLS with CERTIFICATE, a directory, unless that is NIL: the
template in servers/, filled in."
  (reduce (lambda (text replacement)
            (uiop:frob-substrings text (list (first replacement)) (second replacement)))
          `(("@PORT@" ,(princ-to-string port))
            ("@BACKLOG@" ,(princ-to-string (backlog)))
            ("@USER@" ,(first-line (output-of '("id" "-un"))))
            ("@FILES@" ,(uiop:native-namestring (served-files)))
            ,@(mapcar #'list '("@SSL@" "@TLS@")
                      (if certificate (nginx-tls certificate) '("" ""))))
          :initial-value (uiop:read-file-string (server-file "nginx.conf"))))

(defun write-nginx-configuration (port directory certificate)
  "Write nginx.conf for PORT and CERTIFICATE, as NGINX-CONFIGURATION has it, into DIRECTORY."
  (with-open-file (stream (merge-pathnames "nginx.conf" directory) :direction :output)
    (write-string (nginx-configuration port certificate) stream)))

(define-rival "nginx" (program-rival)
  :label "nginx"
  :color "#2e7d32"
  :sets '(:quick :standard)
  :parameters (format nil "return 200, files by sendfile where there is no TLS; one worker per core; ~
                           deferred accepts; connections kept without end; session tickets")
  :lacks '(:wait "without extra modules nginx can't delay an answer"
           :uploads "what it returns has nothing to do with what was sent")
  :finder (lambda () (find-program "nginx"))
  :tls t
  :arguments (lambda (port delay-ms directory &optional certificate)
               (declare (ignore delay-ms))
               (write-nginx-configuration port directory certificate)
               (list "-p" directory "-c" (merge-pathnames "nginx.conf" directory)))
  :version (lambda () (program-version "nginx" "-v")))
