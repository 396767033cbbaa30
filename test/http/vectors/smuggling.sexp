;;; A request hidden in another: two parties that read differently would take it for content, or for
;;; a request of its own.  After a refusal, the server sends no further reply.

(:name "a request behind Content-Length and Transfer-Encoding" :rfc "RFC 9112, section 6.3"
 :input ("POST / HTTP/1.1" "Host: a" "Content-Length: 4" "Transfer-Encoding: chunked" ""
         "1e" "GET /hidden HTTP/1.1" "Host: a" "" "0" "")
 :gives ((:refused 400 :malformed-transfer-encoding)))
(:name "a request behind the last chunk and within the length" :rfc "RFC 9112, section 6.3"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "Content-Length: 60" ""
         "0" "" "GET /hidden HTTP/1.1" "Host: a" "")
 :gives ((:refused 400 :malformed-transfer-encoding)))
(:name "a request between two lengths" :rfc "RFC 9112, section 6.3"
 :input ("POST / HTTP/1.1" "Host: a" "Content-Length: 0" "Content-Length: 33" ""
         "GET /hidden HTTP/1.1" "Host: a" "")
 :gives ((:refused 400 :malformed-content-length)))
(:name "a request between two lengths in a list" :rfc "RFC 9112, section 6.3"
 :input ("POST / HTTP/1.1" "Host: a" "Content-Length: 0, 33" "" "GET /hidden HTTP/1.1" "Host: a" "")
 :gives ((:refused 400 :malformed-content-length)))
(:name "a request behind a coding that comes last" :rfc "RFC 9112, section 6.3"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked, identity" "" "0" ""
         "GET /hidden HTTP/1.1" "Host: a" "")
 :gives ((:refused 400 :malformed-transfer-encoding)))
(:name "a request behind a coding that nobody knows" :rfc "RFC 9112, section 6.1"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: x, chunked" "" "0" ""
         "GET /hidden HTTP/1.1" "Host: a" "")
 :gives ((:refused 501 :unknown-transfer-coding)))
(:name "a request behind chunks in HTTP/1.0" :rfc "RFC 9112, section 6.1"
 :input ("POST / HTTP/1.0" "Connection: keep-alive" "Transfer-Encoding: chunked" "" "0" ""
         "GET /hidden HTTP/1.1" "Host: a" "")
 :gives ((:refused 400 :malformed-transfer-encoding)))
(:name "a request behind chunks in HTTP/1.0 with a length" :rfc "RFC 9112, section 6.1"
 :input ("POST / HTTP/1.0" "Connection: keep-alive" "Content-Length: 5" "Transfer-Encoding: chunked"
         "" "0" "" "GET /hidden HTTP/1.1" "Host: a" "")
 :gives ((:refused 400 :malformed-transfer-encoding)))
(:name "a coding before a space and a colon, and a length" :rfc "RFC 9112, section 5.1"
 :input ("POST / HTTP/1.1" "Host: a" "Content-Length: 5" "Transfer-Encoding : chunked" ""
         "0" "" "GET /hidden HTTP/1.1" "Host: a" "")
 :gives ((:refused 400 :malformed-field)))
(:name "a coding before a Tab and a colon, and a length" :rfc "RFC 9112, section 5.1"
 :input ("POST / HTTP/1.1" "Host: a" "Content-Length: 5" "Transfer-Encoding^I: chunked" ""
         "0" "" "GET /hidden HTTP/1.1" "Host: a" "")
 :gives ((:refused 400 :malformed-field)))
(:name "a coding in a folded line, and a length" :rfc "RFC 9112, section 5.2"
 :input ("POST / HTTP/1.1" "Host: a" "Content-Length: 5" "X: b" " Transfer-Encoding: chunked" ""
         "0" "" "GET /hidden HTTP/1.1" "Host: a" "")
 :gives ((:refused 400 :malformed-field)))
(:name "a coding in the next line, and a length" :rfc "RFC 9112, section 5.2"
 :input ("POST / HTTP/1.1" "Host: a" "Content-Length: 5" "Transfer-Encoding:" " chunked" ""
         "0" "" "GET /hidden HTTP/1.1" "Host: a" "")
 :gives ((:refused 400 :malformed-field)))
(:name "a coding behind a bare line feed" :rfc "RFC 9112, section 2.2"
 :input ("POST / HTTP/1.1" "Host: a" "Content-Length: 5" "X: b^JTransfer-Encoding: chunked" ""
         "0" "" "GET /hidden HTTP/1.1" "Host: a" "")
 :gives ((:refused 400 :malformed-field)))
(:name "a coding behind a bare carriage return" :rfc "RFC 9112, section 2.2"
 :input ("POST / HTTP/1.1" "Host: a" "Content-Length: 5" "X: b^MTransfer-Encoding: chunked" ""
         "0" "" "GET /hidden HTTP/1.1" "Host: a" "")
 :gives ((:refused 400 :malformed-field)))
(:name "a coding behind a NUL" :rfc "RFC 9110, section 5.5"
 :input ("POST / HTTP/1.1" "Host: a" "Content-Length: 5" "Transfer-Encoding: ^@chunked" ""
         "0" "" "GET /hidden HTTP/1.1" "Host: a" "")
 :gives ((:refused 400 :malformed-field)))
(:name "a length before a space and a colon" :rfc "RFC 9112, section 5.1"
 :input ("POST / HTTP/1.1" "Host: a" "Content-Length : 33" "" "GET /hidden HTTP/1.1" "Host: a" "")
 :gives ((:refused 400 :malformed-field)))
