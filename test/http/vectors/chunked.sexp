;;; RFC 9112, section 7.1: chunked bodies.

(:name "no chunk" :rfc "RFC 9112, section 7.1"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" "0" "")
 :gives ((:request :body "")))
(:name "three chunks" :rfc "RFC 9112, section 7.1"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" ""
         "3" "abc" "1" "d" "A" "0123456789" "0" "")
 :gives ((:request :body "abcd0123456789")))
(:name "sizes in either case" :rfc "RFC 9112, section 7.1"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" ""
         "a" "0123456789" "B" "0123456789a" "0" "")
 :gives ((:request :body "01234567890123456789a")))
(:name "a size with leading zeros" :rfc "RFC 9112, section 7.1"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" "0003" "abc" "000" "")
 :gives ((:request :body "abc")))
(:name "chunks of line ends" :rfc "RFC 9112, section 7.1"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" "4" "^M^J^M^J" "0" "")
 :gives ((:request :body "^M^J^M^J")))
(:name "a chunk that looks like the last" :rfc "RFC 9112, section 7.1"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" "5" "0^M^J^M^J" "0" "")
 :gives ((:request :body "0^M^J^M^J")))
(:name "a long chunk" :rfc "RFC 9112, section 7.1"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" ""
         "100" (:times 256 (:raw "x")) "" "0" "")
 :gives ((:request :framing :chunked)))
(:name "a request after the last chunk" :rfc "RFC 9112, section 7.1"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" "1" "x" "0" ""
         "GET /next HTTP/1.1" "Host: a" "")
 :gives ((:request :body "x") (:request :uri "/next")))
(:name "a size that has not ended" :rfc "RFC 9112, section 8"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" (:raw "1"))
 :gives ((:waiting "" 1)))
(:name "a chunk that has not all arrived" :rfc "RFC 9112, section 8"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" "5" (:raw "abc"))
 :gives ((:waiting "abc" 0)))
(:name "no last chunk" :rfc "RFC 9112, section 8"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" "3" "abc")
 :gives ((:waiting "abc" 0)))
(:name "a last chunk without the empty line" :rfc "RFC 9112, section 7.1"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" "0")
 :gives ((:waiting "" 0)))

;;; Sizes

(:name "no size" :rfc "RFC 9112, section 7.1"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" "" "")
 :gives ((:refused 400 :malformed-chunk)))
(:name "a size with a sign" :rfc "RFC 9112, section 7.1"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" "+3" "abc" "0" "")
 :gives ((:refused 400 :malformed-chunk)))
(:name "a negative size" :rfc "RFC 9112, section 7.1"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" "-3" "abc" "0" "")
 :gives ((:refused 400 :malformed-chunk)))
(:name "a size with a prefix" :rfc "RFC 9112, section 7.1"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" "0x3" "abc" "0" "")
 :gives ((:refused 400 :malformed-chunk)))
(:name "a size with a letter beyond F" :rfc "RFC 9112, section 7.1"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" "3g" "abc" "0" "")
 :gives ((:refused 400 :malformed-chunk)))
(:name "a size with an underscore" :rfc "RFC 9112, section 7.1"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" "1_0" "abc" "0" "")
 :gives ((:refused 400 :malformed-chunk)))
(:name "a space before the size" :rfc "RFC 9112, section 7.1"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" " 3" "abc" "0" "")
 :gives ((:refused 400 :malformed-chunk)))
(:name "a space after the size" :rfc "RFC 9112, section 7.1"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" "3 " "abc" "0" "")
 :gives ((:refused 400 :malformed-chunk)))
(:name "a Tab and a letter after the size" :rfc "RFC 9112, section 7.1"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" "3^Ia" "abc" "0" "")
 :gives ((:refused 400 :malformed-chunk)))
(:name "a size with an octet above 127" :rfc "RFC 9112, section 7.1"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" "3^xB2" "abc" "0" "")
 :gives ((:refused 400 :malformed-chunk)))
(:name "a size beyond 64 bits" :rfc "RFC 9112, section 7.1"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" "10000000000000003" "abc" "0"
         "")
 :gives ((:refused 413 :body-too-large)))
(:name "the largest size" :rfc "RFC 9112, section 7.1"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" "fffffffffffffff" (:raw "abc"))
 :gives ((:waiting "abc" 0)))
(:name "chunks larger than the largest size together" :rfc "RFC 9110, section 15.5.14"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" "1" "x" "fffffffffffffff"
         "abc")
 :gives ((:refused 413 :body-too-large)))
(:name "zeros without end" :rfc "RFC 9112, section 7.1"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" (:times 65 (:raw "0")))
 :gives ((:refused 413 :body-too-large)))
(:name "leading zeros" :rfc "RFC 9112, section 7.1"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" "0000000000000003" "abc"
         (:times 63 (:raw "0")) "0" "")
 :gives ((:request :body "abc")))

;;; Line ends

(:name "a bare line feed after a size" :rfc "RFC 9112, section 2.2"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" (:raw "3^Jabc^M^J0^M^J^M^J"))
 :gives ((:refused 400 :malformed-chunk)))
