;;; Limits.

(:name "a request line as long as allowed" :rfc "RFC 9112, section 3"
 :limits (:request-line-octets 20)
 :input ("GET /0123 HTTP/1.1" "Host: a" "") :gives ((:request :uri "/0123")))
(:name "a request line an octet longer" :rfc "RFC 9112, section 3"
 :limits (:request-line-octets 20)
 :input ("GET /01234 HTTP/1.1" "Host: a" "") :gives ((:refused 414 :target-too-long)))
(:name "a target that does not end" :rfc "RFC 9112, section 3"
 :limits (:request-line-octets 20)
 :input ((:raw "GET /012345678901234")) :gives ((:waiting :head)))
(:name "a target that does not end in time" :rfc "RFC 9112, section 3"
 :limits (:request-line-octets 20)
 :input ((:raw "GET /0123456789012345")) :gives ((:refused 414 :target-too-long)))
(:name "a method that does not end in time" :rfc "RFC 9112, section 3"
 :limits (:request-line-octets 20)
 :input ((:raw "GETGETGETGETGETGETGET")) :gives ((:refused 501 :method-too-long)))
(:name "the first fault counts" :rfc "RFC 9112, section 3"
 :limits (:request-line-octets 20)
 :input ((:raw "GET^@GETGETGETGETGETGET")) :gives ((:refused 400 :malformed-request-line)))
(:name "empty lines count for the request line" :rfc "RFC 9112, section 2.2"
 :limits (:request-line-octets 20)
 :input ("" "" "GET / HTTP/1.1" "Host: a" "") :gives ((:request :uri "/")))
(:name "too long together with empty lines" :rfc "RFC 9112, section 2.2"
 :limits (:request-line-octets 20)
 :input ("" "" "GET /a HTTP/1.1" "Host: a" "") :gives ((:refused 414 :target-too-long)))
(:name "empty lines without end" :rfc "RFC 9112, section 2.2"
 :limits (:request-line-octets 20)
 :input ((:times 11 "")) :gives ((:refused 400 :malformed-request-line)))
(:name "a request line of 16 KiB" :rfc "RFC 9112, section 3"
 :input ((:raw "GET /") (:times 16368 (:raw "x")) " HTTP/1.1" "Host: a" "")
 :gives ((:request :method :get)))
(:name "a request line of more than 16 KiB" :rfc "RFC 9112, section 3"
 :input ((:raw "GET /") (:times 16369 (:raw "x")) " HTTP/1.1" "Host: a" "")
 :gives ((:refused 414 :target-too-long)))

(:name "a head as long as allowed" :rfc "RFC 6585, section 5"
 :limits (:header-octets 36)
 :input ("GET / HTTP/1.1" "Host: a" "A: 2345" "") :gives ((:request :host "a")))
(:name "an octet longer" :rfc "RFC 6585, section 5"
 :limits (:header-octets 36)
 :input ("GET / HTTP/1.1" "Host: a" "A: 23456" "") :gives ((:refused 431 :headers-too-large)))
(:name "a name that does not end" :rfc "RFC 6585, section 5"
 :limits (:header-octets 36)
 :input ("GET / HTTP/1.1" (:raw "HostHostHostHostHostH"))
 :gives ((:refused 431 :headers-too-large)))
(:name "a value that does not end" :rfc "RFC 6585, section 5"
 :limits (:header-octets 36)
 :input ("GET / HTTP/1.1" (:raw "Host: aaaaaaaaaaaaaaa"))
 :gives ((:refused 431 :headers-too-large)))
(:name "a header value of 96 KB, where that is allowed" :rfc "RFC 6585, section 5"
 :limits (:header-octets 131072)
 :input ("GET / HTTP/1.1" "Host: a" (:raw "X-Long: ") (:times 98304 (:raw "x")) "" "")
 :gives ((:request :host "a")))
(:name "a head of 32 KiB" :rfc "RFC 6585, section 5"
 :input ("GET / HTTP/1.1" "Host: a" (:raw "X-Long: ") (:times 32731 (:raw "x")) "" "")
 :gives ((:request :host "a")))
(:name "a head of 32 KiB of which a half is the target" :rfc "RFC 6585, section 5"
 :input ((:raw "GET /") (:times 16000 (:raw "x")) " HTTP/1.1" "Host: a" (:raw "X-Long: ")
         (:times 16731 (:raw "x")) "" "")
 :gives ((:request :host "a")))
(:name "a head of more than 32 KiB of which a half is the target" :rfc "RFC 6585, section 5"
 :input ((:raw "GET /") (:times 16000 (:raw "x")) " HTTP/1.1" "Host: a" (:raw "X-Long: ")
         (:times 16732 (:raw "x")) "" "")
 :gives ((:refused 431 :headers-too-large)))
(:name "a head of more than 32 KiB" :rfc "RFC 6585, section 5"
 :input ("GET / HTTP/1.1" "Host: a" (:raw "X-Long: ") (:times 32732 (:raw "x")) "" "")
 :gives ((:refused 431 :headers-too-large)))
(:name "as many header lines as allowed" :rfc "RFC 6585, section 5"
 :limits (:header-count 3)
 :input ("GET / HTTP/1.1" "Host: a" "A: 1" "A: 2" "") :gives ((:request :host "a")))