(:name "a field before the first one" :rfc "RFC 9112, section 2.2"
 :input ("POST / HTTP/1.1" " Content-Length: 33" "Host: a" "" "GET /hidden HTTP/1.1" "Host: a" "")
 :gives ((:refused 400 :malformed-field)))
(:name "a length in a name that only looks like it" :rfc "RFC 9110, section 5.1"
 :input ("POST / HTTP/1.1" "Host: a" "Content_Length: 36" "" "GET /next HTTP/1.1" "Host: b" "")
 :gives ((:request :framing :none :body "") (:request :uri "/next" :host "b")))
(:name "a request as content of GET" :rfc "RFC 9110, section 9.3.1"
 :input ("GET / HTTP/1.1" "Host: a" "Content-Length: 33" "" "GET /hidden HTTP/1.1" "Host: a" ""
         "GET /next HTTP/1.1" "Host: b" "")
 :gives ((:request :uri "/" :body "GET /hidden HTTP/1.1^M^JHost: a^M^J^M^J")
         (:request :uri "/next" :host "b")))
(:name "a request as chunked content of HEAD" :rfc "RFC 9110, section 9.3.2"
 :input ("HEAD / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" ""
         "21" "GET /hidden HTTP/1.1" "Host: a" "" "" "0" "" "GET /next HTTP/1.1" "Host: b" "")
 :gives ((:request :method :head) (:request :uri "/next" :host "b")))

;;; Chunks

(:name "a size that is 3 in 64 bits" :rfc "RFC 9112, section 7.1"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" "10000000000000003" "abc" "0"
         "" "GET /hidden HTTP/1.1" "Host: a" "")
 :gives ((:refused 413 :body-too-large)))
(:name "a size that is 3 in 32 bits" :rfc "RFC 9112, section 7.1"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" "100000003" (:raw "abc"))
 :gives ((:waiting "abc" 0)))
(:name "a request behind a size and a bare line feed" :rfc "RFC 9112, section 7.1"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" "2;^Jab" "30" "abc" "0" ""
         "GET /hidden HTTP/1.1" "Host: a" "")
 :gives ((:refused 400 :malformed-chunk)))
(:name "a request behind a chunk whose end is missing" :rfc "RFC 9112, section 7.1"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" "3" (:raw "abc0") "" ""
         "GET /hidden HTTP/1.1" "Host: a" "")
 :gives ((:refused 400 :malformed-chunk)))
(:name "a request behind chunks that end in line feeds" :rfc "RFC 9112, section 2.2"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" "1" "x" (:raw "0^J^J")
         "GET /hidden HTTP/1.1" "Host: a" "")
 :gives ((:refused 400 :malformed-chunk)))
(:name "a length among the trailer fields" :rfc "RFC 9110, section 6.5.1"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" "1" "x" "0"
         "Content-Length: 33" "" "GET /next HTTP/1.1" "Host: b" "")
 :gives ((:request :body "x") (:request :uri "/next" :host "b")))
(:name "extensions that fill what is allowed" :rfc "RFC 9112, section 7.1.1"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" (:raw "1")
         (:times 4097 (:raw ";a=b")) "" "x" "0" ""
         "GET /hidden HTTP/1.1" "Host: a" "")
 :gives ((:refused 413 :chunk-extensions-too-large)))
(:name "a size that looks like a request" :rfc "RFC 9112, section 7.1"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" "GET /hidden HTTP/1.1"
         "Host: a" "")
 :gives ((:refused 400 :malformed-chunk)))

;;; Targets, methods, versions

(:name "a request behind a target with a line end" :rfc "RFC 9112, section 3"
 :input ((:raw "GET / HTTP/1.1^JHost: a^J^JGET /hidden HTTP/1.1^M^JHost: a^M^J^M^J"))
 :gives ((:refused 400 :malformed-request-line)))
(:name "a request behind one without version" :rfc "RFC 9112, section 3"
 :input ("GET /" "GET /hidden HTTP/1.1" "Host: a" "")
 :gives ((:refused 400 :malformed-request-line)))
(:name "a request behind a method with a control" :rfc "RFC 9110, section 9.1"
 :input ("G^AT / HTTP/1.1" "Host: a" "" "GET /hidden HTTP/1.1" "Host: a" "")
 :gives ((:refused 400 :malformed-request-line)))
(:name "a request through a tunnel that was not made" :rfc "RFC 9110, section 9.3.6"
 :input ("CONNECT a:80 HTTP/1.1" "Host: a:80" "" "GET /hidden HTTP/1.1" "Host: a" "")
 :gives ((:request :method :connect) (:request :uri "/hidden")))
(:name "a request behind one that asks to close" :rfc "RFC 9112, section 9.6"
 :input ("GET / HTTP/1.1" "Host: a" "Connection: close" "" "GET /hidden HTTP/1.1" "Host: a" "")
 :gives ((:request :keep-alive nil) (:request :uri "/hidden")))
(:name "a request behind another protocol that was not spoken" :rfc "RFC 9110, section 7.8"
 :input ("GET / HTTP/1.1" "Host: a" "Connection: upgrade" "Upgrade: h2c" ""
         "GET /next HTTP/1.1" "Host: b" "")
 :gives ((:request :upgrade "h2c") (:request :uri "/next" :host "b")))
(:name "a host in the target and another in Host" :rfc "RFC 9112, section 3.2.2"
 :input ("GET http://a.example/ HTTP/1.1" "Host: b.example" "" "GET /next HTTP/1.1" "Host: b" "")
 :gives ((:request :host "a.example") (:request :uri "/next" :host "b")))
