;;; Methods, targets, versions.

(:name "method {m} by {v}, {p}"
 :for ((m "GET" "HEAD" "POST" "PUT" "DELETE" "OPTIONS" "PATCH" "TRACE")
       (v "HTTP/1.1" "HTTP/1.0")
       (p "/echo" "/nil"))
 :request "{m} {p}" :version "{v}")
(:name "method {m} with a body"
 :for ((m "GET" "HEAD" "POST" "PUT" "DELETE" "OPTIONS" "PATCH"))
 :request "{m} /echo" :headers ("Content-Type: application/x-www-form-urlencoded") :body "a=b")
(:name "method {m} to a missing page" :for ((m "GET" "HEAD" "POST" "OPTIONS"))
 :request "{m} /missing")
(:name "extension method {m}"
 :for ((m "PROPFIND" "MKCOL" "REPORT" "NEVER-HEARD-OF" "M-SEARCH"))
 :request "{m} /echo")
(:name "method in lower case" :request "get /echo")
(:name "method CONNECT" :send ("CONNECT localhost:80 HTTP/1.1" "Host: localhost:80" ""))

;;; Targets

(:name "query {q}"
 :for ((q "" "a" "a=" "=a" "=" "a=b" "a=b&c=d" "a=b&a=c" "a=b&" "&a=b" "a&b" "a=b=c" "a=b;c=d"
          "a+b=c+d" "a%20b=%20c" "%61=%62" "a=%2B" "a=%C3%A9" "a=%E9" "a=%e2%82%ac" "a=%F0%9D%84%9E"
          "a=%u00e9" "a=%u20ac" "a=%" "a=%4" "a=%zz" "a=%00" "a=%0d%0a" "a=b?c" "a=b/c" "a=%26%3D"
          "+a+=b" "a[]=1&a[]=2" "a[0]=x" "a~!*'()=~!*'()" "a=%ff%fe" "a=%C3" "a=b#c"
          "a%41=%C3%A9b+4&&==+&%C3%A9=b=&4+a" "&&=%41+%C3%A9%41=4&a" "+=%C3b&a%41+4=%C3%A9"))
 :request "GET /echo?{q}")
(:name "path {p}"
 :for ((p "/" "//" "/echo/" "//echo" "/ech%6F" "/ech%6f" "/%65cho?x" "/echo%3Fa=b" "/echo%00"
          "/e+cho" "/%C3%A9%E2%82%AC%20x" "/%E9" "/a/b.c;d" "/a/./b" "/a/../b" "/%2e%2e/" "/echo%"
          "/echo%4" "/echo%u0041" "/prefix" "/prefixed/more?a=b" "/regex/12" "/regex/x" "/~user"
          "/a:b" "/a@b" "/echo|" "/echo\"" "/echo<>" "/echo{}" "/echo\\" "/echo^^" "/echo`"
          "/echo#fragment" "/easy-form?a=1&b=x&b=y&c=z" "/easy-form?a=x"
          "/easy-form?e=post&f=no&g[1]=2&g[0]=7&h{k}=9"))
 :request "GET {p}")
(:name "absolute target {t}"
 :for ((t "http://localhost/echo" "http://localhost/echo?a=b" "HTTP://LOCALHOST/echo"
          "http://localhost:80/echo" "https://localhost/echo" "http://localhost"
          "http://localhost?a=b" "http://other.host/echo" "http://localhost/"))
 :request "GET {t}")
(:name "absolute target in HTTP/1.0" :request "GET http://localhost/echo" :version "HTTP/1.0")
(:name "target * of {m}" :for ((m "OPTIONS" "GET"))
 :request "{m} *")
(:name "target without slash" :request "GET echo")
(:name "long target" :send (((:raw "GET /echo?a=") (:times 8000 (:raw "x")) " HTTP/1.1")
                            "Host: localhost" ""))

(:name "very long target" :send (((:raw "GET /echo?a=") (:times 20000 (:raw "x")) " HTTP/1.1")
                                 "Host: localhost" ""))

;;; Versions, and what surrounds a request line

(:name "version {v}"
 :for ((v "HTTP/1.2" "HTTP/2.0" "HTTP/0.9" "http/1.1" "HTTP/1" "HTTP/11" "FTP/1.1"))
 :request "GET /echo" :version "{v}")
(:name "no version" :send ("GET /echo" ""))
(:name "two spaces in the request line" :send ("GET  /echo HTTP/1.1" "Host: localhost" ""))
(:name "a space after the version" :send ("GET /echo HTTP/1.1 " "Host: localhost" ""))
(:name "a space in the target" :send ("GET /echo a HTTP/1.1" "Host: localhost" ""))
(:name "an octet above 127 in the target" :send ("GET /echo^xE9 HTTP/1.1" "Host: localhost" ""))
(:name "an empty line before the request"
 :send ("" "GET /echo HTTP/1.1" "Host: localhost" ""))
(:name "an empty line before the second request"
 :steps ((:request "GET /echo") (:send ("" "GET /string HTTP/1.1" "Host: localhost" ""))))
(:name "HTTP/1.1 without Host" :request "GET /echo" :host nil)
(:name "HTTP/1.0 without Host" :request "GET /echo" :version "HTTP/1.0" :host nil)
(:name "Host {h}"
 :for ((h "" "localhost:8080" "example.org" "[::1]" "[::1]:80" "127.0.0.1" "LOCALHOST" "a b" "a/b"
          "user@host" "a_b" "localhost:" "localhost:x" "localhost:99999"))
 :request "GET /missing" :host "{h}")
(:name "two Hosts" :request "GET /echo" :headers ("Host: other"))