(:name "one header line more" :rfc "RFC 6585, section 5"
 :limits (:header-count 3)
 :input ("GET / HTTP/1.1" "Host: a" "A: 1" "A: 2" "A: 3" "")
 :gives ((:refused 431 :headers-too-large)))
(:name "each request has as many header lines" :rfc "RFC 6585, section 5"
 :limits (:header-count 3)
 :input ("GET /1 HTTP/1.1" "Host: a" "A: 1" "B: 2" "" "GET /2 HTTP/1.1" "Host: a" "A: 1" "B: 2" "")
 :gives ((:request :uri "/1") (:request :uri "/2")))
(:name "128 header lines" :rfc "RFC 6585, section 5"
 :input ("GET / HTTP/1.1" "Host: a" (:times 127 "A: b") "") :gives ((:request :host "a")))
(:name "129 header lines" :rfc "RFC 6585, section 5"
 :input ("GET / HTTP/1.1" "Host: a" (:times 128 "A: b") "")
 :gives ((:refused 431 :headers-too-large)))

(:name "content as long as allowed" :rfc "RFC 9110, section 15.5.14"
 :limits (:body-octets 3)
 :input ("POST / HTTP/1.1" "Host: a" "Content-Length: 3" "" (:raw "abc"))
 :gives ((:request :body "abc")))
(:name "content an octet longer" :rfc "RFC 9110, section 15.5.14"
 :limits (:body-octets 3)
 :input ("POST / HTTP/1.1" "Host: a" "Content-Length: 4" "" (:raw "abcd"))
 :gives ((:refused 413 :body-too-large)))
(:name "no content where none is allowed" :rfc "RFC 9110, section 15.5.14"
 :limits (:body-octets 0)
 :input ("POST / HTTP/1.1" "Host: a" "Content-Length: 0" "") :gives ((:request :body "")))
(:name "chunks as long as allowed" :rfc "RFC 9110, section 15.5.14"
 :limits (:body-octets 3)
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" "2" "ab" "1" "c" "0" "")
 :gives ((:request :body "abc")))
(:name "chunks an octet longer" :rfc "RFC 9110, section 15.5.14"
 :limits (:body-octets 3)
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" "2" "ab" "2" "cd" "0" "")
 :gives ((:refused 413 :body-too-large)))

(:name "extensions as long as allowed" :rfc "RFC 9112, section 7.1.1"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" (:raw "1;")
         (:times 16380 (:raw "a")) "" "x" "1 ;c" "y" "0" "")
 :gives ((:request :body "xy")))
(:name "extensions an octet longer" :rfc "RFC 9112, section 7.1.1"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" (:raw "1;")
         (:times 16380 (:raw "a")) "" "x" "1 ;cd" "y" "0" "")
 :gives ((:refused 413 :chunk-extensions-too-large)))
(:name "white space without end after a chunk size" :rfc "RFC 9112, section 7.1.1"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" (:raw "1")
         (:times 16385 (:raw " ")))
 :gives ((:refused 413 :chunk-extensions-too-large)))
(:name "trailer fields as long as allowed" :rfc "RFC 9112, section 7.1.2"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" "0" (:times 2048 "A:") "")
 :gives ((:request :body "")))
(:name "trailer fields an octet longer" :rfc "RFC 9112, section 7.1.2"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" "0"
         (:times 2047 "A:") "B:c" "")
 :gives ((:refused 431 :trailers-too-large)))
(:name "trailer fields without values without end" :rfc "RFC 9112, section 7.1.2"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" "0" (:times 2049 "A:"))
 :gives ((:refused 431 :trailers-too-large)))

;;; The default limits, and requests beyond them: after a refusal, the server must not reset the
;;; connection before the client has read the reply.

(:name "a method without end" :rfc "RFC 9112, section 3"
 :input ((:times 20000 (:raw "M"))) :gives ((:refused 501 :method-too-long)))
(:name "a target without end" :rfc "RFC 9112, section 3"
 :input ((:raw "GET /") (:times 24000 (:raw "x"))) :gives ((:refused 414 :target-too-long)))
(:name "header lines without end" :rfc "RFC 6585, section 5"
 :input ("GET / HTTP/1.1" "Host: a" (:times 1000 "X: x"))
 :gives ((:refused 431 :headers-too-large)))
(:name "chunk extensions without end" :rfc "RFC 9112, section 7.1.1"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" ""
         (:raw "1;") (:times 24000 (:raw "x")))
 :gives ((:refused 413 :chunk-extensions-too-large)))
(:name "chunk extensions without end, a few each" :rfc "RFC 9112, section 7.1.1"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" (:times 3600 ("1;ab=c" "x")))
 :gives ((:refused 413 :chunk-extensions-too-large)))
(:name "trailer fields without end" :rfc "RFC 9112, section 7.1.2"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" "0" (:times 2000 "X: x"))
 :gives ((:refused 431 :trailers-too-large)))
(:name "a thousand chunks of an octet" :rfc "RFC 9112, section 7.1"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" (:times 1000 ("1" "x")) "0" ""
         "GET /next HTTP/1.1" "Host: b" "")
 :gives ((:request :framing :chunked) (:request :uri "/next" :host "b")))
