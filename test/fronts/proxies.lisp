(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* fronts/proxies :in fronts
  :description "Clients behind proxies, and those that only say so.")

(defgeneric ends-as-told (request)
  (:documentation "What REQUEST tells of both ends of its connection: of the client's address and
port, and of the server's, which is the host that was asked.")
  (:method ((request list))
    (loop for name in '(:remote-addr :remote-port :server-name :server-port :url-scheme)
          collect (getf request name)))
  (:method ((request hunchentoot:request))
    (let ((scheme (if (hunchentoot:ssl-p) "https" "http"))
          (host (or (hunchentoot:host request)
                    (format nil "~A:~D" (hunchentoot:local-addr request)
                            (hunchentoot:local-port request)))))
      (or (cl-ppcre:register-groups-bind (name (#'parse-integer port)) ("^(.*):(\\d+)$" host)
            (ends-of-hunchentoot request name port scheme))
          (ends-of-hunchentoot request host (if (equal "https" scheme) 443 80) scheme)))))

(defun ends-of-hunchentoot (request host port scheme)
  (list (hunchentoot:remote-addr request) (hunchentoot:remote-port request) host port scheme))

(defmacro telling-ends ((&rest arguments) &body body)
  "Evaluates BODY while a server of ARGUMENTS answers with the ENDS-AS-TOLD."
  `(with-front (request ,@arguments)
       (reply 200 '() (format nil "~{~A~^ ~}" (ends-as-told request)))
     ,@body))

(defun ends-for (connection &rest fields)
  "The answer to a request of CONNECTION with FIELDS, lines of text."
  (send connection "GET / HTTP/1.1" :crlf "Host: inner:1" :crlf
        (loop for field in fields collect field collect :crlf) :crlf)
  (response-text (read-response connection)))

(defun own-ends (connection)
  "What is told for CONNECTION when nobody says otherwise."
  (format nil "127.0.0.1 ~D inner 1 http" (client-port connection)))

(defun rejected-p (count)
  "True if *SERVER* has rejected COUNT requests, which only Hunchentoot's front counts."
  (member (figure :rejected) (list nil count)))

;;; What stands in the request

(defparameter *forged*
  (read-table "fronts/forged.sexp")
  "Fields, lines of text, by which a client may say that it is another.")

(define-front-test (a-client-that-is-no-trusted-proxy-is-believed-nothing
                    :modes (:plain :unparked :http2))
  (dolist (trusted '(() ("10.0.0.0/8" "2001:db8::/32" :unix) ("127.0.0.2" "127.0.0.0/32" "::1")))
    (telling-ends (:trusted-proxies trusted)
      (with-connection (connection)
        (dolist (fields *forged*)
          (is (equal (own-ends connection) (apply #'ends-for connection fields))
              "~S ~S" trusted fields))))))

(define-front-test (a-program-knows-the-client-behind-a-trusted-proxy
                    :modes (:plain :unparked :http2))
  (telling-ends (:trusted-proxies '("10.0.0.0/8" "127.0.0.0/8"))
    (with-connection (connection)
      (loop for (told . fields)
              in (read-table "fronts/forwarded.sexp")
            do (is (equal told (apply #'ends-for connection fields)) "~S" fields)
               (is (equal (own-ends connection) (ends-for connection))
                   "Of another request nothing was told."))
      (is (equal (own-ends connection) (ends-for connection "X-Forwarded-For: unknown"))))))

(define-front-test (a-check-by-options-is-answered-where-nobody-knows-its-target
                    :fronts (:clack) :modes (:plain :http2)) ; for Hunchentoot's see requests.lisp
  (let ((given 404))
    (with-front (request) (reply given '() "content")
      (loop for (target status sent) in '(("/" 404 204) ("/" 405 405) ("/" 200 200)
                                          ("*" 404 204) ("*" 405 405) ("*" 200 200)
                                          ("/nowhere" 404 404))
            do (setf given status)
               (is (= sent (response-status (ask target :method :options))) "~A" target)))))

;;; The PROXY protocol

(defmacro telling-proxied-ends ((&rest arguments) &body body)
  "Evaluates BODY while *SERVER* wants a PROXY header from this machine."
  `(telling-ends (:proxy-protocol t :trusted-proxies '("127.0.0.1" "10.0.0.0/8") ,@arguments)
     ,@body))

(defun behind-a-header (header size)
  "A function that makes a connection of a connected usocket, over which HEADER was sent, SIZE
octets at a time."
  (let ((make *make-connection*))
    (lambda (socket)
      (send-in-pieces (%make-connection socket) size header)
      (funcall make socket))))

(defun check-ends-told (told header size)
  "Checks that the server knows TOLD, a list of source and destination or of two empty lists, for
two requests that name no host, behind HEADER in pieces of SIZE octets."
  (let ((*make-connection* (behind-a-header header size)))
    (with-connection (connection)
      (loop with ends = (if (first told)
                            told
                            `(("127.0.0.1" ,(client-port connection))
                              ("127.0.0.1" ,(port-of *server*))))
            repeat 2
            do (is (equal (format nil "~{~{~A ~A~} ~}~A" ends
                                  (if (eq :tls *mode*) "https" "http"))
                          (exchange-text connection "/" :version "HTTP/1.0" :host nil
                                         :headers '(("Connection" . "keep-alive")))))))))

(define-front-test (a-proxy-header-tells-both-ends :modes (:plain :unparked :tls))
  (telling-proxied-ends (:defer-accept nil)
    (loop for (told header) in *proxy-headers*
          do (check-ends-told told header (length header))
             (when (< (length header) 300)
               (check-ends-told told header 1)))
    (is-true (rejected-p 0))))

(define-front-test a-connection-without-a-proxy-header-is-closed-and-counted
  (telling-proxied-ends ()
    (dolist (octets *malformed-proxy-headers*)
      (with-connection (connection)
        (try-to-send connection octets)
        (is-true (closed-by-server-p connection) "~S" octets)))
    (eventually ("the rejections") (rejected-p (length *malformed-proxy-headers*)))
    (is-true (await-log "PROXY"))
    (check-ends-told '(() ()) (octets "PROXY UNKNOWN" :crlf) 100)))

(define-front-test (a-proxy-header-is-believed-only-where-it-is-wanted :modes (:plain))
  (telling-ends (:proxy-protocol t :trusted-proxies '("10.0.0.1"))
    (dolist (parts (list (octets "PROXY TCP4 10.0.0.1 10.0.0.2 1 2" :crlf (request-octets "/"))
                         (binary-header #x20 0 '())
                         (request-octets "/")))
      (is (zerop (length (ask-raw parts)))))
    (eventually ("the rejections") (rejected-p 3))
    (is-true (await-log "[WARNING]] A request was refused: The connection does not come from ")))
  (telling-ends (:trusted-proxies '("127.0.0.1"))
    (with-connection (connection)
      (send connection (octets "PROXY UNKNOWN" :crlf) (request-octets "/"))
      (is (= 400 (response-status (read-response connection)))))))

(define-front-test half-a-proxy-header-is-ended-by-the-time-limit
  (telling-proxied-ends (:read-timeout 1/2)
    (dolist (octets (list (octets "PROXY TCP4 192.") (as-octets *signature*)))
      (with-connection (connection)
        (send connection octets)
        (is-true (closed-by-server-p connection))))
    (unless (uiop:featurep :abcl)       ; there the limit of the stream comes first
      (eventually ("the end to be counted") (plusp (figure :expired))))))

(define-front-test a-proxys-check-is-no-failure
  (dolist (protocol-p '(nil t))
    (telling-ends (:proxy-protocol protocol-p :trusted-proxies '("127.0.0.1") :defer-accept nil)
      (dolist (part (list* "" (and protocol-p (list (binary-header #x20 0 '())
                                                    (octets "PROXY UNKNOWN" :crlf)))))
        (with-connection (connection)
          (send connection part)))
      (eventually ("the connections to be closed") (zerop (figure :open)))
      (is-true (rejected-p 0)))))

(define-front-test (fields-count-only-where-the-source-in-the-header-is-trusted-too
                    :modes (:plain))
  (telling-proxied-ends ()
    (loop for (source client) in '(("192.0.2.1" "192.0.2.1") ("10.1.2.3" "198.51.100.1"))
          do (with-connection (connection)
               (send connection (format nil "PROXY TCP4 ~A 10.0.0.1 5000 80" source) :crlf)
               (is (eql 0 (search client
                                  (ends-for connection "X-Forwarded-For: 198.51.100.1"))))))))

;;; What Hunchentoot's front has besides

(define-server-test (hunchentoots-functions-know-the-client-behind-a-trusted-proxy
                     :needs :our-http)
  (serving (:trusted-proxies '("127.0.0.1"))
      (("/away" (hunchentoot:redirect "/there"))
       ("/real" (hunchentoot:real-remote-addr))
       ("/later" (recycling:defer-reply (reply)
                   (in-background ("later")
                     (recycling:complete-reply reply (recycling:with-reply-context (reply)
                                                       (hunchentoot:remote-addr*)))))))
    (let ((headers '(("X-Forwarded-For" . "8.8.8.8, 192.0.2.1") ("X-Forwarded-Proto" . "https")
                     ("X-Forwarded-Host" . "example.org"))))
      (is (equal "https://example.org/there"
                 (response-header (ask "/away" :headers (list* '("Cookie" . "hunchentoot-session=1")
                                                               headers))
                                  "location")))
      (is (equal "192.0.2.1" (ask-text "/real" :headers headers)))
      (is (equal "127.0.0.1" (ask-text "/real")))
      (is (equal "192.0.2.1" (ask-text "/later" :headers headers)))
      (reinitialize-instance *server* :trusted-proxies '("10.0.0.1"))
      (is (equal "127.0.0.1" (ask-text "/real" :headers headers))))))

(define-server-test (the-access-log-has-the-client-behind-a-trusted-proxy :needs :our-http)
  (flet ((logged (trusted format octets)
           (with-directory (directory)
             (let ((log (merge-pathnames "access" directory)))
               (serving (:trusted-proxies trusted :access-log-format format
                         :access-log-destination log)
                   (("/" "body"))
                 (ask-raw octets))
               (first (last (uiop:read-file-lines log)))))))
    (let ((octets (request-octets "/" :headers '(("X-Forwarded-For" . "8.8.8.8, 192.0.2.1")
                                                 ("Connection" . "close")))))
      (is (eql 0 (search "192.0.2.1 - [" (logged '("127.0.0.1") :combined octets))))
      (is (search "\"remote_address\":\"192.0.2.1\",\"forwarded_for\":null"
                  (logged '("127.0.0.1") :json octets)))
      (is (eql 0 (search "127.0.0.1 - [" (logged '("10.0.0.1") :combined octets)))
          "Nor is there what others say."))
    (is (eql 0 (search "127.0.0.1 - ["
                       (logged '("127.0.0.1") :combined
                               (octets (request-octets "/" :headers '(("X-Forwarded-For" .
                                                                       "192.0.2.1")))
                                       "GET / HTTP/1.1" :crlf "Bad Name: 1" :crlf :crlf))))
        "A rejected request is not that of the client before.")))

(define-server-test (a-websockets-origin-is-compared-with-what-a-trusted-proxy-tells
                     :needs :our-engine)
  (flet ((status (origin &rest headers)
           (with-connection (connection)
             (send connection (handshake-octets :host "inner:1"
                                                :headers (list* (cons "Origin" origin) headers)))
             (response-status (read-head connection)))))
    (serving (:trusted-proxies '("127.0.0.1")) (("/ws" (recycling:upgrade-to-websocket) nil))
      (let ((told '(("X-Forwarded-Host" . "example.org") ("X-Forwarded-Proto" . "https"))))
        (is (= 101 (apply #'status "https://example.org" told)))
        (is (= 403 (apply #'status "https://inner:1" told)))
        (reinitialize-instance *server* :trusted-proxies '())
        (is (= 403 (apply #'status "https://example.org" told)))))))

(define-server-test (a-proxy-on-a-path-is-believed-where-that-is-asked-for :needs :our-engine)
  (loop for (trusted expected) in '(((:unix) "192.0.2.1") (("0.0.0.0/0" "::/0") "unix:"))
        do (with-path (path)
             (serving-path (path :trusted-proxies trusted) (("/" (hunchentoot:remote-addr*)))
               (with-open-connection (connection (connect-to-path path))
                 (is (equal expected
                            (exchange-text connection "/" :headers '(("X-Forwarded-For" .
                                                                      "192.0.2.1"))))))))))

(define-server-test (methods-of-programs-find-no-proxy-header :needs :our-engine)
  (dolist (mixin '(looking-around looking-within))
    (serving (:mixin mixin :trusted-proxies '("127.0.0.1") :proxy-protocol t)
        (("/" (hunchentoot:remote-addr*)))
      (dolist (header (list (octets "PROXY TCP4 192.0.2.1 10.0.0.1 51200 443" :crlf)
                            (binary-header #x21 #x11 *ipv4-octets*)))
        (with-connection (connection)
          (send connection header)
          (loop repeat 2
                do (is (equal "192.0.2.1" (exchange-text connection "/")))))))))
