;;; RFC 9112, section 9, and RFC 9110, sections 7.6.1, 7.8 and 10.1.1: persistence and upgrade of
;;; the connection.

(:name "HTTP/1.1 persists" :rfc "RFC 9112, section 9.3"
 :input ("GET / HTTP/1.1" "Host: a" "")
 :gives ((:request :keep-alive t :asks-keep-alive nil)))
(:name "HTTP/1.0 does not" :rfc "RFC 9112, section 9.3"
 :input ("GET / HTTP/1.0" "") :gives ((:request :keep-alive nil)))
(:name "HTTP/1.0 asks to persist" :rfc "RFC 9112, section 9.3"
 :input ("GET / HTTP/1.0" "Connection: keep-alive" "")
 :gives ((:request :keep-alive t :asks-keep-alive t)))
(:name "HTTP/1.1 asks to persist" :rfc "RFC 9112, section 9.3"
 :input ("GET / HTTP/1.1" "Host: a" "Connection: Keep-Alive" "")
 :gives ((:request :keep-alive t :asks-keep-alive t)))
(:name "HTTP/1.1 asks to close" :rfc "RFC 9112, section 9.6"
 :input ("GET / HTTP/1.1" "Host: a" "Connection: close" "")
 :gives ((:request :keep-alive nil)))
(:name "close in any case" :rfc "RFC 9110, section 7.6.1"
 :input ("GET / HTTP/1.1" "Host: a" "Connection: CLOSE" "")
 :gives ((:request :keep-alive nil)))
(:name "close wins over keep-alive" :rfc "RFC 9112, section 9.3"
 :input ("GET / HTTP/1.1" "Host: a" "Connection: keep-alive, close" "")
 :gives ((:request :keep-alive nil :asks-keep-alive t)))
(:name "close wins in HTTP/1.0" :rfc "RFC 9112, section 9.3"
 :input ("GET / HTTP/1.0" "Connection: close, keep-alive" "")
 :gives ((:request :keep-alive nil)))
(:name "close among other options" :rfc "RFC 9110, section 7.6.1"
 :input ("GET / HTTP/1.1" "Host: a" "Connection: ,TE ,^Iclose ,, foo" "")
 :gives ((:request :keep-alive nil)))
(:name "close in a second field" :rfc "RFC 9110, section 5.2"
 :input ("GET / HTTP/1.1" "Host: a" "Connection: TE" "Connection: close" "")
 :gives ((:request :keep-alive nil)))
(:name "an option that contains close" :rfc "RFC 9110, section 7.6.1"
 :input ("GET / HTTP/1.1" "Host: a" "Connection: closed, not-close" "")
 :gives ((:request :keep-alive t)))
(:name "an empty Connection" :rfc "RFC 9110, section 7.6.1"
 :input ("GET / HTTP/1.1" "Host: a" "Connection:" "")
 :gives ((:request :keep-alive t)))

;;; Upgrade: RFC 9110, section 7.8

(:name "a WebSocket" :rfc "RFC 6455, section 4.1"
 :input ("GET /chat HTTP/1.1" "Host: a" "Upgrade: websocket" "Connection: Upgrade"
         "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==" "Sec-WebSocket-Version: 13" "")
 :gives ((:request :upgrade "websocket" :keep-alive t)))
(:name "an upgrade among other options" :rfc "RFC 9110, section 7.8"
 :input ("GET / HTTP/1.1" "Host: a" "Connection: keep-alive, Upgrade" "Upgrade: h2c, websocket" "")
 :gives ((:request :upgrade "h2c, websocket" :asks-keep-alive t)))
(:name "Upgrade without the option" :rfc "RFC 9110, section 7.8"
 :input ("GET / HTTP/1.1" "Host: a" "Upgrade: websocket" "") :gives ((:request :upgrade nil)))
(:name "Upgrade beside another option" :rfc "RFC 9110, section 7.8"
 :input ("GET / HTTP/1.1" "Host: a" "Connection: keep-alive" "Upgrade: websocket" "")
 :gives ((:request :upgrade nil)))
(:name "the option without Upgrade" :rfc "RFC 9110, section 7.8"
 :input ("GET / HTTP/1.1" "Host: a" "Connection: upgrade" "") :gives ((:request :upgrade nil)))
(:name "Upgrade in HTTP/1.0" :rfc "RFC 9110, section 7.8"
 :input ("GET / HTTP/1.0" "Connection: upgrade" "Upgrade: websocket" "")
 :gives ((:request :upgrade nil)))

;;; Expect: RFC 9110, section 10.1.1

(:name "the client waits" :rfc "RFC 9110, section 10.1.1"
 :input ("PUT / HTTP/1.1" "Host: a" "Content-Length: 3" "Expect: 100-continue" "" (:raw "abc"))
 :gives ((:request :expects-100 t :body "abc")))
(:name "the client waits, in any case" :rfc "RFC 9110, section 10.1.1"
 :input ("PUT / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "Expect: 100-Continue" "" "0" "")
 :gives ((:request :expects-100 t)))
(:name "the client waits for nothing" :rfc "RFC 9110, section 10.1.1"
 :input ("GET / HTTP/1.1" "Host: a" "Expect: 100-continue" "")
 :gives ((:request :expects-100 nil)))
(:name "an expectation in HTTP/1.0" :rfc "RFC 9110, section 10.1.1"
 :input ("PUT / HTTP/1.0" "Content-Length: 3" "Expect: 100-continue" "" (:raw "abc"))
 :gives ((:request :expects-100 nil :body "abc")))
(:name "no expectation at all" :rfc "RFC 9110, section 5.6.1.2"
 :input ("PUT / HTTP/1.1" "Host: a" "Content-Length: 3" "Expect: ," "" (:raw "abc"))
 :gives ((:request :expects-100 nil :body "abc")))
(:name "an expectation among white space and commas" :rfc "RFC 9110, section 5.6.1.2"
 :input ("PUT / HTTP/1.1" "Host: a" "Content-Length: 3" "Expect: , ,100-continue , ,^I," ""
         (:raw "abc"))
 :gives ((:request :expects-100 t :body "abc")))
(:name "an unknown expectation" :rfc "RFC 9110, section 10.1.1"
 :input ("PUT / HTTP/1.1" "Host: a" "Content-Length: 3" "Expect: 200-ok" "")
 :gives ((:refused 417 :unknown-expectation)))
(:name "an unknown expectation beside the known" :rfc "RFC 9110, section 10.1.1"
 :input ("PUT / HTTP/1.1" "Host: a" "Content-Length: 3" "Expect: 100-continue, more" "")
 :gives ((:refused 417 :unknown-expectation)))
(:name "an expectation with a parameter" :rfc "RFC 9110, section 10.1.1"
 :input ("PUT / HTTP/1.1" "Host: a" "Content-Length: 3" "Expect: 100-continue;a=b" "")
 :gives ((:refused 417 :unknown-expectation)))
(:name "an unknown expectation in HTTP/1.0" :rfc "RFC 9110, section 10.1.1"
 :input ("GET / HTTP/1.0" "Expect: anything" "") :gives ((:request :expects-100 nil)))
