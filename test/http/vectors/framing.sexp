;;; RFC 9112, section 6, and RFC 9110, section 8.6: the end of the content.

(:name "no content" :rfc "RFC 9112, section 6.3"
 :input ("POST / HTTP/1.1" "Host: a" "" "GET / HTTP/1.1" "Host: b" "")
 :gives ((:request :method :post :framing :none :body "") (:request :method :get :host "b")))
(:name "content of a length" :rfc "RFC 9110, section 8.6"
 :input ("POST / HTTP/1.1" "Host: a" "Content-Length: 5" "" (:raw "he^@^Jo"))
 :gives ((:request :framing 5 :body "he^@^Jo")))
(:name "content that has not all arrived" :rfc "RFC 9112, section 8"
 :input ("POST / HTTP/1.1" "Host: a" "Content-Length: 5" "" (:raw "hel"))
 :gives ((:waiting "hel" 0)))
(:name "content of length 0" :rfc "RFC 9110, section 8.6"
 :input ("POST / HTTP/1.1" "Host: a" "Content-Length: 0" "")
 :gives ((:request :framing :none :body "")))
(:name "content with GET" :rfc "RFC 9110, section 9.3.1"
 :input ("GET / HTTP/1.1" "Host: a" "Content-Length: 3" "" (:raw "abc"))
 :gives ((:request :method :get :body "abc")))
(:name "content in HTTP/1.0" :rfc "RFC 9110, section 8.6"
 :input ("POST / HTTP/1.0" "Content-Length: 3" "" (:raw "abc"))
 :gives ((:request :body "abc")))
(:name "a length with leading zeros" :rfc "RFC 9110, section 8.6"
 :input ("POST / HTTP/1.1" "Host: a" "Content-Length: 00000000000000000000003" "" (:raw "abc"))
 :gives ((:request :framing 3 :body "abc")))
(:name "an empty length" :rfc "RFC 9110, section 8.6"
 :input ("POST / HTTP/1.1" "Host: a" "Content-Length:" "")
 :gives ((:refused 400 :malformed-content-length)))
(:name "a length with a plus sign" :rfc "RFC 9110, section 8.6"
 :input ("POST / HTTP/1.1" "Host: a" "Content-Length: +3" "" (:raw "abc"))
 :gives ((:refused 400 :malformed-content-length)))
(:name "a negative length" :rfc "RFC 9110, section 8.6"
 :input ("POST / HTTP/1.1" "Host: a" "Content-Length: -3" "")
 :gives ((:refused 400 :malformed-content-length)))
(:name "a length with a fraction" :rfc "RFC 9110, section 8.6"
 :input ("POST / HTTP/1.1" "Host: a" "Content-Length: 3.0" "")
 :gives ((:refused 400 :malformed-content-length)))
(:name "a hexadecimal length" :rfc "RFC 9110, section 8.6"
 :input ("POST / HTTP/1.1" "Host: a" "Content-Length: 0x3" "")
 :gives ((:refused 400 :malformed-content-length)))
(:name "a length with an exponent" :rfc "RFC 9110, section 8.6"
 :input ("POST / HTTP/1.1" "Host: a" "Content-Length: 1e3" "")
 :gives ((:refused 400 :malformed-content-length)))
(:name "a length with a space inside" :rfc "RFC 9110, section 8.6"
 :input ("POST / HTTP/1.1" "Host: a" "Content-Length: 3 3" "")
 :gives ((:refused 400 :malformed-content-length)))
(:name "a length with an underscore" :rfc "RFC 9110, section 8.6"
 :input ("POST / HTTP/1.1" "Host: a" "Content-Length: 1_0" "")
 :gives ((:refused 400 :malformed-content-length)))
(:name "a length of a superscript digit" :rfc "RFC 9110, section 8.6"
 :input ("POST / HTTP/1.1" "Host: a" "Content-Length: ^xB2" "")
 :gives ((:refused 400 :malformed-content-length)))
(:name "two equal lengths in one field" :rfc "RFC 9110, section 8.6"
 :input ("POST / HTTP/1.1" "Host: a" "Content-Length: 3, 3" "" (:raw "abc"))
 :gives ((:refused 400 :malformed-content-length)))
(:name "two equal lengths" :rfc "RFC 9110, section 8.6"
 :input ("POST / HTTP/1.1" "Host: a" "Content-Length: 3" "Content-Length: 3" "" (:raw "abc"))
 :gives ((:refused 400 :malformed-content-length)))
(:name "two lengths" :rfc "RFC 9112, section 6.3"
 :input ("POST / HTTP/1.1" "Host: a" "Content-Length: 3" "content-length: 4" "" (:raw "abcd"))
 :gives ((:refused 400 :malformed-content-length)))
(:name "a length beyond 64 bits" :rfc "RFC 9110, section 8.6"
 :input ("POST / HTTP/1.1" "Host: a" "Content-Length: 18446744073709551619" "" (:raw "abc"))
 :gives ((:refused 413 :body-too-large)))
(:name "the largest length" :rfc "RFC 9110, section 8.6"
 :input ("POST / HTTP/1.1" "Host: a" "Content-Length: 1152921504606846975" "" (:raw "abc"))
 :gives ((:waiting "abc" 0)))
