(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* clack/proxied-environments :in clack
  :description "Environments of clients behind proxies.")

(defun proxied-facts (octets &rest arguments)
  "What the environment for the request of OCTETS tells of the client and of the server."
  (let ((environment (apply #'environment-of octets arguments)))
    (loop for name in '(:remote-addr :remote-port :url-scheme :server-name :server-port)
          collect (getf environment name))))

(defun proxied-request (fields &key (host "inner:1"))
  (octets "GET / HTTP/1.1" :crlf "Host: " host :crlf
          (loop for field in fields collect field collect :crlf) :crlf))

(define-server-test an-environment-has-the-client-behind-a-trusted-proxy
  (loop for (expected . fields)
          in '((("192.0.2.1" 4711 "http" "inner" 1) "X-Forwarded-For: 192.0.2.1:4711")
               (("2001:db8::1" 0 "https" "inner" 1) "X-Forwarded-For: 2001:db8::1"
                "X-Forwarded-Proto: https")
               (("192.0.2.1" 0 "https" "example.org" 443) "X-Forwarded-For: 8.8.8.8, 192.0.2.1"
                "X-Forwarded-Proto: https" "X-Forwarded-Host: example.org")
               (("192.0.2.1" 0 "http" "example.org" 80) "X-Forwarded-For: 192.0.2.1"
                "X-Forwarded-Host: example.org")
               (("192.0.2.1" 0 "https" "example.org" 8443) "X-Forwarded-For: 192.0.2.1"
                "X-Forwarded-Proto: https" "X-Forwarded-Host: example.org"
                "X-Forwarded-Port: 443, 8443")
               (("192.0.2.1" 80 "https" "[::1]" 8443)
                "Forwarded: for=\"192.0.2.1:80\";proto=https;host=\"[::1]:8443\""))
        do (is (equal expected
                      (proxied-facts (proxied-request fields) :trusted-proxies '("127.0.0.1")))
               "~S" fields)))

(define-server-test an-environment-has-nothing-that-a-client-itself-tells
  (dolist (trusted '(() ("10.0.0.1" :unix)))
    (dolist (fields *forged*)
      (destructuring-bind (address port scheme name server-port)
          (proxied-facts (proxied-request fields) :trusted-proxies trusted)
        (is (equal '("127.0.0.1" "http" "inner" 1) (list address scheme name server-port)) "~S"
            fields)
        (is (plusp port))))))

(define-server-test the-port-of-a-host-depends-on-the-clients-scheme
  (let ((seen '()))
    (with-clack (environment (progn (push (list (getf environment :url-scheme)
                                                (getf environment :server-port)) seen)
                                    (text-response "seen"))
                 :trusted-proxies '("127.0.0.1"))
      (with-connection (connection)
        (dolist (fields '(() ("X-Forwarded-Proto: https") () ("X-Forwarded-Proto: http")
                          ("X-Forwarded-Proto: http" "X-Forwarded-Port: 8080")))
          (send connection (proxied-request fields :host "example.org"))
          (read-response connection))))
    (is (equal '(("http" 80) ("https" 443) ("http" 80) ("http" 80) ("http" 8080))
               (reverse seen)))))

(define-server-test contradicting-fields-of-a-trusted-proxy-are-refused-through-clack
  (with-clack (environment (text-response "seen") :trusted-proxies '("127.0.0.1"))
    (is (= 400 (response-status (ask "/" :headers '(("X-Forwarded-For" . "192.0.2.1")
                                                    ("Forwarded" . "for=192.0.2.2"))))))
    (is-true (await-log "contradict"))))

(define-server-test an-environment-has-the-ends-that-a-proxy-header-tells
  (loop for (told octets) in *proxy-headers*
        do (destructuring-bind (address port scheme name server-port)
               (proxied-facts (octets octets "GET / HTTP/1.0" :crlf :crlf)
                              :trusted-proxies '("127.0.0.1") :proxy-protocol t)
             (is (equal "http" scheme))
             (if (first told)
                 (is (equal told (list (list address port) (list name server-port))))
                 (is (equal "127.0.0.1" address))))))

(define-server-test a-connection-without-a-proxy-header-is-closed-and-logged-through-clack
  (with-clack (environment (text-response "seen") :trusted-proxies '("127.0.0.1") :proxy-protocol t)
    (dolist (octets *malformed-proxy-headers*)
      (with-connection (connection)
        (try-to-send connection octets)
        (is-true (closed-by-server-p connection) "~S" octets)))
    (eventually ("a message")
      (search "PROXY" (clack-log)))))

(define-server-test a-check-by-options-is-answered-where-the-application-knows-nothing
  (flet ((status (response target)
           (with-clack (environment response)
             (response-status (ask target :method :options)))))
    (dolist (target '("/" "*"))
      (is (= 204 (status (list 404 '() '("Nothing here.")) target)))
      (is (= 405 (status (list 405 '() '("Not so.")) target)))
      (is (= 200 (status (text-response "here") target))))
    (is (= 404 (status (list 404 '() '("Nothing here.")) "/nowhere")))))
