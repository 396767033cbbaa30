;;; Bodies of requests.

(:name "form {f}"
 :for ((f "a=b" "" "a" "a=" "=a" "&" "a=b&a=c" "a+b=c+d" "a=%C3%A9" "a=%E9" "a=^xC3^xA9" "a=^xE9"
          "a=%" "a=%zz" "a=%u20ac" "%61+b+=c%2Bd%26e%3D+%7f&+=+" "a=%4" "a=%+1" "a=% 1" "a=%e4%41"
          "+a+=b&c=%41%zz" "a=%u0041+%41" "a=b%0D%0Ac" "a=b^M^Jc" "a=b;c=d" "a=%00"))
 :request "POST /form?a=get" :headers ("Content-Type: application/x-www-form-urlencoded")
 :body "{f}")
(:name "form of type {t}"
 :for ((t "application/x-www-form-urlencoded; charset=utf-8"
          "application/x-www-form-urlencoded; charset=iso-8859-1"
          "application/x-www-form-urlencoded;charset=\"utf-8\"" "APPLICATION/X-WWW-FORM-URLENCODED"
          "application/x-www-form-urlencoded; charset=nonsense" "application/x-www-form-urlencoded;"
          "text/plain" "text/plain; charset=utf-8" "text/plain; charset=iso-8859-1"
          "text/plain; charset=nonsense" "text/plain; charset=utf-16" "application/json"
          "application" "" "/" "text/" "a/b; c" "a/b; c=\"d" "multipart/form-data; boundary="))
 :request "POST /raw-and-parameters?a=%C3%A9" :headers ("Content-Type: {t}")
 :body "a=%C3%A9&b=^xE9")
(:name "text of type {t}"
 :for ((t "TEXT/b;charset=utf-8" "text/plain ;a=\"e\\\"f\"; charset=iso-8859-1"
          "text/plain;^I;charset=\"utf-8\"" "text/plain; boundary=--1; CHARSET=iso-8859-1 "
          "text/plain; a=\"quoted; x\";charset=utf-8" "text/plain; charset=\"\""
          "text/plain; charset" "text/plain; a; charset=utf-8" "text/b; a=b charset=iso-8859-1"
          "a/b; charset=iso-8859-1"))
 :request "POST /raw?a=%C3%A9" :headers ("Content-Type: {t}") :body "^xC3^xA9")
(:name "query beside {t}"
 :for ((t "text/plain; charset=iso-8859-1" "text/plain" "application/json; charset=iso-8859-1"))
 :request "GET /echo?a=%C3%A9" :headers ("Content-Type: {t}"))
(:name "form of type {t}" :worlds (:impatient)
 :for ((t "multipart/form-data" "multipart/form-data; boundary=absent"))
 :request "POST /raw-and-parameters?a=%C3%A9" :headers ("Content-Type: {t}")
 :body "a=%C3%A9&b=^xE9")
(:name "form at {p}"
 :for ((p "/echo" "/raw" "/raw-text" "/raw-binary" "/raw-format" "/raw-twice" "/raw-and-parameters"
          "/parameters-and-raw" "/stream-in" "/stream-in-lines" "/stream-in-sequence" "/untouched"
          "/form-recomputed?x=%C3%A9" "/string" "/missing" "/failed" "/own" "/own-after-body" "/nil"
          "/easy-form?a=7"))
 :request "POST {p}" :headers ("Content-Type: application/x-www-form-urlencoded")
 :body "a=b&c=%C3%A9&a=2")
(:name "text at {p}"
 :for ((p "/echo" "/raw" "/raw-text" "/raw-binary" "/raw-format" "/raw-twice" "/raw-and-parameters"
          "/parameters-and-raw" "/stream-in" "/stream-in-lines" "/stream-in-sequence" "/untouched"
          "/missing" "/failed" "/own" "/own-after-body" "/status?x=204" "/aborted"
          "/redirect?x=/there" "/long-octets"))
 :request "POST {p}" :headers ("Content-Type: text/plain; charset=utf-8")
 :body "one^M^Jtwo ^xC3^xA9^Jthree")
