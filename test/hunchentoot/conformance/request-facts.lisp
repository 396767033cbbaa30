(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* conformance/request-facts :in conformance
  :description "What a handler can ask about the request.")

;;; The target

(define-server-test the-target-is-split-at-the-question-mark
  (serving () (("/path" (shown (hunchentoot:request-uri*) (hunchentoot:script-name*)
                               (hunchentoot:query-string*))))
    (is (string= (shown "/path?a=1&b=%20?c" "/path" "a=1&b=%20?c")
                 (ask-text "/path?a=1&b=%20?c")))))

(define-server-test without-a-question-mark-there-is-no-query-string
  (serving () (("/path" (shown (hunchentoot:query-string*))))
    (is (string= "NIL" (ask-text "/path")))
    (is (string= "\"\"" (ask-text "/path?")))))

(define-server-test the-path-is-decoded-once
  (serving () (("/a b%20ä" (shown (hunchentoot:script-name*) (hunchentoot:request-uri*))))
    (is (string= (shown "/a b%20ä" "/a%20b%2520%C3%A4")
                 (ask-text "/a%20b%2520%C3%A4")))))

(define-server-test a-plus-in-the-path-is-decoded-as-the-release-says
  (serving () (("/a+b" "plus") ("/a b" "space"))
    (is (string= (if (plus-in-path-is-space-p) "space" "plus")
                 (ask-text "/a+b")))))

(define-server-test a-broken-escape-in-the-path-is-a-bad-request
  (serving () ()
    (is (= 400 (response-status (ask "/%zz"))))
    (is (= 400 (response-status (ask "/%4"))))))

(define-server-test the-absolute-form-names-the-same-page
  (serving () (("/page" (shown (hunchentoot:script-name*) (hunchentoot:request-uri*))))
    (is (string= (shown "/page" "http://example.org/page")
                 (ask-text "http://example.org/page")))))

(define-server-test the-protocol-is-a-keyword
  (serving () (("/" (shown (hunchentoot:server-protocol*))))
    (is (string= ":HTTP/1.1" (ask-text "/")))
    (is (string= ":HTTP/1.0" (ask-text "/" :version "HTTP/1.0")))))

(define-server-test another-version-is-refused-where-the-release-says-so
  (if (other-versions-refused-p)
      (serving () (("/" "served"))
        (is (= 505 (response-status (ask "/" :version "HTTP/3.0")))))
      (skip "This release of Hunchentoot serves any version.")))

;;; Headers

(define-server-test a-header-is-found-by-keyword-and-by-string
  (serving () (("/" (shown (hunchentoot:header-in* :x-answer)
                           (hunchentoot:header-in* "X-Answer")
                           (hunchentoot:header-in* :x-question))))
    (is (string= (shown "Forty Two" "Forty Two" nil)
                 (ask-text "/" :headers '(("X-ANSWER" . "Forty Two")))))))

(define-server-test all-headers-are-an-alist-of-keywords-and-strings
  (serving () (("/" (shown (hunchentoot:headers-in*))))
    (is (equal '((:host . "localhost") (:x-one . "1") (:x-two . ""))
               (read-from-string
                (ask-text "/" :headers '(("X-One" . "1") ("X-Two" . ""))))))))

(define-server-test repeated-headers-are-joined-by-commas
  (serving () (("/" (remove #\Space (hunchentoot:header-in* :x-list))))
    (is (string= "a,b"
                 (ask-text "/" :headers '(("X-List" . "a") ("X-List" . "b")))))))

(define-server-test well-known-headers-have-readers
  (serving () (("/" (shown (hunchentoot:host) (hunchentoot:user-agent)
                           (hunchentoot:referer))))
    (is (string= (shown "example.org:81" "Tester/1" "http://there/")
                 (ask-text "/" :host "example.org:81"
                               :headers '(("User-Agent" . "Tester/1")
                                          ("Referer" . "http://there/")))))
    (is (string= (shown "localhost" nil nil) (ask-text "/")))))

(define-server-test a-request-without-host-is-served-under-http-1.0
  (serving () (("/" (shown (hunchentoot:host))))
    (is (string= "NIL" (ask-text "/" :host nil :version "HTTP/1.0")))))

;;; Addresses

(define-server-test both-ends-of-the-connection-are-known
  (serving () (("/" (shown (hunchentoot:remote-addr*) (hunchentoot:remote-port*)
                           (hunchentoot:local-addr*) (hunchentoot:local-port*))))
    (with-connection (connection)
      (is (string= (shown "127.0.0.1" (client-port connection)
                          "127.0.0.1" (hunchentoot:acceptor-port *server*))
                   (exchange-text connection "/"))))))

(define-server-test a-proxy-may-tell-the-real-address
  (serving () (("/" (shown (multiple-value-list (hunchentoot:real-remote-addr)))))
    (is (string= (shown '("127.0.0.1")) (ask-text "/")))
    (is (string= (shown '("10.0.0.1" ("10.0.0.1" "10.0.0.2")))
                 (ask-text "/" :headers '(("X-Forwarded-For" . "10.0.0.1, 10.0.0.2")))))))

;;; The dynamic context

(define-server-test the-handler-sees-its-acceptor-request-and-reply
  (let ((seen '()))
    (serving () (("/" (setf seen (list hunchentoot:*acceptor*
                                       (hunchentoot:request-acceptor hunchentoot:*request*)
                                       hunchentoot:*reply* hunchentoot:*session*))
                      (shown (hunchentoot:ssl-p))))
      (is (string= "NIL" (ask-text "/")))
      (destructuring-bind (acceptor of-request reply session) seen
        (is (eq *server* acceptor))
        (is (eq *server* of-request))
        (is (typep reply 'hunchentoot:reply))
        (is (null session))))))

(define-server-test within-request-p-is-true-only-in-a-request
  (serving () (("/" (shown (and (hunchentoot:within-request-p) t))))
    (is (string= "T" (ask-text "/")))
    (is (not (hunchentoot:within-request-p)))))

(define-server-test request-and-reply-are-new-for-every-request-of-a-connection
  (let ((seen '()))
    (serving () (("/" (push hunchentoot:*request* seen)
                      (push hunchentoot:*reply* seen)
                      "seen"))
      (with-connection (connection)
        (exchange connection "/")
        (exchange connection "/"))
      (is (= 4 (length (remove-duplicates seen)))))))

(define-server-test aux-values-live-as-long-as-the-request
  (serving () (("/" (let ((old (hunchentoot:aux-request-value :count)))
                      (setf (hunchentoot:aux-request-value :count) 1)
                      (incf (hunchentoot:aux-request-value :count))
                      (shown old (hunchentoot:aux-request-value :count)
                             (progn (hunchentoot:delete-aux-request-value :count)
                                    (hunchentoot:aux-request-value :count))))))
    (with-connection (connection)
      (loop repeat 2
            do (is (string= (shown nil 2 nil) (exchange-text connection "/")))))))

;;; Encoding

(test url-encoding-and-decoding-are-inverse
  (dolist (string (list "" "plain" "a b+c&d=e%f" "äöü €" "100% /?#"))
    (is (string= string (hunchentoot:url-decode (hunchentoot:url-encode string :utf-8)
                                                :utf-8))))
  (is (string= "%C3%A4" (hunchentoot:url-encode "ä" :utf-8)))
  (is (string= "%E4" (hunchentoot:url-encode "ä" :latin-1))))
