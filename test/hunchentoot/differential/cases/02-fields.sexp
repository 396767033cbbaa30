;;; Header fields of requests.

(:name "field {h}"
 :for ((h "Accept:" "Accept: " "Accept:a" "Accept:   a   " "Accept: ^Ia^I" "Accept: a ^I b"
          "aCCEPT: a" "ACCEPT: a" "Accept: a:b" "Accept: ,,a,," "Accept: \"a, b\""
          "Accept: a;q=0.5, b;q=1" "Accept: ^xE9^xFF" "Accept: ^xC3^xA9"
          "User-Agent: Mozilla/5.0 (X11; Linux)" "Referer: http://localhost/a?b"
          "Accept-Language: de,en;q=0.5" "X-Forwarded-For: 1.2.3.4"
          "X-Forwarded-For: 1.2.3.4, 5.6.7.8" "X-Forwarded-For: 1.2.3.4,5.6.7.8 , 9"
          "X-Forwarded-For:" "X-Forwarded-For: 1a.,, 1. ,2" "X-Forwarded-For: 1 ,a. 2"
          "X-Forwarded-For: 1,,2" "Content-Type: text/html; charset=utf-8" "Content-Type:"
          "Content-Type: nonsense" "Content-Encoding: gzip" "Upgrade: websocket"
          "Upgrade-Insecure-Requests: 1" "TE: trailers" "DNT: 1" "Sec-Fetch-Mode: navigate"
          "If-None-Match: \"x\"" "Range: bytes=0-1" "Accept: ~!#$%&'*+-.^^_`|" "Via: 1.1 proxy"
          "Pragma: no-cache" "Cache-Control: no-cache" "Origin: null" "Date: yesterday"
          "Keep-Alive: 300" "Proxy-Connection: keep-alive" "Max-Forwards: 1" "From: a@b"))
 :request "GET /echo" :headers ("{h}"))
(:name "a field that no program mentions" :request "GET /echo" :headers ("X-Never-Heard-Of: 1"))
(:name "a field that no program mentions, twice"
 :request "GET /echo" :headers ("X-Never-Heard-Of: 1" "x-never-heard-of: 2"))
(:name "a field whose value is a control" :request "GET /echo" :headers ("Accept: a^Ab"))
(:name "a repeated field" :request "GET /echo"
 :headers ("Accept: a" "Accept-Charset: x" "accept: b" "ACCEPT: c"))
(:name "a repeated field with empty values" :request "GET /echo"
 :headers ("Accept:" "Accept: b" "Accept:"))
(:name "repeated {h}"
 :for ((h "User-Agent: a" "Referer: a" "Authorization: Basic YTpi" "X-Forwarded-For: 1.1.1.1"
          "Connection: keep-alive" "Content-Type: text/plain" "Set-Cookie: a=b;"))
 :request "GET /echo" :headers ("{h}" "Accept: x" "{h}"))
(:name "a folded field" :request "GET /echo" :headers ("Accept: a" " b" "^Ic"))
(:name "a space before the colon" :request "GET /echo" :headers ("Accept : a"))
(:name "a line without a colon" :request "GET /echo" :headers ("nonsense"))
(:name "a field without a name" :request "GET /echo" :headers (": a"))
(:name "lines that end in LF alone" :worlds (:impatient)
 :send ((:raw "GET /string HTTP/1.1^JHost: localhost^J^J")))
(:name "a browser's request"
 :request "GET /echo?utm_source=x&utm_medium=y"
 :headers ("User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:120.0) Gecko/20100101 Firefox/120.0"
           "Accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
           "Accept-Language: en-US,en;q=0.5" "Accept-Encoding: gzip, deflate, br"
           "Referer: http://localhost/" "Connection: keep-alive" "Cookie: a=1; b=2; c=3; d=4"
           "Upgrade-Insecure-Requests: 1" "Sec-Fetch-Dest: document" "Sec-Fetch-Mode: navigate"
           "Sec-Fetch-Site: same-origin" "Sec-Fetch-User: ?1" "Pragma: no-cache"
           "Cache-Control: no-cache"))
(:name "a value of {n} octets" :for ((n "100" "8000" "20000"))
 :send ("GET /echo HTTP/1.1" "Host: localhost"
        ((:raw "User-Agent: {n}") (:times 9000 (:raw "u")) "") ""))
(:name "fifty fields"
 :send ("GET /echo HTTP/1.1" "Host: localhost" (:times 48 "Accept: a") "Via: b" ""))
(:name "a very long field"
 :send ("GET /string HTTP/1.1" "Host: localhost" ((:raw "Accept: ") (:times 140000 (:raw "a")) "")
        ""))
(:name "two hundred fields"
 :send ("GET /string HTTP/1.1" "Host: localhost" (:times 200 "Accept: a") ""))
(:name "sent octet by octet" :request "GET /echo?a=b" :headers ("Cookie: a=b") :pieces 1)
(:name "a body sent octet by octet" :request "POST /echo" :body "some octets" :pieces 1)

;;; Cookies

(:name "cookies {c}"
 :for ((c "" "a" "a=" "=a" "a=b" "a=b; c=d" "a=b;c=d" "a=b , c=d" "a=b; a=c" "a=b; " "; a=b" "a=b=c"
          "a=\"b\"" "a=\"b; c\"" "a=%20%C3%A9" "a=^xE9" "a = b" "a=b c" "$Version=1; a=b; $Path=/"
          "A=b; a=c" ";" "=" ";;" "a=b;;c=d" "hunchentoot-session=999998:ABC"
          "hunchentoot-session=x" "hunchentoot-session="
          "hunchentoot-session=999999:00000000000000000000000000000000" "hunchentoot-session=%"
          "a\"=;, a%41b ,;=b\"b" "a,a=b,;  b=%41" "aa==;\",b;\" =a,b"))
 :request "GET /echo" :headers ("Cookie: {c}"))
(:name "two Cookie fields" :request "GET /echo" :headers ("Cookie: a=b" "Accept: x" "Cookie: c=d"))
(:name "a session in the query {s}"
 :for ((s "999998:ABC" "x" "" "999999:00000000000000000000000000000000"))
 :request "GET /echo?hunchentoot-session={s}")

;;; Credentials

(:name "authorization {a}"
 :for ((a "Basic YTpi" "basic YTpi" "BASIC   YTpi" "Basic" "Basic " "Basic !!!" "Basic YQ=="
          "Basic YTo=" "Basic YTpiOmM=" "Basic w6k6w6k=" "Bearer xyz" "" "Basic YTpi="
          "Digest username=\"a\""))
 :request "GET /echo" :headers ("Authorization: {a}"))
(:name "guarded, {a}" :for ((a "Basic dXNlcjpzZWNyZXQ=" "Basic dXNlcjp3cm9uZw==" "Bearer x"))
 :request "GET /guarded" :headers ("Authorization: {a}"))
(:name "guarded, without credentials" :request "GET /guarded")
(:name "guarded, HEAD" :request "HEAD /guarded")
(:name "guarded, realm {r}" :for ((r "plain" "a%22b" "a%0Ab" "a%0D%0Ab:%20c" "%C3%A9"))
 :request "GET /guarded?realm={r}")
(:name "guarded, realm beyond Latin-1" :worlds (:impatient) :request "GET /guarded?realm=%E2%82%AC")
