(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite clack :in all
  :description "Clack applications, by the protocol of Clack's handlers.")

(def-suite clack/environments :in clack
  :description "What an application is told of a request.")

(in-suite clack/environments)

(define-server-test a-request-is-told-in-full
  (let ((environment (environment-of (request-octets "/a%20b/?q=1&r=%20" :host "example.org:8080"
                                                     :headers '(("X-Foo" . "bar"))))))
    (is (equal '(:get "" "/a b/" "q=1&r=%20" "example.org" 8080 :http/1.1 "/a%20b/?q=1&r=%20" "http"
                 "127.0.0.1" nil nil t)
               (known environment :request-method :script-name :path-info :query-string :server-name
                      :server-port :server-protocol :request-uri :url-scheme
                      :remote-addr :content-type :content-length :clack.streaming)))
    (is (typep (getf environment :remote-port) '(integer 1 65535)))
    (is (input-stream-p (getf environment :raw-body)))))

(define-server-test a-string-gets-the-text-of-a-body
  (let ((string (make-string 8)))
    (with-clack (environment (progn (read-sequence string (getf environment :raw-body))
                                    (text-response "read")))
      (is (= 200 (response-status (ask "/" :method :post :content "name=Bob")))))
    (is (equal "name=Bob" string))))

(define-server-test headers-are-in-an-equal-hash-table-by-names-in-lower-case
  (let ((headers (getf (environment-of (request-octets "/" :headers '(("X-Foo" . "bar")
                                                                      ("COOKIE" . "a=1")
                                                                      ("X-Foo" . "baz")
                                                                      ("Cookie" . "b=2"))
                                                           :content "x" :content-type "text/plain"))
                       :headers)))
    (is (eq 'equal (hash-table-test headers)))
    (is (cl-ppcre:scan "^bar, ?baz$" (gethash "x-foo" headers)))
    (is (equal "a=1; b=2" (gethash "cookie" headers)))
    (is (equal "localhost" (gethash "host" headers)))
    (is (equal "text/plain" (gethash "content-type" headers)))
    (is (equal "1" (gethash "content-length" headers)))))

(define-server-test environments-tell-what-requests-say
  (let ((seen nil))
    (with-clack (environment (progn (setf seen environment) (text-response "seen")))
      (with-connection (connection)
        (loop for (request . facts) in (read-table "clack/environments.sexp")
              do (is (= 200 (response-status (apply #'exchange connection request))))
                 (loop for (name value) on facts by #'cddr
                       do (is (equal value (getf seen name '#:missing)) "~S: ~A" request name)))
        (is (= 501 (response-status (exchange connection "/" :method "NEVER-HEARD-OF-THIS"))))))))

(define-server-test each-request-has-an-environment-of-its-own
  (let ((seen '()))
    (call-with-clack (lambda (environment)
                       (push environment seen)
                       (setf (gethash "x-mine" (getf environment :headers)) "1")
                       (rplacd (last environment) (list :mine t)) ; as Lack does
                       (text-response "seen"))
                     '()
                     (lambda ()
                       (with-connection (connection)
                         (loop repeat 2 do (exchange connection "/")))))
    (destructuring-bind (second first) seen
      (is (not (eq first second)))
      (is (not (eq (getf first :headers) (getf second :headers))))
      (is (= 1 (count :mine second))))))
