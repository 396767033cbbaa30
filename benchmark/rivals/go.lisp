(in-package #:hunchentoot-recycling-taskmaster-benchmark)

(defun go-server ()
  "The Go server, built when there is a Go tool."
  (let ((source (server-file "server.go")))
    (build "go-server" (list source)
           ;; The program is the same without C, and then needs no C compiler.
           (list "env" "CGO_ENABLED=0" (find-program "go") "build"
                 "-o" (built-file "go-server") source))))

(define-rival "go" (program-rival)
  :label "Go net/http"
  :color "#00acc1"
  :sets '(:quick :standard)
  :parameters (format nil "net/http; a delay by time.Sleep; files by its FileServer; TLS by its own ~
                           library; its listen queue is the system's longest")
  :caveats (list :short-wait
                 (format nil "beside idle processors its timers go in steps of a millisecond, so a ~
                              sleep of 1 ms may take 2: its clients wait for that, which is not ~
                              what a request costs"))
  :services '(:plain :later)
  :finder #'go-server
  :tls t
  :arguments (lambda (port delay-ms directory &optional certificate)
               (declare (ignore directory))
               (list* port delay-ms *slow-ms* (served-files)
                      (and certificate (certificate-files certificate))))
  :version (lambda () (program-version "go" "version")))