(:name "octets without type at {p}"
 :for ((p "/echo" "/raw" "/raw-text" "/raw-binary" "/stream-in" "/stream-in-lines" "/untouched"
          "/form"))
 :request "POST {p}" :body "^@^A^xFF^xFE")
(:name "chunks at {p}"
 :for ((p "/echo" "/raw" "/raw-text" "/raw-binary" "/raw-twice" "/raw-and-parameters" "/stream-in"
          "/untouched" "/string" "/missing" "/failed" "/own" "/own-after-body" "/own-with-length"
          "/stream-in-unread" "/nil" "/long-string" "/file" "/status?x=204" "/redirect?x=/there"))
 :request "POST {p}" :headers ("Content-Type: text/plain") :chunks ("first " "second^M^J" "third"))
(:name "chunks at /stream-in-lines" :worlds (:impatient)
 :request "POST /stream-in-lines" :headers ("Content-Type: text/plain")
 :chunks ("first " "second^M^J" "third"))
(:name "chunked form at {p}" :for ((p "/form" "/echo" "/easy-form" "/string"))
 :request "POST {p}" :headers ("Content-Type: application/x-www-form-urlencoded")
 :chunks ("a=" "1&c" "=2"))
(:name "no chunks at {p}" :for ((p "/raw" "/form" "/stream-in" "/string"))
 :send ("POST {p} HTTP/1.1" "Host: localhost" "Content-Type: text/plain"
        "Transfer-Encoding: chunked" "" "0" ""))
(:name "chunks with extensions and trailers at {p}" :for ((p "/raw" "/string"))
 :send ("POST {p} HTTP/1.1" "Host: localhost" "Content-Type: text/plain"
        "Transfer-Encoding: chunked" "" "3;a=b" "one" "3" "two" "0" "X-Trailer: 1" ""))
(:name "transfer coding {c}"
 :for ((c "Chunked" "CHUNKED" "identity" "gzip, chunked" "chunked, chunked" ", chunked"))
 :send ("POST /raw HTTP/1.1" "Host: localhost" "Content-Type: text/plain" "Transfer-Encoding: {c}"
        "" "3" "one" "0" ""))
(:name "chunks in HTTP/1.0"
 :send ("POST /raw HTTP/1.0" "Host: localhost" "Content-Type: text/plain"
        "Transfer-Encoding: chunked" "" "3" "one" "0" ""))
(:name "empty body at {p}"
 :for ((p "/echo" "/raw" "/raw-text" "/raw-binary" "/form" "/stream-in-sequence" "/upload"))
 :request "POST {p}"
 :headers ("Content-Length: 0" "Content-Type: application/x-www-form-urlencoded"))
(:name "no body and no length at {p}" :for ((p "/echo" "/raw" "/raw-text" "/form" "/untouched"))
 :request "POST {p}" :headers ("Content-Type: application/x-www-form-urlencoded"))
(:name "no body, want a stream" :worlds (:impatient) :request "GET /stream-in"
 :headers ("Connection: close"))
(:name "Content-Length {l}" :for ((l "+3" "3 " "03" "3, 3"))
 :send ("POST /raw HTTP/1.1" "Host: localhost" "Content-Type: text/plain" "Content-Length: {l}" ""
        (:raw "abc")))
(:name "Content-Length {l}" :for ((l "x" "-1" ""))
 :send ("POST /raw HTTP/1.1" "Host: localhost" "Content-Type: text/plain" "Content-Length: {l}" ""
        "abc" ""))
(:name "two equal Content-Lengths"
 :send ("POST /raw HTTP/1.1" "Host: localhost" "Content-Length: 3" "Content-Length: 3" ""
        (:raw "abc")))
(:name "Content-Length and chunks"
 :send ("POST /string HTTP/1.1" "Host: localhost" "Content-Length: 13" "Transfer-Encoding: chunked"
        "" "3" "abc" "0" ""))
