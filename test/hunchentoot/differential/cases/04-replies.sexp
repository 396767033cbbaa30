;;; Replies of all kinds, asked for by GET and by HEAD, by both versions.

(:name "{m} {p} by {v}, {c}"
 :for ((p "/string" "/letters" "/empty" "/nil" "/octets" "/no-octets" "/own" "/own-with-length"
          "/file" "/folder/middle.bin")
       (m "GET" "HEAD")
       (v "HTTP/1.1" "HTTP/1.0")
       (c "keep-alive" "close"))
 :request "{m} {p}" :version "{v}" :headers ("Connection: {c}"))
(:name "{m} {p}"
 :for ((p "/adjustable-octets" "/filled-octets" "/displaced-octets" "/filled-string" "/base-string"
          "/list" "/vector" "/symbol" "/t" "/integer" "/pathname" "/two-values" "/no-values"
          "/long-letters" "/long-lines" "/no-type" "/no-type-octets" "/headers" "/no-cache"
          "/modified" "/cookies" "/cookie-by-header" "/own-nothing" "/own-and-value" "/own-bytes"
          "/own-long" "/own-long-with-length" "/own-too-long" "/own-characters" "/own-odd"
          "/own-odd-chunks" "/own-twice" "/own-closed" "/header-deleted" "/bound" "/own-headers"
          "/own-aborted" "/own-failed" "/own-failed-chunked" "/own-bad-header" "/aborted"
          "/aborted-nil" "/failed" "/failed-typed" "/failed-unprintable" "/failed-after-headers-set"
          "/warned" "/signalled" "/handled" "/logged" "/redirect-elsewhere" "/redirect-port"
          "/connection-nil" "/length-then-error" "/file-missing" "/file-with-headers"
          "/file-in-latin-1" "/missing")
       (m "GET" "HEAD"))
 :request "{m} {p}")
(:name "GET {p} by HTTP/1.0"
 :for ((p "/own-nothing" "/own-and-value" "/own-long" "/own-long-with-length" "/own-failed"
          "/failed" "/aborted" "/list" "/missing" "/redirect-elsewhere" "/cookies"))
 :request "GET {p}" :version "HTTP/1.0" :headers ("Connection: keep-alive"))
(:name "GET {p} by {v}, and it stalls" :worlds (:impatient)
 :for ((p "/vector-of-others" "/cookie-beyond-latin-1" "/own-failed-chunked" "/header-value?x=14"
          "/redirect?x=/%E2%82%AC" "/type?x=" "/type?octets=1&x="
          "/header?name=:content-type&value=")
       (v "HTTP/1.1" "HTTP/1.0"))
 :request "GET {p}" :version "{v}" :headers ("Connection: keep-alive"))
(:name "HEAD {p}, and it stalls" :worlds (:impatient)
 :for ((p "/cookie-beyond-latin-1" "/header-value?x=14"))
 :request "HEAD {p}")
(:name "large reply {p}" :for ((p "/long-string" "/huge-string" "/huge-octets"))
 :request "GET {p}")

;;; Status

(:name "status {s} at {p}"
 :for ((s "101" "201" "203" "204" "205" "206" "207" "300" "301" "302" "303" "304" "305" "307"
          "308" "400" "401" "403" "404" "405" "410" "413" "414" "416" "418" "422" "424" "429" "444"
          "451" "499" "500" "503" "504" "505" "511" "599" "600" "999")
       (p "/status" "/status-nil"))
 :request "GET {p}?x={s}")
(:name "interim status {s} at {p}" :for ((s "100" "102" "103" "199") (p "/status" "/status-nil"))
 :request "GET {p}?x={s}" :reads (:interim))
(:name "status {s} by HEAD at {p}"
 :for ((s "204" "205" "301" "304" "404" "500") (p "/status" "/status-nil"))
 :request "HEAD {p}?x={s}")
(:name "status {s} with octets" :for ((s "201" "204" "304" "404"))
 :request "GET /status-octets?x={s}")
(:name "status {s} with an empty string" :for ((s "201" "204" "205" "304" "404"))
 :request "GET /status-empty?x={s}")
(:name "status {s}, length 0" :for ((s "200" "201" "204" "205" "304" "404"))
 :request "GET /status-length?x={s}")