(:name "a bare carriage return after a size" :rfc "RFC 9112, section 2.2"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" (:raw "3^Mabc^M^J0^M^J^M^J"))
 :gives ((:refused 400 :malformed-chunk)))
(:name "a bare line feed after a chunk" :rfc "RFC 9112, section 7.1"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" (:raw "3^M^Jabc^J0^M^J^M^J"))
 :gives ((:refused 400 :malformed-chunk)))
(:name "a bare carriage return after a chunk" :rfc "RFC 9112, section 7.1"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" (:raw "3^M^Jabc^M0^M^J^M^J"))
 :gives ((:refused 400 :malformed-chunk)))
(:name "a chunk longer than its size" :rfc "RFC 9112, section 7.1"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" "3" "abcd" "0" "")
 :gives ((:refused 400 :malformed-chunk)))
(:name "a chunk shorter than its size" :rfc "RFC 9112, section 7.1"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" "3" "a" "0" "")
 :gives ((:refused 400 :malformed-chunk)))
(:name "a bare line feed after the last chunk" :rfc "RFC 9112, section 2.2"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" "0" (:raw "^J"))
 :gives ((:refused 400 :malformed-field)))
(:name "a bare carriage return after the last chunk" :rfc "RFC 9112, section 2.2"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" "0" (:raw "^MGET"))
 :gives ((:refused 400 :malformed-field)))

;;; Extensions: RFC 9112, section 7.1.1

(:name "extensions" :rfc "RFC 9112, section 7.1.1"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" ""
         "3;a=b;c" "abc" "1 ; d = \"e;f\"" "x" "0;last" "")
 :gives ((:request :body "abcx")))
(:name "an extension with an octet above 127" :rfc "RFC 9112, section 7.1.1"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" "1;a=\"^xE9\"" "x" "0" "")
 :gives ((:request :body "x")))
(:name "an extension with a quoted value" :rfc "RFC 9112, section 7.1.1"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" "1;a=\"b\"; c" "x" "0" "")
 :gives ((:request :body "x")))
(:name "an extension with an empty quoted value" :rfc "RFC 9112, section 7.1.1"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" "1;a=\"\"" "x" "0" "")
 :gives ((:request :body "x")))
(:name "an extension with quoted pairs" :rfc "RFC 9112, section 7.1.1"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" "1;a=\"\\\"\\\\^I\";b=c" "x"
         "0" "")
 :gives ((:request :body "x")))
(:name "extensions with white space wherever it may stand" :rfc "RFC 9112, section 7.1.1"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" "1^I; ^Ia =^I b ;c = \"d\" ;e"
         "x" "0" "")
 :gives ((:request :body "x")))
(:name "extensions with all characters of a token" :rfc "RFC 9112, section 7.1.1"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" "1;!#$%&'*+-.^^_`|~09AZaz=~"
         "x" "0" "")
 :gives ((:request :body "x")))
(:name "an extension with no name" :rfc "RFC 9112, section 7.1.1"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" "1;" "x" "0" "")
 :gives ((:refused 400 :malformed-chunk)))
(:name "an extension with white space for a name" :rfc "RFC 9112, section 7.1.1"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" "1; " "x" "0" "")
 :gives ((:refused 400 :malformed-chunk)))
(:name "an extension with a semicolon too many" :rfc "RFC 9112, section 7.1.1"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" "1;a;" "x" "0" "")
 :gives ((:refused 400 :malformed-chunk)))
(:name "an extension with a semicolon too many between" :rfc "RFC 9112, section 7.1.1"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" "1;a;;b" "x" "0" "")
 :gives ((:refused 400 :malformed-chunk)))
(:name "an extension with a value without name" :rfc "RFC 9112, section 7.1.1"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" "1;=b" "x" "0" "")
 :gives ((:refused 400 :malformed-chunk)))
(:name "an extension with no value" :rfc "RFC 9112, section 7.1.1"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" "1;a=" "x" "0" "")
 :gives ((:refused 400 :malformed-chunk)))
(:name "an extension with white space for a value" :rfc "RFC 9112, section 7.1.1"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" "1;a= " "x" "0" "")
 :gives ((:refused 400 :malformed-chunk)))
(:name "an extension with two values" :rfc "RFC 9112, section 7.1.1"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" "1;a=b=c" "x" "0" "")
 :gives ((:refused 400 :malformed-chunk)))
(:name "an extension with two words" :rfc "RFC 9112, section 7.1.1"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" "1;a b" "x" "0" "")
 :gives ((:refused 400 :malformed-chunk)))
(:name "an extension with two words for a value" :rfc "RFC 9112, section 7.1.1"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" "1;a=b c" "x" "0" "")
 :gives ((:refused 400 :malformed-chunk)))