(:name "a body in HTTP/1.0, {c}" :for ((c "keep-alive" "close"))
 :request "POST /echo" :version "HTTP/1.0" :headers ("Connection: {c}" "Content-Type: text/plain")
 :body "body")
(:name "a stream read oddly, {p}" :for ((p "/stream-in-odd" "/stream-in-utf-8"))
 :request "POST {p}" :headers ("Content-Type: text/plain") :body "a^xC3^xA9bcdef")
(:name "a stream of chunks read oddly" :request "POST /stream-in-utf-8"
 :headers ("Content-Type: text/plain")
 :chunks ("a^xC3" "^xA9b^Jc"))
(:name "a large body in chunks at {p}" :for ((p "/raw-size" "/untouched" "/own" "/missing"))
 :send ("POST {p} HTTP/1.1" "Host: localhost" "Transfer-Encoding: chunked" ""
        (:times 100 ("3E8" (:times 100 (:raw "0123456789")) "")) "0" ""))
(:name "a body that is not read whole" :request "POST /stream-in-part"
 :body "bGET /missing HTTP/1.1^M^JHost: a^M^J^M^J")
(:name "a body that is not read" :request "POST /stream-in-unread"
 :body "GET /missing HTTP/1.1^M^JHost: a^M^J^M^J")
(:name "a large body at {p}"
 :for ((p "/raw-size" "/untouched" "/failed" "/missing" "/status?x=413"))
 :send ("POST {p} HTTP/1.1" "Host: localhost" "Content-Length: 100000" ""
        (:times 10000 (:raw "0123456789"))))
(:name "a larger body at {p}" :for ((p "/raw-size" "/untouched" "/failed" "/missing" "/own"))
 :send ("POST {p} HTTP/1.1" "Host: localhost" "Content-Length: 300000" ""
        (:times 30000 (:raw "0123456789"))))
(:name "a form of many parameters"
 :send ("POST /form HTTP/1.1" "Host: localhost" "Content-Type: application/x-www-form-urlencoded"
        "Content-Length: 6000" "" (:times 1000 (:raw "key=v&"))))

;;; Uploads

(:name "upload of {t} at {p}"
 :for ((t "text/plain" "image/png" "application/octet-stream" "") (p "/upload" "/untouched"))
 :request "POST {p}" :headers ("Content-Type: multipart/form-data; boundary=b")
 :body ("--b" "Content-Disposition: form-data; name=\"a\"" "" "value ^xC3^xA9" "--b"
        "Content-Disposition: form-data; name=\"f\"; filename=\"n.txt\"" "Content-Type: {t}" ""
        "line" "^xFF^@" "--b--"))
(:name "upload with {d}"
 :for ((d "name=\"f\"; filename=\"\"" "name=f; filename=n" "name=\"f\"; filename=\"a b.txt\""
          "name=\"f\"; filename=\"^xC3^xA9.txt\"" "filename=\"n\"" "name=\"\"; filename=\"n\""
          "name=\"f\"; filename=\"a\\\"b\""))
 :request "POST /upload" :headers ("Content-Type: multipart/form-data; boundary=\"b c\"")
 :body ("--b c" "Content-Disposition: form-data; {d}" "Content-Type: text/plain" "" "contents"
        "--b c--"))
(:name "upload without its end" :worlds (:impatient) :request "POST /upload"
 :headers ("Content-Type: multipart/form-data; boundary=b")
 :body ("--b" "Content-Disposition: form-data; name=\"a\"" "" "value"))
(:name "upload without its last line end" :worlds (:impatient) :request "POST /upload"
 :headers ("Content-Type: multipart/form-data; boundary=b")
 :body "--b^M^JContent-Disposition: form-data; name=\"a\"^M^J^M^Jvalue^M^J--b--")
(:name "upload with a delimiter within a line" :request "POST /upload"
 :headers ("Content-Type: multipart/form-data; boundary=b")
 :body ("--b" "Content-Disposition: form-data; name=\"a\"" "" "value --b--" "--b--"))
(:name "upload of nothing" :request "POST /upload"
 :headers ("Content-Type: multipart/form-data; boundary=b") :body ("--b--"))
