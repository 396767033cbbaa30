(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* behind-proxies :in acceptors
  :description "Clients behind proxies, and those that only say so.")

(defun client-as-told ()
  "What a handler knows of its client: address and port, scheme, and host."
  (format nil "~A ~A ~A ~A" (hunchentoot:remote-addr*) (hunchentoot:remote-port*)
          (if (hunchentoot:ssl-p) "https" "http") (hunchentoot:host)))

(defun client-told-for (connection fields)
  "The client as the handler of /client knows it for a request with FIELDS, lines of text."
  (send connection "GET /client HTTP/1.1" :crlf "Host: inner:1" :crlf
        (loop for field in fields collect field collect :crlf) :crlf)
  (response-text (read-response connection)))

(defmacro serving-client ((&rest initargs) &body body)
  `(serving ,initargs (("/client" (client-as-told))
                       ("/real"
                        (princ-to-string (multiple-value-list (hunchentoot:real-remote-addr))))
                       ("/away" (hunchentoot:redirect "/there"))
                       ("/cookie"
                        (hunchentoot:set-cookie "a" :value "1" :secure (hunchentoot:ssl-p)) "")
                       ("/later" (recycling:defer-reply (reply)
                                   (bt:make-thread
                                    (lambda ()
                                      (recycling:complete-reply
                                       reply (recycling:with-reply-context (reply)
                                               (client-as-told)))))
                                   nil)))
     ,@body))

(defparameter *forged*
  '(("X-Forwarded-For: 192.0.2.1") ("X-Forwarded-For: 127.0.0.1") ("X-Forwarded-For: 192.0.2.1:80")
    ("X-Forwarded-For: 192.0.2.1, 127.0.0.1") ("X-Forwarded-For: 127.0.0.1, 192.0.2.1")
    ("X-Forwarded-For: 192.0.2.1" "X-Forwarded-For: 192.0.2.2")
    ("X-Forwarded-For: [2001:db8::1]:80")
    ("X-Forwarded-For: ::1") ("X-Forwarded-For: ::ffff:192.0.2.1") ("X-Forwarded-For: unknown")
    ("X-Forwarded-For: _hidden") ("X-Forwarded-For:") ("X-Forwarded-For: ,")
    ("X-Forwarded-For: ,,192.0.2.1")
    ("X-Forwarded-For: \"192.0.2.1\"") ("X-Forwarded-For: unix:") ("x-forwarded-for: 192.0.2.1")
    ("X-FORWARDED-FOR:192.0.2.1") ("X-Forwarded-Proto: https") ("X-Forwarded-Proto: HTTPS")
    ("X-Forwarded-Proto: wss") ("X-Forwarded-Proto: https, https") ("X-Forwarded-Host: example.org")
    ("X-Forwarded-Host: example.org:443" "X-Forwarded-Proto: https")
    ("X-Forwarded-For: 192.0.2.1" "X-Forwarded-Proto: https" "X-Forwarded-Host: example.org")
    ("Forwarded: for=192.0.2.1") ("Forwarded: For=\"192.0.2.1:80\"")
    ("Forwarded: for=\"[2001:db8::1]\"")
    ("Forwarded: for=192.0.2.1;proto=https;host=example.org;by=127.0.0.1")
    ("Forwarded: for=192.0.2.1, for=127.0.0.1") ("Forwarded: for=_hidden;proto=https")
    ("Forwarded: for=unknown") ("Forwarded: proto=https") ("Forwarded: host=example.org")
    ("Forwarded: \"")
    ("forwarded: FOR=192.0.2.1") ("Forwarded: for=192.0.2.1" "Forwarded: for=192.0.2.2")
    ("Forwarded: for=192.0.2.1" "X-Forwarded-For: 192.0.2.2")
    ("X-Forwarded-Port: 443") ("X-Forwarded-Ssl: on") ("Front-End-Https: on")
    ("X-Real-IP: 192.0.2.1")
    ("X-Client-IP: 192.0.2.1") ("True-Client-IP: 192.0.2.1") ("CF-Connecting-IP: 192.0.2.1")
    ("X_Forwarded_For: 192.0.2.1") ("X-Forwarded-Server: example.org") ("Via: 1.1 example.org"))
  "Fields, lines of text, by which a client may say that it is another.")

(define-server-test (a-client-that-is-no-trusted-proxy-is-believed-nothing :needs :our-engine)
  (dolist (trusted '(() ("10.0.0.0/8" "2001:db8::/32" :unix) ("127.0.0.2" "127.0.0.0/32" "::1")))
    (serving-client (:trusted-proxies trusted)
      (with-connection (connection)
        (let ((itself (format nil "127.0.0.1 ~A http inner:1" (client-port connection))))
          (dolist (fields *forged*)
            (is (equal itself (client-told-for connection fields)) "~S ~S" trusted fields)))))))

(define-server-test (a-trusted-proxy-is-believed :needs :our-engine)
  (dolist (trusted '(("127.0.0.1") ("10.0.0.0/8" "127.0.0.0/8") ("::ffff:127.0.0.1") ("0.0.0.0/0")))
    (serving-client (:trusted-proxies trusted)
      (with-connection (connection)
        (is (equal "192.0.2.1 0 http inner:1"
                   (client-told-for connection '("X-Forwarded-For: 192.0.2.1"))))
        (let ((itself (format nil "127.0.0.1 ~A http inner:1" (client-port connection))))
          (is (equal itself (client-told-for connection '()))
              "Of another request nothing was told.")
          (is (equal itself (client-told-for connection '("X-Forwarded-For: unknown")))))))))

(defparameter *told*
  '(("192.0.2.1 4711 http inner:1" "X-Forwarded-For: 192.0.2.1:4711")
    ("2001:db8::1 0 http inner:1" "X-Forwarded-For: 2001:DB8::1")
    ("192.0.2.1 0 https inner:1" "X-Forwarded-For: 192.0.2.1" "X-Forwarded-Proto: https")
    ("192.0.2.1 0 https example.org" "X-Forwarded-For: 8.8.8.8, 192.0.2.1"
     "X-Forwarded-Proto: https"
     "X-Forwarded-Host: example.org")
    ("192.0.2.1 0 http example.org:8080" "X-Forwarded-For: 192.0.2.1" "X-Forwarded-Proto: http"
     "X-Forwarded-Host: example.org:8080")
    ("192.0.2.1 0 https example.org:8443" "X-Forwarded-For: 192.0.2.1" "X-Forwarded-Proto: https"
     "X-Forwarded-Host: example.org" "X-Forwarded-Port: 8443")
    ("192.0.2.1 0 https example.org" "X-Forwarded-For: 192.0.2.1" "X-Forwarded-Proto: https"
     "X-Forwarded-Host: example.org" "X-Forwarded-Port: 443")
    ("192.0.2.1 0 http example.org:81" "X-Forwarded-For: 192.0.2.1"
     "X-Forwarded-Host: example.org:81" "X-Forwarded-Port: 8443")
    ("192.0.2.1 0 http inner:1" "X-Forwarded-For: 192.0.2.1" "X-Forwarded-Port: 8443")
    ("192.0.2.1 0 http example.org" "X-Forwarded-For: 192.0.2.1" "X-Forwarded-Host: example.org"
     "X-Forwarded-Port: 65536")
    ("192.0.2.1 0 http example.org:8080" "Forwarded: for=192.0.2.1;host=example.org"
     "X-Forwarded-For: 192.0.2.1" "X-Forwarded-Port: 8080")
    ("2001:db8::1 4711 https example.org"
     "Forwarded: for=\"[2001:db8::1]:4711\";proto=https;host=example.org")
    ("192.0.2.1 0 http inner:1" "Forwarded: for=8.8.8.8;proto=https" "Forwarded: for=192.0.2.1"))
  "Clients as handlers know them, and the fields that tell of them.")

(define-server-test (a-handler-knows-the-client-behind-a-trusted-proxy :needs :our-engine)
  (serving-client (:trusted-proxies '("127.0.0.1"))
    (with-connection (connection)
      (loop for (told . fields) in *told*
            do (is (equal told (client-told-for connection fields)) "~S" fields)))))

(define-server-test
    (a-request-with-contradicting-fields-of-a-trusted-proxy-is-refused :needs :our-engine)
  (serving-client (:trusted-proxies '("127.0.0.1"))
    (let ((response (ask "/client" :headers '(("X-Forwarded-For" . "192.0.2.1")
                                              ("Forwarded" . "for=192.0.2.2")))))
      (is (= 400 (response-status response)))
      (is (equal '((400 . 1)) (rejections))))))

(defmacro with-access-log ((lines &rest initargs) routes &body body)
  "Evaluates BODY while an acceptor made of INITARGS serves ROUTES; then LINES, a function without
arguments, returns the lines of its access log so far."
  (let ((directory (gensym "DIRECTORY")) (log (gensym "LOG")))
    `(with-directory (,directory)
       (let ((,log (merge-pathnames "access" ,directory)))
         (serving (:access-log-destination ,log ,@initargs) ,routes
           (flet ((,lines ()
                    (recycling:reopen-logs *server*)
                    (and (probe-file ,log) (uiop:read-file-lines ,log))))
             ,@body))))))

