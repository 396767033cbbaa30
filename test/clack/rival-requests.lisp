(in-package #:hunchentoot-recycling-taskmaster-test)

;;;; What is asked of us and of others; rival-application.lisp tells what the paths mean, and that
;;;; others than those which it names are answered with the environment.

(defparameter *rival-requests*
  `(;; Methods
    (:get "/env")
    (:post "/env" :method :post :content "abc" :content-type "text/plain")
    (:put "/env" :method :put :content "abc" :content-type "text/plain")
    (:patch "/env" :method :patch :content "abc" :content-type "text/plain")
    (:delete "/env" :method :delete)
    (:options "/env" :method :options)
    (:options-of-all "*" :method :options)
    (:trace "/env" :method :trace)
    (:unknown-method "/env" :method "BREW")
    (:method-in-lower-case "/env" :method "get")
    ;; Targets
    (:query "/env?a=1&b=%20&c=x+y")
    (:empty-query "/env?")
    (:query-with-mark "/env?a=?b")
    (:escapes "/env%2cfoo%252c/%E3%81%82")
    (:escaped-slash "/env%2Ffoo")
    (:escaped-nul "/env%00")
    (:escapes-not-utf-8 "/env/%BF%27")
    (:escapes-malformed "/env/%zz%")
    (:slashes "/env///foo")
    (:dots "/env/../foo/./bar")
    (:plus "/env+foo")
    (:parameters "/env;a=1/foo")
    (:reserved "/env/!$&'()*,=@:~")
    (:fragment "/env#part")
    (:absolute "http://example.org:81/env?a=1")
    (:absolute-root "http://example.org")
    (:long ,(format nil "/env/~A" (make-string 2000 :initial-element #\x)))
    ;; Header fields
    (:headers "/env" :headers (("X-Foo" . "bar") ("ACCEPT" . "*/*") ("x_low" . "a")))
    (:repeated-headers "/env" :headers (("X-Foo" . "bar") ("X-Foo" . "baz")))
    (:cookies "/env" :headers (("Cookie" . "a=1; b=2")))
    (:repeated-cookies "/env" :headers (("Cookie" . "a=1") ("Cookie" . "b=2")))
    (:empty-header "/env" :headers (("X-Foo" . "")))
    (:spaces-in-header "/env" :headers (("X-Foo" . "   bar  baz  ")))
    (:utf-8-header "/env" :headers (("X-Foo" . ,(string (code-char #xE9)))))
    ;; Whom it is for
    (:host-without-port "/env" :host "example.org")
    (:host-with-colon "/env" :host "example.org:")
    (:host-in-capitals "/env" :host "EXAMPLE.org:81")
    (:host-version-6 "/env" :host "[::1]")
    (:host-version-6-port "/env" :host "[::1]:81")
    (:no-host "/env" :host nil)
    (:two-hosts "/env" :headers (("Host" . "b")))
    ;; Content
    (:form "/env" :method :post :form (("name" . "eitaro")))
    (:json "/env" :method :post :content "{}" :content-type "application/json; charset=utf-8")
    (:no-content "/env" :method :post)
    (:empty-content "/env" :method :post :content "")
    (:echo "/echo" :method :post :content "abc")
    (:echo-octets "/echo" :method :post :content ,(test-octets 300)
     :content-type "application/octet-stream")
    (:echo-much "/echo" :method :post :content ,(test-octets 300000)
     :content-type "application/octet-stream")
    (:echo-with-get "/echo" :content "abc")
    (:echo-chunks "/echo" :method :post :chunks ("abc" "def"))
    (:chunks "/env" :method :post :chunks ("abc" "def"))
    (:twice "/twice" :method :post :content "abc")
    (:twice-chunks "/twice" :method :post :chunks ("abc" "def"))
    (:content-unread "/list" :method :post :content "abc")
    ;; Versions and connections
    (:old "/env" :version "HTTP/1.0")
    (:old-without-host "/env" :version "HTTP/1.0" :host nil)
    (:old-kept "/list" :version "HTTP/1.0" :headers (("Connection" . "keep-alive")))
    (:old-list "/list" :version "HTTP/1.0")
    (:old-stream "/stream" :version "HTTP/1.0")
    (:last "/list" :headers (("Connection" . "close")))
    (:version-2 "/env" :version "HTTP/2.0")
    ;; Responses
    ,@(loop for path in '("list" "empty-strings" "utf-8" "untyped" "nil" "length" "length-in-text"
                          "headers" "repeated"
                          "integer" "close" "octets" "no-octets" "file" "file-untyped"
                          "file-missing" "201" "204"
                          "204-with-type" "302" "304" "304-with-headers" "404" "500" "delayed"
                          "delayed-nil"
                          "delayed-file" "stream" "stream-of-nothing" "error" "delayed-error"
                          "no-response")
            collect (list (intern (format nil "/~:@(~A~)" path) :keyword) (format nil "/~A" path)))
    ,@(loop for path in '("list" "length" "length-of-nothing" "octets" "file" "nil" "delayed"
                          "stream" "404")
            collect (list (intern (format nil "HEAD/~:@(~A~)" path) :keyword)
                          (format nil "/~A" path) :method :head)))
  "Names, targets and what else REQUEST-OCTETS takes.")