(:name "upload with stray octets" :request "POST /upload"
 :headers ("Content-Type: multipart/form-data; boundary=b")
 :body ("prologue" "--b" "Content-Disposition: form-data; name=\"a\"" "" "value" "--b--"
        "epilogue"))
(:name "form of fields" :request "POST /upload"
 :headers ("Content-Type: multipart/form-data; boundary=b")
 :body ("--b" "Content-Disposition: form-data; name=\"a\"" "" "1" "--b"
        "Content-Disposition: form-data; name=\"b\"" "" "" "--b"
        "Content-Disposition: form-data; name=\"a\"" "" "2" "--b--"))
(:name "form with files" :request "POST /upload"
 :headers ("Content-Type: multipart/form-data; boundary=b")
 :body ("--b" "Content-Disposition: form-data; name=f; filename=\"x.bin\""
        "Content-Type: application/x-test" "" (:times 9 "^@^A^J^M^x80^xFF0123456789") "--b"
        "Content-Disposition: form-data; name=\"g\"; filename=\"y.txt\"" "" "no type" "--b"
        "Content-Disposition: form-data; name=\"h\"; filename=\"z\""
        "content-type: text/plain; charset=utf-8" "" "text" "--b"
        "Content-Disposition: form-data; name=\"i\"; filename=\"z\"" "Content-Type: odd" ""
        "text" "--b" "Content-Disposition: form-data; name=\"j\"; filename=\"empty\"" "" ""
        "--b--"))
(:name "form with names and texts in UTF-8" :request "POST /upload"
 :headers ("Content-Type: multipart/form-data; boundary=b")
 :body ("--b"
        "Content-Disposition: form-data; name=\"^xC3^xA4^xE2^x82^xAC\"; filename=\"^xC3^xB6\""
        "" "^xC3^xBC" "--b" "Content-Disposition: form-data; name=\"^xC3^xB6\"" ""
        "^xC3^x9F ^xE2^x82^xAC" "--b--"))
(:name "form with a text that is not UTF-8" :request "POST /upload"
 :headers ("Content-Type: multipart/form-data; boundary=b")
 :body ("--b" "Content-Disposition: form-data; name=\"a\"" "" "A^xFFB" "--b--"))
(:name "form with nearly delimiters" :request "POST /upload"
 :headers ("Content-Type: multipart/form-data; boundary=b")
 :body ("--b" "Content-Disposition: form-data; name=\"a\"; filename=\"f\"" "" "--" "-b" "--a"
        "--" "^M^J^M^J-- b" "--b" "Content-Disposition: form-data; name=\"c\"" ""
        "- -b^M^J^M^J^M^J" "--b--"))
(:name "form whose delimiters have more on their line" :request "POST /upload"
 :headers ("Content-Type: multipart/form-data; boundary=b")
 :body ("--bc" "Content-Disposition: form-data; name=\"a\"" "" "1" "--b ^I"
        "Content-Disposition: form-data; name=\"b\"" "" "2" "--b-"
        "Content-Disposition: form-data; name=\"c\"" "" "3" "--b--"))
(:name "form with line ends in the content" :request "POST /upload"
 :headers ("Content-Type: multipart/form-data; boundary=b")
 :body ("--b" "Content-Disposition: form-data; name=\"a\"" "" "^M^Jx^M^J^J^M" "--b"
        "Content-Disposition: form-data; name=\"f\"; filename=\"f\"" "" "^M^J^M^J^M" "--b--"))
(:name "form with a preamble" :request "POST /upload"
 :headers ("Content-Type: multipart/form-data; boundary=b")
 :body ("preamble" "" "--b" "Content-Disposition: form-data; name=\"a\"" "" "1" "--b--"))
(:name "form with parts that are no fields" :request "POST /upload"
 :headers ("Content-Type: multipart/form-data; boundary=b")
 :body ("--b" "" "no head" "--b" "X-Some: thing" "" "no disposition" "--b"
        "Content-Disposition: attachment; name=\"a\"" "" "1" "--b"
        "Content-Dispositioo: form-data; name=\"a\"" "" "1" "--b"
        "Content-Disposition: form-data; filename=\"f\"" "" "a file without a name" "--b"
        "Content-Disposition: form-data; name=\"a\"" "" "1" "--b--"))
