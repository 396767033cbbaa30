;;; RFC 9112, section 9.3.2: requests on one connection.

(:name "three requests at once" :rfc "RFC 9112, section 9.3.2"
 :input ("GET /1 HTTP/1.1" "Host: a" "" "GET /2 HTTP/1.1" "Host: b" "" "GET /3 HTTP/1.1" "Host: c"
         "")
 :gives ((:request :uri "/1" :host "a") (:request :uri "/2" :host "b")
         (:request :uri "/3" :host "c")))
(:name "a request and a half" :rfc "RFC 9112, section 9.3.2"
 :input ("GET /1 HTTP/1.1" "Host: a" "" "GET /2 HTTP/1.1" (:raw "Ho"))
 :gives ((:request :uri "/1") (:waiting :head 19)))
(:name "an empty line between two requests" :rfc "RFC 9112, section 2.2"
 :input ("POST / HTTP/1.1" "Host: a" "Content-Length: 1" "" "x" "GET /2 HTTP/1.1" "Host: b" "")
 :gives ((:request :body "x") (:request :uri "/2")))
(:name "a length and then chunks" :rfc "RFC 9112, section 9.3.2"
 :input ("POST /1 HTTP/1.1" "Host: a" "Content-Length: 2" "" (:raw "xy")
         "POST /2 HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" "1" "z" "0" ""
         "GET /3 HTTP/1.1" "Host: a" "")
 :gives ((:request :uri "/1" :body "xy") (:request :uri "/2" :body "z") (:request :uri "/3")))
(:name "a second request that is refused" :rfc "RFC 9112, section 2.2"
 :input ("GET /1 HTTP/1.1" "Host: a" "" "GET /2 HTTP/9.1" "Host: a" "")
 :gives ((:request :uri "/1") (:refused 505 :unsupported-version)))
(:name "content that looks like a request" :rfc "RFC 9112, section 6.3"
 :input ("POST /1 HTTP/1.1" "Host: a" "Content-Length: 18" "" "GET /2 HTTP/1.1" (:raw "^I"))
 :gives ((:request :uri "/1" :body "GET /2 HTTP/1.1^M^J^I")))
(:name "content of a request without length is the next request" :rfc "RFC 9112, section 6.3"
 :input ("POST /1 HTTP/1.1" "Host: a" "" "x=1")
 :gives ((:request :uri "/1" :body "") (:refused 400 :malformed-request-line)))
(:name "nothing of the first remains in the second" :rfc "RFC 9112, section 9.3.2"
 :input ("PUT /1 HTTP/1.1" "Host: a" "Accept: b" "Accept: c" "Expect: 100-continue"
         "Content-Length: 1" "Connection: upgrade, keep-alive" "Upgrade: x" "" (:raw "y")
         "GET /2 HTTP/1.1" "Host: b" "")
 :gives ((:request :upgrade "x" :expects-100 t :body "y")
         (:request :method :get :uri "/2" :headers ((:host . "b")) :host "b" :framing :none
                   :keep-alive t :asks-keep-alive nil :upgrade nil
                   :expects-100 nil :body "")))