(:name "status {s}, aborted" :for ((s "201" "204" "404" "500"))
 :request "GET /status-aborted?x={s}&with=text")
(:name "status {s}, aborted with nothing" :for ((s "201" "204" "404" "500"))
 :request "GET /status-aborted?x={s}")
(:name "status {s} with own output" :for ((s "201" "204" "304" "404" "418"))
 :request "GET /own-status?x={s}")

;;; Encodings and types

(:name "{p} in {f}"
 :for ((f "utf-8" "latin-1" "utf-16" "utf-16le" "utf-32" "us-ascii" "koi8-r" "cp1252" "utf-8-crlf"
          "latin-1-cr" "latin-1-crlf")
       (p "/encoded" "/encoded-beyond" "/encoded-and-empty"))
 :request "GET {p}?x={f}")
(:name "type {t}"
 :for ((t "text/html" "text/plain" "TEXT/Plain" "text/plain;charset=x" "text/plain;%20Charset=utf-8"
          "text/plain;%20format=flowed" "application/json" "application/xhtml%2Bxml"
          "image/svg%2Bxml" "text" "x" "application/json;%20charset=utf-8"
          "text/plain%0D%0AX-Injected:%201"))
 :request "GET /type?x={t}")
(:name "type {t} of octets" :for ((t "text/html" "application/octet-stream"))
 :request "GET /type?octets=1&x={t}")

;;; Headers

(:name "header value {n}"
 :for ((n "0" "1" "2" "3" "4" "5" "6" "7" "8" "9" "10" "11" "12" "13" "15" "16" "17" "18" "19" "20"
          "21" "22"))
 :request "GET /header-value?x={n}")
(:name "header {h} at {p}"
 :for ((h ":x-one" "X-One" "x-ONE" ":etag" ":server" ":date" ":connection" ":keep-alive"
          ":content-encoding" ":set-cookie" ":transfer-encoding" ":www-authenticate" ":location"
          "X_One" "X.One" ":x" ":content-type" ":vary" ":upgrade" ":trailer" "X%20One" "X:One" "")
       (p "/header" "/header-nil" "/header-nil-content"))
 :request "GET {p}?name={h}&value=text/given")
(:name "header {h} set to nothing" :for ((h ":x-one" ":server" ":date" ":connection"))
 :request "GET /header?name={h}&value=")
(:name "length {l} of four" :for ((l "4" "0" "3" "5" "1000"))
 :request "GET /length?x={l}")
(:name "length {l} of nothing" :for ((l "0"))
 :request "GET /length-nil?x={l}")
(:name "length {l} of nothing, HEAD" :for ((l "0" "4"))
 :request "HEAD /length-nil?x={l}")
(:name "cookie value {v}"
 :for ((v "" "a" "a%20b" "a;b" "a,b" "%22a%22" "a%0D%0AX-Injected:%201" "a%0Ab" "%C3%A9" "a%3Db"))
 :request "GET /cookie-value?x={v}")
(:name "connection {c} of the program" :for ((c "close" "Close" "x,%20close" "closed" "keep-alive"
                                               "Upgrade"))
 :request "GET /connection?x={c}")
(:name "connection {c} of the program, kept alive" :for ((c "close" "Upgrade"))
 :request "GET /connection?x={c}" :headers ("Connection: keep-alive"))
(:name "connection {c} of the program, HTTP/1.0" :for ((c "close" "keep-alive"))
 :request "GET /connection?x={c}" :version "HTTP/1.0")

;;; Redirects

(:name "redirect to {t}"
 :for ((t "/there" "there" "/there?a=b%26c=d" "http://example.org/" "https://example.org/x"
          "//example.org/" "" "mailto:a@b" "/%C3%A9" "/a%0D%0AX-Injected:%201"))
 :request "GET /redirect?x={t}")
(:name "redirect with {c}" :for ((c "300" "301" "303" "307" "308" "399" "200"))
 :request "GET /redirect-code?x={c}")
(:name "redirect with Host {h}" :for ((h "" "localhost:8080" "[::1]:80"))
 :request "GET /redirect-port" :host "{h}")
(:name "redirect without Host" :request "GET /redirect?x=/there" :host nil :version "HTTP/1.0")
(:name "redirect of {m}" :for ((m "HEAD" "POST"))
 :request "{m} /redirect?x=/there")