(define-server-test (a-rejected-request-is-not-logged-as-of-the-client-before :needs :our-engine)
  (with-access-log (lines :trusted-proxies '("127.0.0.1")) (("/" "body"))
    (with-connection (connection)
      (exchange connection "/" :headers '(("X-Forwarded-For" . "192.0.2.1")))
      (send connection "GET / HTTP/1.1" :crlf "Bad Name: 1" :crlf :crlf)
      (is (= 400 (response-status (read-response connection)))))
    (destructuring-bind (first second) (lines)
      (is (eql 0 (search "192.0.2.1 - [" first)))
      (is (eql 0 (search "127.0.0.1 - [" second))))))

(define-server-test (a-redirection-leads-to-the-clients-scheme-and-host :needs :our-engine)
  (serving-client (:trusted-proxies '("127.0.0.1"))
    (flet ((location (&rest headers)
             (response-header (ask "/away"
                                   :headers (list* '("Cookie" . "hunchentoot-session=1") headers))
                              "location")))
      (is (equal "http://localhost/there" (location)))
      (is (equal "https://localhost/there" (location '("X-Forwarded-Proto" . "https"))))
      (is (equal "https://example.org/there" (location '("X-Forwarded-Proto" . "https")
                                                       '("X-Forwarded-Host" . "example.org"))))
      (is (equal "http://localhost/there" (location '("X-Forwarded-Proto" . "gopher")))))))

(define-server-test (a-cookie-is-secure-when-the-client-uses-https :needs :our-engine)
  (serving-client (:trusted-proxies '("127.0.0.1"))
    (flet ((cookie (scheme)
             (response-header (ask "/cookie" :headers `(("X-Forwarded-Proto" . ,scheme)))
                              "set-cookie")))
      (is (search "secure" (string-downcase (cookie "https"))))
      (is (not (search "secure" (string-downcase (cookie "http"))))))))

(define-server-test (a-request-without-a-host-has-that-which-its-proxy-tells :needs :our-engine)
  (serving-client (:trusted-proxies '("127.0.0.1"))
    (is (equal "example.org" (first (last (uiop:split-string
                                           (ask-text "/client" :version "HTTP/1.0" :host nil
                                                               :headers '(("X-Forwarded-Host" .
                                                                           "example.org"))))))))))

(define-server-test (real-remote-addr-is-the-client-of-trusted-proxies :needs :our-http)
  (serving-client (:trusted-proxies '("127.0.0.1"))
    (is (equal "(192.0.2.1)"
               (ask-text "/real" :headers '(("X-Forwarded-For" . "8.8.8.8, 192.0.2.1")))))
    (is (equal "(127.0.0.1)" (ask-text "/real"))))
  (serving-client (:trusted-proxies '("10.0.0.1"))
    (is (equal "(127.0.0.1)" (ask-text "/real" :headers '(("X-Forwarded-For" . "192.0.2.1")))))))

(define-server-test (real-remote-addr-without-trusted-proxies-is-hunchentoots)
  (serving-client ()
    (is (equal "(8.8.8.8 (8.8.8.8 192.0.2.1))"
               (ask-text "/real" :headers '(("X-Forwarded-For" . "8.8.8.8, 192.0.2.1")))))))

(define-server-test (a-deferred-reply-knows-the-client-behind-a-trusted-proxy :needs :our-engine)
  (serving-client (:trusted-proxies '("127.0.0.1"))
    (is (equal "192.0.2.1 0 https example.org"
               (ask-text "/later" :headers '(("X-Forwarded-For" . "192.0.2.1")
                                             ("X-Forwarded-Proto" . "https")
                                             ("X-Forwarded-Host" . "example.org")))))))

(define-server-test (the-access-log-has-the-client-behind-a-trusted-proxy :needs :our-engine)
  (with-access-log (lines :trusted-proxies '("127.0.0.1")) (("/" "body"))
    (ask "/" :headers '(("X-Forwarded-For" . "8.8.8.8, 192.0.2.1")))
    (is (eql 0 (search "192.0.2.1 - [" (first (lines))))))
  (with-access-log (lines :trusted-proxies '("127.0.0.1") :max-body-octets 10) (("/" "body"))
    (ask "/" :method :post :content "more than it takes"
         :headers '(("X-Forwarded-For" . "192.0.2.1")))
    (is (search " 413 " (first (lines)))))
  (with-access-log (lines :trusted-proxies '("10.0.0.1")) (("/" "body"))
    (ask "/" :headers '(("X-Forwarded-For" . "8.8.8.8, 192.0.2.1")))
    (is (eql 0 (search "127.0.0.1 - [" (first (lines)))) "Nor is there what others say."))
  (with-access-log (lines :trusted-proxies '("127.0.0.1") :access-log-format :json) (("/" "body"))
    (ask "/" :headers '(("X-Forwarded-For" . "8.8.8.8, 192.0.2.1")))
    (is (search "\"remote_address\":\"192.0.2.1\",\"forwarded_for\":null"
                (eventually ("the line, which is made after the reply")
                  (first (lines)))))))

(define-server-test
    (a-websockets-origin-is-compared-with-what-a-trusted-proxy-tells :needs :our-engine)
  (flet ((status (origin &rest headers)
           (status-of-handshake :host "inner:1" :headers (list* (cons "Origin" origin) headers))))
    (serving-echoes (ends :trusted-proxies '("127.0.0.1"))
      (let ((told '(("X-Forwarded-Host" . "example.org") ("X-Forwarded-Proto" . "https"))))
        (is (= 101 (apply #'status "https://example.org" told)))
        (is (= 403 (apply #'status "http://example.org" told)))
        (is (= 403 (apply #'status "https://inner:1" told)))
        (is (= 101 (status "https://inner:1")))))
    (serving-echoes (ends :trusted-proxies '("10.0.0.1"))
      (is (= 403 (status "https://example.org" '("X-Forwarded-Host" . "example.org")
                         '("X-Forwarded-Proto" . "https")))))))

(define-server-test (a-proxy-on-a-path-is-believed-where-that-is-asked-for :needs :systemd)
  (with-directory (directory)
    (loop for (trusted expected) in '(((:unix) "192.0.2.1 0 https inner:1")
                                      (("0.0.0.0/0" "::/0") "unix: 0 http inner:1"))
          do (let ((path (merge-pathnames "socket" directory)))
               (with-routes (("/client" (client-as-told)))
                 (let ((acceptor (make-instance *acceptor-class* :listen-path path
                                                :trusted-proxies trusted
                                                                 :access-log-destination nil
                                                                 :message-log-destination nil)))
                   (hunchentoot:start acceptor)
                   (unwind-protect
                        (with-open-connection (connection (connect-to-path path))
                          (is (equal expected
                                     (client-told-for connection '("X-Forwarded-For: 192.0.2.1"
                                                                   "X-Forwarded-Proto: https")))))
                     (stop-if-started acceptor))))))))

(defclass wrapped-connections () ())

(defmethod hunchentoot:process-connection :around ((acceptor wrapped-connections) socket)
  (call-next-method))

(define-server-test
    (methods-around-process-connection-change-nothing-of-what-proxies-tell :needs :our-engine)
  (serving-client (:trusted-proxies '("127.0.0.1") :mixin 'wrapped-connections)
    (is (= 400 (response-status (ask "/client" :headers '(("X-Forwarded-For" . "192.0.2.1")
                                                          ("Forwarded" . "for=192.0.2.2"))))))
    (with-connection (connection)
      (loop for (told . fields) in *told*
            do (is (equal told (client-told-for connection fields)) "~S" fields)))))

;;; Arguments

(test trusted-proxies-that-connections-must-come-from-are-not-taken-away
  (let ((acceptor (make-test-acceptor :trusted-proxies '("127.0.0.1") :proxy-protocol t)))
    (signals hunchentoot:parameter-error (reinitialize-instance acceptor :trusted-proxies '()))
    (finishes (reinitialize-instance acceptor :trusted-proxies '() :proxy-protocol nil))))

(define-server-test (trusted-proxies-can-be-changed-for-new-connections :needs :our-engine)
  (serving-client ()
    (flet ((client ()
             (first (uiop:split-string (ask-text "/client"
                                                 :headers '(("X-Forwarded-For" . "192.0.2.1")))))))
      (is (equal "127.0.0.1" (client)))
      (reinitialize-instance *server* :trusted-proxies '("127.0.0.0/8"))
      (is (equal "192.0.2.1" (client)))
      (reinitialize-instance *server* :max-body-octets 1000)
      (is (equal "192.0.2.1" (client)))
      (reinitialize-instance *server* :trusted-proxies '())
      (is (equal "127.0.0.1" (client))))))
