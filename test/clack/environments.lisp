(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite clack :in all
  :description "Clack applications, by the protocol of Clack's handlers.")

(def-suite clack/environments :in clack
  :description "What an application is told of a request.")

(in-suite clack/environments)

(defun known (environment &rest keys)
  "What ENVIRONMENT has under KEYS, a list."
  (loop for key in keys collect (getf environment key '#:missing)))

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

(define-server-test the-length-of-content-is-an-integer-where-it-is-known
  (flet ((length-of (&rest keys)
           (getf (environment-of (apply #'request-octets "/" :method :post keys)) :content-length)))
    (is (eql 3 (length-of :content "abc")))
    (is (eql 0 (length-of :headers '(("Content-Length" . "0")))))
    (is (null (length-of :chunks '("abc"))))
    (is (null (length-of)))))

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

(defun path-info (target)
  (getf (environment-of (request-octets target)) :path-info))

(define-server-test paths-are-decoded-once-leniently-as-utf-8
  (is (equal "/foo/bar,baz" (path-info "/foo/bar%2cbaz")))
  (is (equal "/foo/bar%2cbaz" (path-info "/foo/bar%252cbaz")))
  (is (equal (format nil "/foo~C" (code-char #x3042)) (path-info "/foo%E3%81%82")))
  (is (equal (format nil "/~C~C'\"(" (code-char #x3042) (code-char #xFFFD))
             (path-info "/%E3%81%82%BF%27%22%28")))
  (is (equal "/%zz" (path-info "/%zz")))
  (is (equal "/a+b" (path-info "/a+b")))
  (is (equal "/foo///bar/baz" (path-info "/foo///bar/baz")))
  (is (equal "///" (path-info "///"))))

(define-server-test targets-of-every-form-have-a-path
  (let ((environment (environment-of (request-octets "http://other.org:81/p?x=/y" :host "a"))))
    (is (equal '("/p" "x=/y" "other.org" 81 "http://other.org:81/p?x=/y")
               (known environment
                      :path-info :query-string :server-name :server-port :request-uri))))
  (is (equal "/" (path-info "http://other.org")))
  (is (equal '("/" "q") (known (environment-of (request-octets "http://other.org?q"))
                               :path-info :query-string)))
  (is (equal "*" (getf (environment-of (request-octets "*" :method :options)) :path-info)))
  (is (equal '("/p" "") (known (environment-of (request-octets "/p?")) :path-info :query-string)))
  (is (equal '("/p" nil) (known (environment-of (request-octets "/p")) :path-info :query-string))))

(defun host-of (host &rest keys)
  (known (environment-of (apply #'request-octets "/" :host host keys)) :server-name :server-port))

(define-server-test the-server-is-the-one-that-the-client-has-asked-for
  (is (equal '("localhost" 80) (host-of "localhost")))
  (is (equal '("localhost" 80) (host-of "localhost:")))
  (is (equal '("localhost" 5000) (host-of "localhost:5000")))
  (is (equal '("[::1]" 80) (host-of "[::1]")))
  (is (equal '("[::1]" 5000) (host-of "[::1]:5000"))))

(define-server-test a-client-that-names-no-server-has-asked-for-our-end
  (let ((seen nil))
    (with-clack (environment (progn (setf seen environment)
                                    (text-response "seen")))
      (ask-raw (request-octets "/" :host nil :version "HTTP/1.0"))
      (is (equal (list "127.0.0.1" (port-of *server*) :http/1.0)
                 (known seen :server-name :server-port :server-protocol))))))

(define-server-test two-hosts-in-turn-are-told-apart
  (with-clack (environment (text-response (format nil "~A:~A" (getf environment :server-name)
                                                  (getf environment :server-port))))
    (with-connection (connection)
      (loop for host in '("a:1" "b:2" "a:1" "a:3" "b")
            for name in '("a:1" "b:2" "a:1" "a:3" "b:80")
            do (is (equal name (exchange-text connection "/" :host host)))))))

(define-server-test methods-are-keywords-and-others-are-not-implemented
  (with-clack (environment (text-response (prin1-to-string (getf environment :request-method))))
    (is (equal ":PUT" (ask-text "/" :method :put)))
    (is (equal ":PROPFIND" (ask-text "/" :method :propfind)))
    (is (= 501 (response-status (ask "/" :method "NEVER-HEARD-OF-THIS"))))))

(define-server-test a-long-header-comes-whole-within-the-limit
  (let ((value (make-string (* 96 1024) :initial-element #\a)))
    (with-clack (environment (text-response (gethash "x-foo" (getf environment :headers))))
      (is (equal value (ask-text "/" :headers `(("X-Foo" . ,value))))))
    (with-clack (environment (text-response "not so long")
                 :max-header-octets (* 64 1024))
      (is (= 431 (response-status (ask "/" :headers `(("X-Foo" . ,value)))))))))
