(in-package #:hunchentoot-recycling-taskmaster-benchmark)

(defun nginx-configuration (port)
  "What nginx.conf says for PORT: the template in servers/, filled in."
  (reduce (lambda (text replacement)
            (uiop:frob-substrings text (list (first replacement)) (second replacement)))
          `(("@PORT@" ,(princ-to-string port))
            ("@BACKLOG@" ,(princ-to-string (backlog)))
            ("@USER@" ,(first-line (output-of '("id" "-un"))))
            ("@FILES@" ,(uiop:native-namestring (served-files))))
          :initial-value (uiop:read-file-string (server-file "nginx.conf"))))

(defun write-nginx-configuration (port directory)
  "Write nginx.conf for PORT into DIRECTORY."
  (with-open-file (stream (merge-pathnames "nginx.conf" directory) :direction :output)
    (write-string (nginx-configuration port) stream)))

(define-rival "nginx" (program-rival)
  :label "nginx"
  :color "#2e7d32"
  :sets '(:quick :standard)
  :parameters (format nil "return 200, files by sendfile; one worker per core; deferred accepts; ~
                           connections kept without end")
  :lacks '(:wait "without extra modules nginx can't delay an answer"
           :uploads "what it returns has nothing to do with what was sent")
  :finder (lambda () (find-program "nginx"))
  :arguments (lambda (port delay-ms directory)
               (declare (ignore delay-ms))
               (write-nginx-configuration port directory)
               (list "-p" directory "-c" (merge-pathnames "nginx.conf" directory)))
  :version (lambda () (program-version "nginx" "-v")))