(:name "form without a blank line before the next part" :request "POST /upload"
 :headers ("Content-Type: multipart/form-data; boundary=b")
 :body ("--b" "Content-Disposition: form-data; name=\"a\"" "" "--b"
        "Content-Disposition: form-data; name=\"b\"" "" "2" "--b--"))
(:name "form with odd heads" :request "POST /upload"
 :headers ("Content-Type: multipart/form-data; boundary=b")
 :body ("--b" "Content-Disposition: form-data; name=a" "" "1" "--b"
        "Content-Disposition: form-data; NAME=\"b\"" "" "2" "--b"
        "Content-Disposition: form-data; name=\"c;d\"" "" "3" "--b"
        "Content-Disposition: form-data; name=\"g\"; filename" "" "5" "--b"
        "Content-Disposition: form-data; filename=\"f\"; name=\"i\"" "" "7" "--b"
        "content-disposition:   FORM-DATA;name=\"j\"" "" "8" "--b"
        "Content-Disposition: form-data; name=\"k\"" "Folded: one" " two" "" "9" "--b--"))
(:name "form of many fields" :request "POST /upload"
 :headers ("Content-Type: multipart/form-data; boundary=b")
 :body ((:times 300 ("--b" "Content-Disposition: form-data; name=\"a\"" "" "text")) "--b--"))
(:name "form with a quoted boundary" :request "POST /upload"
 :headers ("Content-Type: multipart/form-data; boundary=\"quoted; b\"")
 :body ("--quoted; b" "Content-Disposition: form-data; name=\"a\"" "" "1" "--quoted; b--"))
(:name "form with a boundary of hyphens" :request "POST /upload"
 :headers ("Content-Type: Multipart/Form-Data; charset=utf-8; BOUNDARY=--x")
 :body ("----x" "Content-Disposition: form-data; name=\"a\"" "" "1" "----x--"))
(:name "form with a long boundary" :request "POST /upload"
 :for ((b "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"))
 :headers ("Content-Type: multipart/form-data; boundary={b}")
 :body ("--{b}" "Content-Disposition: form-data; name=\"a\"" "" "1" "--{b}--"))
(:name "upload in chunks" :request "POST /upload"
 :headers ("Content-Type: multipart/form-data; boundary=b")
 :chunks (("--b" "Content-Disposition: form-data; name=\"a\"") ("" "value") ("--b--")))
(:name "upload, then raw" :request "POST /parameters-and-raw"
 :headers ("Content-Type: multipart/form-data; boundary=b")
 :body ("--b" "Content-Disposition: form-data; name=\"a\"" "" "value" "--b--"))

;;; Expectations

(:name "expecting 100 at {p}" :for ((p "/raw" "/untouched" "/stream-in" "/missing"))
 :steps ((:send ("POST {p} HTTP/1.1" "Host: localhost" "Content-Length: 4"
                 "Content-Type: text/plain" "Expect: 100-continue" "")
          :reads (:interim))
         (:send ((:raw "body")))))
(:name "expecting 100 for chunks"
 :steps ((:send ("POST /raw HTTP/1.1" "Host: localhost" "Transfer-Encoding: chunked"
                 "Content-Type: text/plain" "Expect: 100-continue" "")
          :reads (:interim))
         (:send ("4" "body" "0" ""))))
(:name "expecting 100 without a body" :request "GET /string" :headers ("Expect: 100-continue"))
(:name "expecting 100 in HTTP/1.0" :request "POST /raw" :version "HTTP/1.0"
 :headers ("Expect: 100-continue") :body "body")
(:name "expecting {e}" :for ((e "100-Continue" "nonsense" "100-continue, nonsense" ""))
 :request "POST /raw" :headers ("Expect: {e}" "Content-Type: text/plain") :body "body")