(:name "one more than the largest length" :rfc "RFC 9110, section 15.5.14"
 :input ("POST / HTTP/1.1" "Host: a" "Content-Length: 1152921504606846976" "" (:raw "abc"))
 :gives ((:refused 413 :body-too-large)))
(:name "a length of a thousand digits" :rfc "RFC 9110, section 8.6"
 :input ("POST / HTTP/1.1" "Host: a" (:raw "Content-Length: ") (:times 1000 (:raw "9")) "" "")
 :gives ((:refused 413 :body-too-large)))

;;; Transfer-Encoding: RFC 9112, sections 6.1 and 6.3

(:name "chunked" :rfc "RFC 9112, section 7.1"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" "3" "abc" "0" "")
 :gives ((:request :framing :chunked :body "abc")))
(:name "chunked in any case" :rfc "RFC 9112, section 7"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: ChunKed" "" "0" "")
 :gives ((:request :framing :chunked :body "")))
(:name "Transfer-Encoding and Content-Length" :rfc "RFC 9112, section 6.1"
 :input ("POST / HTTP/1.1" "Host: a" "Content-Length: 3" "Transfer-Encoding: chunked" "" "0" "")
 :gives ((:refused 400 :malformed-transfer-encoding)))
(:name "Content-Length after Transfer-Encoding" :rfc "RFC 9112, section 6.1"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "Content-Length: 0" "" "0" "")
 :gives ((:refused 400 :malformed-transfer-encoding)))
(:name "an unknown Transfer-Encoding and Content-Length" :rfc "RFC 9112, section 6.1"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: identity" "Content-Length: 3" ""
         (:raw "abc"))
 :gives ((:refused 400 :malformed-transfer-encoding)))
(:name "Transfer-Encoding in HTTP/1.0" :rfc "RFC 9112, section 6.1"
 :input ("POST / HTTP/1.0" "Transfer-Encoding: chunked" "" "0" "")
 :gives ((:refused 400 :malformed-transfer-encoding)))
(:name "an unknown coding before chunked" :rfc "RFC 9112, section 6.1"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: gzip, chunked" "")
 :gives ((:refused 501 :unknown-transfer-coding)))
(:name "an unknown coding before chunked, in two fields" :rfc "RFC 9112, section 6.1"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: gzip" "Transfer-Encoding: chunked" "")
 :gives ((:refused 501 :unknown-transfer-coding)))
(:name "chunked is not final" :rfc "RFC 9112, section 6.3"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked, gzip" "")
 :gives ((:refused 400 :malformed-transfer-encoding)))
(:name "chunked is not final, in two fields" :rfc "RFC 9112, section 6.3"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "Transfer-Encoding: identity" "")
 :gives ((:refused 400 :malformed-transfer-encoding)))
(:name "an unknown coding alone" :rfc "RFC 9112, section 6.3"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: gzip" "")
 :gives ((:refused 400 :malformed-transfer-encoding)))
(:name "identity" :rfc "RFC 9112, section 6.3"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: identity" "")
 :gives ((:refused 400 :malformed-transfer-encoding)))
(:name "chunked twice" :rfc "RFC 9112, section 6.1"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked, chunked" "")
 :gives ((:refused 400 :malformed-transfer-encoding)))
(:name "chunked twice, in two fields" :rfc "RFC 9112, section 6.1"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "Transfer-Encoding: chunked" "")
 :gives ((:refused 400 :malformed-transfer-encoding)))
(:name "almost chunked" :rfc "RFC 9112, section 6.3"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: xchunked" "")
 :gives ((:refused 400 :malformed-transfer-encoding)))
(:name "chunked with a letter too many" :rfc "RFC 9112, section 6.3"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunkedx" "")
 :gives ((:refused 400 :malformed-transfer-encoding)))
(:name "chunked in quotes" :rfc "RFC 9112, section 7"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: \"chunked\"" "")
 :gives ((:refused 400 :malformed-transfer-encoding)))
(:name "chunked with a parameter" :rfc "RFC 9112, section 7.1"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked;a=b" "")
 :gives ((:refused 400 :malformed-transfer-encoding)))
(:name "an empty Transfer-Encoding" :rfc "RFC 9112, section 6.1"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding:" "")
 :gives ((:refused 400 :malformed-transfer-encoding)))
(:name "an empty element before chunked" :rfc "RFC 9110, section 5.6.1.2"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: , chunked" "" "0" "")
 :gives ((:refused 400 :malformed-transfer-encoding)))
(:name "an empty element after chunked" :rfc "RFC 9110, section 5.6.1.2"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked," "" "0" "")
 :gives ((:refused 400 :malformed-transfer-encoding)))
(:name "chunked and something without a comma" :rfc "RFC 9112, section 7"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked gzip" "")
 :gives ((:refused 400 :malformed-transfer-encoding)))
(:name "chunked behind a vertical tab" :rfc "RFC 9110, section 5.5"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: ^Kchunked" "")
 :gives ((:refused 400 :malformed-field)))
(:name "Transfer-Encoding spelled otherwise is another field" :rfc "RFC 9110, section 5.1"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer_Encoding: chunked" "")
 :gives ((:request :framing :none)))
(:name "Transfer-Encoding before a space and a colon" :rfc "RFC 9112, section 5.1"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding : chunked" "")
 :gives ((:refused 400 :malformed-field)))
