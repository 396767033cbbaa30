(in-package #:hunchentoot-recycling-taskmaster-benchmark)

(defun write-nginx-configuration (port directory)
  "Write nginx.conf for PORT into DIRECTORY, from the template in servers/."
  (let ((template (uiop:read-file-string (server-file "nginx.conf"))))
    (with-open-file (stream (merge-pathnames "nginx.conf" directory) :direction :output)
      (write-string (uiop:frob-substrings template '("@PORT@") (princ-to-string port)) stream))))

(define-rival "nginx" (program-rival)
  :label "nginx"
  :color "#2e7d32"
  :quick-p t
  :delays-p nil
  :parameters "return 200; one worker per core; connections kept for any number of requests"
  :note "Without extra modules nginx can't delay an answer, so it has no cells with a delay."
  :finder (lambda () (find-program "nginx"))
  :arguments (lambda (port delay-ms directory)
               (declare (ignore delay-ms))
               (write-nginx-configuration port directory)
               (list "-p" directory "-c" (merge-pathnames "nginx.conf" directory)))
  :version (lambda () (program-version "nginx" "-v")))