(:name "an extension with a bracket in a value" :rfc "RFC 9112, section 7.1.1"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" "1;a[=b" "x" "0" "")
 :gives ((:refused 400 :malformed-chunk)))
(:name "an extension with a quote that does not end" :rfc "RFC 9112, section 7.1.1"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" "1;a=\"b" "x" "0" "")
 :gives ((:refused 400 :malformed-chunk)))
(:name "an extension with a quote that is escaped" :rfc "RFC 9112, section 7.1.1"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" "1;a=\"b\\\"" "x" "0" "")
 :gives ((:refused 400 :malformed-chunk)))
(:name "an extension with something behind a quote" :rfc "RFC 9112, section 7.1.1"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" "1;a=\"b\"c" "x" "0" "")
 :gives ((:refused 400 :malformed-chunk)))
(:name "an extension with a quote in a token" :rfc "RFC 9112, section 7.1.1"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" "1;a=b\"c\"" "x" "0" "")
 :gives ((:refused 400 :malformed-chunk)))
(:name "an extension with white space at its end" :rfc "RFC 9112, section 7.1.1"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" "1;a " "x" "0" "")
 :gives ((:refused 400 :malformed-chunk)))
(:name "an extension with white space after its value" :rfc "RFC 9112, section 7.1.1"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" "1;a=b " "x" "0" "")
 :gives ((:refused 400 :malformed-chunk)))
(:name "an extension with a control in a quote" :rfc "RFC 9112, section 7.1.1"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" "1;a=\"^A\"" "x" "0" "")
 :gives ((:refused 400 :malformed-chunk)))
(:name "an extension with an escaped control" :rfc "RFC 9112, section 7.1.1"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" "1;a=\"\\^A\"" "x" "0" "")
 :gives ((:refused 400 :malformed-chunk)))
(:name "an extension with an octet above 127 in a token" :rfc "RFC 9112, section 7.1.1"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" "1;a=^xE9" "x" "0" "")
 :gives ((:refused 400 :malformed-chunk)))
(:name "a last chunk with semicolons only" :rfc "RFC 9112, section 7.1.1"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" "0;;;" "")
 :gives ((:refused 400 :malformed-chunk)))
(:name "white space after a size" :rfc "RFC 9112, section 7.1.1"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" "1 " "x" "0" "")
 :gives ((:refused 400 :malformed-chunk)))
(:name "an extension with a NUL" :rfc "RFC 9112, section 7.1.1"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" "1;a^@" "x" "0" "")
 :gives ((:refused 400 :malformed-chunk)))
(:name "a bare line feed in an extension" :rfc "RFC 9112, section 2.2"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" (:raw "1;a^Jx^M^J0^M^J^M^J"))
 :gives ((:refused 400 :malformed-chunk)))
(:name "a bare carriage return in an extension" :rfc "RFC 9112, section 2.2"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" (:raw "1;a^Mx^M^J0^M^J^M^J"))
 :gives ((:refused 400 :malformed-chunk)))

;;; Trailers: RFC 9112, section 7.1.2

(:name "trailer fields are dropped" :rfc "RFC 9110, section 6.5.1"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" "1" "x" "0"
         "Expires: never" "X-Checksum:^I1 " "")
 :gives ((:request :headers ((:host . "a") (:transfer-encoding . "chunked")) :body "x")))
(:name "trailer fields change nothing of the framing" :rfc "RFC 9110, section 6.5.1"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" "0"
         "Content-Length: 5" "Host: b" "" "GET / HTTP/1.1" "Host: c" "")
 :gives ((:request :framing :chunked :host "a" :body "") (:request :host "c")))
(:name "trailer fields that have not all arrived" :rfc "RFC 9112, section 7.1.2"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" "0" "A: b")
 :gives ((:waiting "" 0)))
(:name "a space before the colon of a trailer field" :rfc "RFC 9112, section 5.1"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" "0" "A : b" "")
 :gives ((:refused 400 :malformed-field)))
(:name "a trailer line without colon" :rfc "RFC 9112, section 5"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" "0" "A" "")
 :gives ((:refused 400 :malformed-field)))
(:name "a trailer line without name" :rfc "RFC 9112, section 5"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" "0" ": b" "")
 :gives ((:refused 400 :malformed-field)))
(:name "a folded trailer field" :rfc "RFC 9112, section 5.2"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" "0" "A: b" " c" "")
 :gives ((:refused 400 :malformed-field)))
(:name "a control character in a trailer field" :rfc "RFC 9110, section 5.5"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" "0" "A: ^@" "")
 :gives ((:refused 400 :malformed-field)))
(:name "a bare line feed after a trailer field" :rfc "RFC 9112, section 2.2"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" "0" (:raw "A: b^J^M^J"))
 :gives ((:refused 400 :malformed-field)))
(:name "a bare carriage return after a trailer field" :rfc "RFC 9112, section 2.2"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" "0" (:raw "A: b^Mc"))
 :gives ((:refused 400 :malformed-field)))
(:name "a request where trailer fields may stand" :rfc "RFC 9112, section 7.1.2"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" "0" "GET / HTTP/1.1" "")
 :gives ((:refused 400 :malformed-field)))
