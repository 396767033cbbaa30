(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite limits :in acceptors
  :description "How much one request may ask of an acceptor.")

(in-suite limits)

(defmacro answers (status (&rest initargs) &body parts)
  "Checks that an acceptor with INITARGS answers a request that begins with the octets of PARTS by
STATUS; unless that is 200, that it closes the connection and that no handler comes to an end."
  (let ((response (gensym "RESPONSE")) (runs (gensym "RUNS")))
    `(let ((,runs (make-recorder)))
       (serving ,initargs
           (("/" (hunchentoot:raw-post-data :force-binary t)
                 (record ,runs :handler)
                 "read")
            ("/form" (record ,runs (hunchentoot:post-parameter "a")) "read"))
         (with-connection (connection)
           (try-to-send connection ,@parts)
           (let ((,response (read-response connection)))
             (is (= ,status (response-status ,response)))
             (if (= 200 ,status)
                 (is (= 1 (recorded-count ,runs)))
                 (let ((closed (progn (end-sending connection)
                                      (closed-by-server-p connection))))
                   (is-true closed)
                   (is (equalp "close" (response-header ,response "connection")))
                   (is (null (recorded ,runs)))))))))))

(defun get-with (&rest lines)
  "The octets of a request with the header LINES."
  (octets "GET / HTTP/1.1" :crlf "Host: localhost" :crlf
          (loop for line in lines collect line collect :crlf) :crlf))

(defun post-with (content)
  (request-octets "/" :method :post :content content))

(defun post-chunks (&rest chunks)
  (request-octets "/" :method :post :chunks chunks))

;;; Heads

(define-server-test (request-lines-have-a-limit :needs :our-http)
  (answers 200 (:max-request-line-octets 20) "GET /?345 HTTP/1.1" :crlf "Host: a" :crlf :crlf)
  (answers 414 (:max-request-line-octets 20) "GET /?3456 HTTP/1.1" :crlf "Host: a" :crlf :crlf))

(define-server-test (header-lines-have-a-limit-together :needs :our-http)
  (let ((value (make-string 1000 :initial-element #\x)))
    (answers 200 (:max-header-octets 1100) (get-with (format nil "A: ~A" value)))
    (answers 431 (:max-header-octets 1000) (get-with (format nil "A: ~A" value)))))

(define-server-test (header-lines-are-counted :needs :our-http)
  (answers 200 (:max-header-count 3) (get-with "A: 1" "B: 2"))
  (answers 431 (:max-header-count 3) (get-with "A: 1" "B: 2" "C: 3")))

(define-server-test (a-head-of-32-kib-is-taken-by-default :needs :our-http)
  (flet ((head-of-octets (count)
           (let ((rest (length (get-with "A: "))))
             (get-with (format nil "A: ~A" (make-string (- count rest) :initial-element #\x))))))
    (answers 200 () (head-of-octets (* 32 1024)))
    (answers 431 () (head-of-octets (1+ (* 32 1024))))
    (answers 200 (:max-header-octets (* 128 1024)) (head-of-octets (* 112 1024)))))

;;; Content

(define-server-test (content-has-a-limit :needs :our-engine)
  (answers 200 (:max-body-octets 10) (post-with (test-octets 10)))
  (answers 413 (:max-body-octets 10) (post-with (test-octets 11)))
  (answers 413 (:max-body-octets 0) (post-with (test-octets 1))))

(define-server-test (content-in-chunks-is-counted :needs :our-engine)
  (answers 200 (:max-body-octets 10) (post-chunks "12345" "67890"))
  (answers 413 (:max-body-octets 10) (post-chunks "12345" "67890" "1"))
  (answers 413 (:max-body-octets 10) (post-chunks (test-octets 100000)))
  (answers 200 () (post-chunks (test-octets 100000))))

(define-server-test (forms-in-chunks-are-counted :needs :our-engine)
  (flet ((form (value)
           (request-octets "/form" :method :post :chunks (list "a=" value)
                                   :content-type "application/x-www-form-urlencoded")))
    (answers 200 (:max-body-octets 10) (form "12345678"))
    (answers 413 (:max-body-octets 10) (form "123456789"))))

(define-server-test (content-read-as-a-stream-is-counted :needs :our-engine)
  (let ((read (make-recorder)))
    (serving (:max-body-octets 10)
        (("/" (loop with stream = (hunchentoot:raw-post-data :want-stream t)
                    for octet = (read-byte stream nil nil)
                    while octet do (record read octet)
                    finally (record read :end))
              "read"))
      (is (= 200 (response-status (ask "/" :method :post :chunks '("1234567890")))))
      (is (= 1 (recorded-count read :end)))
      (is (= 413 (response-status (ask "/" :method :post :chunks '("12345" "678901")))))
      (is (= 1 (recorded-count read :end))))))

(define-server-test
    (after-content-that-is-refused-amid-a-reply-nothing-is-served :needs :our-engine)
  (let ((runs (make-recorder)))
    (serving (:max-body-octets 10)
        (("/" (record runs :handler)
              (let ((reply (hunchentoot:send-headers))
                    (content (hunchentoot:raw-post-data :want-stream t)))
                (ignore-errors (loop while (read-byte content nil nil)))
                (finish-output reply)
                nil)))
      (with-connection (connection)
        (try-to-send connection (post-chunks "12345" "678901") (get-with))
        (receive-rest connection)
        (is (equal '(:handler) (recorded runs)))))))

(define-server-test (a-handler-that-wants-no-content-answers-nevertheless :needs :our-http)
  (serving (:max-body-octets 10) (("/" "not read"))
    (with-connection (connection)
      (is (string= "not read" (exchange-text connection "/" :method :post
                                                            :chunks (list (test-octets 11)))))
      (end-sending connection)
      (is-true (closed-by-server-p connection)))))

;;; What is between the chunks

(defun post-raw (&rest body)
  "A request with the octets of BODY as its chunked content."
  (octets "POST / HTTP/1.1" :crlf "Host: localhost" :crlf "Transfer-Encoding: chunked" :crlf :crlf
          body))

(define-server-test (chunk-extensions-have-a-limit :needs :our-http)
  (answers 200 (:max-chunk-extension-octets 10)
    (post-raw "1;a=34" :crlf "x" :crlf "0;a=4" :crlf :crlf))
  (answers 413 (:max-chunk-extension-octets 10)
    (post-raw "1;a=345" :crlf "x" :crlf "0;a=45" :crlf :crlf)))

(define-server-test (trailers-have-a-limit :needs :our-http)
  (answers 200 (:max-trailer-octets 20)
    (post-raw "1" :crlf "x" :crlf "0" :crlf "A: 1" :crlf "B: 2" :crlf :crlf))
  (answers 431 (:max-trailer-octets 20)
    (post-raw "1" :crlf "x" :crlf "0" :crlf "A: 1" :crlf "B: 2345678901234567" :crlf :crlf)))

(define-server-test (malformed-chunks-are-bad-requests :needs :our-http)
  (dolist (body '("x" ("1" :crlf "xx" :crlf) ("-1" :crlf) ("1 x" :crlf)))
    (answers 400 () (post-raw body "0" :crlf :crlf))))

(define-server-test (content-that-ends-within-a-chunk-is-not-taken-for-whole :needs :our-http)
  (let ((runs (make-recorder)))
    (serving () (("/" (hunchentoot:raw-post-data :force-binary t) (record runs :handler) "read"))
      (with-connection (connection)
        (send connection (post-raw "5" :crlf "123"))
        (end-sending connection)
        (is (not (search (octets " 200 ") (receive-rest connection))))
        (is (null (recorded runs)))))))

(define-server-test (chunks-may-come-octet-by-octet :needs :our-http)
  (serving () (("/" (hunchentoot:raw-post-data :force-text t)))
    (with-connection (connection)
      (loop repeat 2
            do (send-in-pieces connection 1 (post-raw "3;x" :crlf "one" :crlf "4" :crlf " two" :crlf
                                                      "0" :crlf "Trailer: 1" :crlf :crlf))
               (is (string= "one two" (response-text (read-response connection))))))))

(define-server-test (input-chunking-p-tells-of-chunks :needs :our-engine)
  (serving () (("/" (shown (and (hunchentoot::input-chunking-p) t))))
    (is (string= "NIL" (ask-text "/" :method :post :content "one")))
    (is (string= "T" (ask-text "/" :method :post :chunks '("one"))))))

(define-server-test (a-stream-of-chunks-listens :needs :our-http)
  (let ((asked (make-gate)) (more (make-gate)))
    (serving () (("/" (let ((stream (slot-value hunchentoot:*request*
                                                'hunchentoot::content-stream)))
                        (read-byte stream)
                        (let ((before (listen stream)))
                          (open-gate asked)
                          (await more)
                          (shown before
                                 (and (poll (lambda () (listen stream))) t)
                                 (read-byte stream)
                                 (read-byte stream nil :end)
                                 (listen stream))))))
      (with-connection (connection)
        (send connection (post-raw "1" :crlf "a" :crlf "1"))
        (await asked)
        (send connection :crlf "b" :crlf "0" :crlf :crlf)
        (open-gate more)
        (is (string= (shown nil t 98 :end nil)
                     (response-text (read-response connection))))))))

;;; Arguments

(define-server-test (limits-can-be-changed-while-the-acceptor-runs :needs :our-engine)
  (serving (:max-body-octets 10) (("/" "read"))
    (is (= 413 (response-status (ask "/" :method :post :content "12345678901"))))
    (reinitialize-instance *server* :max-body-octets 11)
    (is (= 200 (response-status (ask "/" :method :post :content "12345678901"))))
    (signals hunchentoot:parameter-error
      (reinitialize-instance *server* :max-body-octets :none))
    (is (= 413 (response-status (ask "/" :method :post :content "123456789012"))))))
