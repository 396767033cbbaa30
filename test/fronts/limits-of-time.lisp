(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* fronts/limits-of-time :in fronts
  :description "Limits on time and on connections that each mean one thing.")

(defun ended-by (kind)
  (getf (figure :expired-by) kind))

(defun await-ended-by (kind)
  "Waits until a connection was ended for KIND, and checks that it was only one."
  (eventually ("the end of a connection to be counted") (plusp (ended-by kind)))
  (is (= 1 (ended-by kind))))

(defun await-next ()
  "Waits until a request for /word is answered as it should be."
  (is-true (eventually ("the next request to be served")
             (equal "word" (ignore-errors (ask-text "/word"))))))

;;; A client

(define-front-test (a-head-has-a-limit-of-its-own :modes (:plain :unparked :tls) :needs :our-http)
  (with-front (request :head-timeout 1/2 :read-timeout 60) (reply 200 '() "Hey!")
    (let ((before (figure :memory)))
      (with-connection (connection)
        (send connection "GET / HT")
        (is (= 408 (response-status (read-response connection))))
        (is-true (closed-by-server-p connection))
        (await-ended-by :head))
      (eventually ("memory to be given back") (>= before (figure :memory))))))

(define-front-test (each-head-has-that-limit-for-itself :needs :our-http)
  (with-growing-limit (seconds)
    (with-front (request :head-timeout seconds :read-timeout 60) (reply 200 '() "Hey!")
      (with-connection (connection)
        (loop with octets = (request-octets "/")
              repeat 3
              do (is (equal "Hey!" (promptly (send connection (subseq octets 0 10))
                                             (poll (constantly nil) (* 6/10 seconds))
                                             (send connection (subseq octets 10))
                                             (response-text (read-response connection))))))))))

(define-front-test (a-connection-that-idles-has-a-limit-of-its-own
                    :modes (:plain :unparked :http2) :needs :our-http)
  (with-growing-limit (seconds)
    (with-front (request :idle-timeout seconds :read-timeout 60 :handler-timeout 60
                         :defer-accept nil)
        (reply 200 '() "Hey!")
      (with-connections (others 2)
        (send (first others) :crlf)
        (with-prompt-connection (connection)
          (is (equal "Hey!" (promptly (exchange-text connection "/"))))
          (is-true (closed-by-server-p connection)))
        (is (every #'closed-by-server-p others))))))

(define-front-test (no-head-is-late-while-its-handler-runs :needs :our-http)
  (with-growing-limit (seconds)
    (with-front (request :read-timeout seconds)
        (progn (poll (constantly nil) (+ 3/4 seconds))
               (reply 200 '() "Hey!"))
      (with-prompt-connection (connection)
        (promptly (send connection (subseq (request-octets "/") 0 10))
                  (ask-text "/word")
                  (send connection (subseq (request-octets "/") 10)))
        (is (equal "Hey!" (response-text (read-response connection))))
        (is (zerop (ended-by :head)))))))

(define-front-test (a-client-that-does-not-begin-with-tls-is-counted-as-new :modes (:tls)
                                                                           :needs :parking)
  (with-front (request :idle-timeout 1/10 :defer-accept nil) nil
    (let ((*make-connection* '%make-connection))
      (with-connection (connection)
        (is-true (closed-by-server-p connection))
        (await-ended-by :idle)))))

(define-front-test (a-client-that-sends-nothing-more-has-the-read-timeout :needs :our-http)
  (with-growing-limit (seconds)
    (with-front (request :read-timeout seconds) (reply 200 '() (content request))
      (loop for (octets status) in `(("GET / HT" 408) ("" nil) (:crlf nil)
                                     (,(post-head "/" "Content-Length: 3") 408))
            do (with-prompt-connection (connection)
                 (is (equal "word" (promptly (prog1 (exchange-text connection "/word")
                                               (send connection octets)))))
                 (when status
                   (is (= status (response-status (read-response connection)))))
                 (is-true (closed-by-server-p connection)))))))

;;; Connections

(define-front-test (a-connection-ends-with-the-last-request-that-it-may-serve :needs :our-http)
  (with-front (request :max-connection-requests 2) (reply 200 '() "Hey!")
    (loop repeat 2
          do (with-connection (connection)
               (is (null (response-header (exchange connection "/") "connection")))
               (is (string-equal "close" (response-header (exchange connection "/") "connection")))
               (is-true (closed-by-server-p connection))))))

(define-front-test an-address-has-no-more-connections-than-it-may
  (with-front (request :max-address-connections 2 :defer-accept nil) (reply 200 '() "Hey!")
    (with-admitted (first)
      (with-admitted (second)
        (loop for count from (1+ (refused-for-address))
              repeat 2
              do (with-connection (third)
                   (check-refused third)
                   (eventually ("the refusal to be counted") (= count (refused-for-address)))))
        (is (equal "Hey!" (exchange-text second "/"))))
      (with-admitted (another)
        (is (equal "Hey!" (exchange-text first "/")))
        (is (equal "Hey!" (exchange-text another "/")))))))

(define-front-test a-connection-counts-for-its-address-until-it-ends
  (with-front (request :max-address-connections 1 :defer-accept nil
                       :read-timeout 1/2 :idle-timeout 60)
      (error "Broken.")
    (dolist (end (list #'disconnect
                       (lambda (connection)
                         (exchange connection "/word" :headers '(("Connection" . "close"))))
                       (lambda (connection)
                         (send-request connection "/")
                         (disconnect connection))
                       (lambda (connection)
                         (send connection "no HTTP" :crlf :crlf))
                       (lambda (connection)
                         (send connection "GET / HT"))))
      (with-admitted (connection)
        (with-connection (refused)
          (check-refused refused))
        (funcall end connection)
        (with-admitted (next)
          (with-connection (refused)
            (check-refused refused)))))
    (eventually ("the address to be forgotten")
      (zerop (hash-table-count (engine::engine-addresses (server:server-engine *server*)))))))

(define-front-test a-trusted-proxy-has-as-many-connections-as-it-opens
  (with-front (request :max-address-connections 1 :trusted-proxies '("127.0.0.0/8"))
      (reply 200 '() "Hey!")
    (with-connections (connections 3)
      (dolist (connection connections)
        (is (equal "Hey!" (exchange-text connection "/"
                                         :headers '(("X-Forwarded-For" . "192.0.2.1")))))))
    (is (zerop (refused-for-address)))))

(defun proxied (address)
  "A connection that begins with a PROXY header, which tells that the client has ADDRESS."
  (let ((connection (connect)))
    (send connection
          (format nil "PROXY TCP~D ~A ~:*~A 1 2" (if (find #\: address) 6 4) address) :crlf)
    connection))

(define-front-test with-the-proxy-protocol-connections-count-for-their-clients
  (with-front (request :max-address-connections 1 :proxy-protocol t
                       :trusted-proxies '("127.0.0.1" "10.0.0.1"))
      (reply 200 '() "Hey!")
    (let ((served '()))
      (unwind-protect
           (progn
             (dolist (address '("192.0.2.1" "192.0.2.2" "2001:db8::1" "2001:db8:0:1::1"
                                "10.0.0.1" "10.0.0.1"))
               (push (proxied address) served)
               (is (equal "Hey!" (exchange-text (first served) "/"))))
             ;; The same in other words, and in the same network of 64 bits
             (dolist (address '("192.0.2.1" "::ffff:192.0.2.2" "2001:db8:0:0:8000::1"))
               (with-open-connection (refused (proxied address))
                 (check-refused refused)))
             (eventually ("the refusals to be counted") (= 3 (refused-for-address))))
        (mapc #'disconnect served))
      (eventually ("a client to be let in again")
        (with-open-connection (connection (proxied "192.0.2.1"))
          (equal "Hey!" (handler-case (exchange-text connection "/")
                          (error () nil))))))))

;;; A handler

(define-front-test (a-handler-beyond-its-limit-is-answered-503-in-its-place
                    :modes (:plain :unparked :tls)
                    :needs :our-http)
  (let ((gate (make-gate)) (seen (make-recorder)))
    (with-front (request :handler-timeout 1/2 :worker-num 1 :max-thread-count 1)
        (flet ((look ()
                 (record seen (recycling:request-timed-out-p))))
          (look)
          (await gate (* 3 *patience*))
          (look)
          (reply 200 '() "too late"))
      (with-connection (connection)
        (send connection (request-octets "/" :method :head) (request-octets "/word"))
        (let ((response (read-response connection :head t)))
          (is (= 503 (response-status response)))
          (is (string-equal "close" (response-header response "connection"))))
        (is-true (closed-by-server-p connection) "The handler runs on, but our side has ended.")
        (is (equal '(nil) (recorded seen)))
        (is (= 1 (ended-by :handler)))
        (open-gate gate)
        (eventually ("the handler to end") (= 2 (recorded-count seen))))
      (is (equal '(nil t) (recorded seen)))
      (is (= 1 (ended-by :handler)))
      (await-next)
      (is (= 1 (figure :errors)))
      (is (null (recycling:request-timed-out-p)) "There is no request here."))))

(define-front-test (a-handler-that-ends-as-soon-as-it-is-late-cuts-no-answer :needs :our-http)
  (with-front (request :handler-timeout 1/10)
      (progn (loop until (recycling:request-timed-out-p))
             (reply 200 '() "too late"))
    (loop repeat 10
          do (is (= 503 (response-status (ask "/")))))))

(define-front-test (nothing-that-a-late-handler-does-reaches-its-client :needs :our-http)
  (with-directory (directory)
    (let ((file (pathname (write-file directory "file.txt" "in the file"))) (gate (make-gate)))
      (with-front (request :handler-timeout 1/2)
          (let ((path (path request)))
            (await gate)
            (cond ((equal "/error" path) (error "Too late, on purpose."))
                  ((equal "/file" path) (reply 200 '() file))
                  ((equal "/later" path) (later (answer) (funcall answer 200 '() "later")))
                  ((equal "/write" path) (streamed (write 200) (funcall write "late")))
                  (t (reply 101 '(:upgrade "talk") "late"))))
        (let ((connections (loop for path in '("/error" "/file" "/later" "/write" "/switch" "/head")
                                 for connection = (connect)
                                 do (send-request connection path
                                                  :method (if (equal "/head" path) :head :get))
                                 collect connection)))
          (dolist (connection connections)
            (is (= 503 (response-status
                        (read-response connection
                                       :head (eq connection (first (last connections))))))))
          (open-gate gate)
          (dolist (connection connections)
            (is-true (closed-by-server-p connection))
            (disconnect connection)))
        (eventually ("the handlers to end") (zerop (figure :busy)))
        (await-next)))))

(define-front-test (a-streamed-reply-beyond-the-limit-is-cut :needs :our-http)
  (with-growing-limit (seconds)
    (let ((gate (make-gate)))
      (with-front (request :handler-timeout seconds)
          (streamed (write 200)
            (funcall write "begun")
            (await gate (* 3 *patience*))
            (ignore-errors (funcall write "more")))
        (with-connection (connection)
          (send-request connection "/")
          (unwind-protect
               (progn
                 (promptly (read-head connection)
                           (next-octet connection))
                 (let ((text (decode (receive-rest connection))))
                   (is (search "begun" text))
                   (is (not (search (format nil "~C~C0~2:*~C~C" #\Return #\Newline) text))))
                 (is (= 1 (ended-by :handler))))
            (open-gate gate)))
        (await-next)
        (eventually ("the handler to end") (zerop (figure :busy)))))))

(define-front-test a-handler-that-has-deferred-its-reply-is-not-late
  (with-growing-limit (seconds)
    (with-pending (answer connection (request-octets "/") :handler-timeout seconds)
      (when (readable-p connection (* 2 seconds)) ; it was late before
        (come-too-late))
      (funcall answer 200 '() "later")
      (is (equal "later" (response-text (read-response connection)))))))

(define-front-test (a-deferred-reply-of-a-late-handler-is-dropped :needs :our-http)
  (let ((gate (make-gate)) (answers (make-recorder)))
    (with-front (request :handler-timeout 1/2 :reply-timeout 60)
        (later (answer)
          (record answers answer)
          (await gate))
      (with-connection (connection)
        (send-request connection "/")
        (is (= 503 (response-status (read-response connection))))
        (open-gate gate)
        (is-true (closed-by-server-p connection))
        (eventually ("the handler to end") (zerop (figure :busy)))
        (is (null (funcall (await-answer answers) 200 '() "later")))))))
