;;; RFC 9112, section 3.2: the request target.

(:name "a path and a query" :rfc "RFC 9112, section 3.2.1"
 :input ("GET /where?q=now&p=%20 HTTP/1.1" "Host: www.example.org" "")
 :gives ((:request :uri "/where?q=now&p=%20" :host "www.example.org")))
(:name "a path of slashes" :rfc "RFC 9112, section 3.2.1"
 :input ("GET ///a//b HTTP/1.1" "Host: a" "") :gives ((:request :uri "///a//b")))
(:name "a path with dots is not resolved here" :rfc "RFC 9112, section 3.2.1"
 :input ("GET /a/../../b HTTP/1.1" "Host: a" "") :gives ((:request :uri "/a/../../b")))
(:name "percent encodings are not decoded here" :rfc "RFC 9112, section 3.2.1"
 :input ("GET /%2F%00%zz% HTTP/1.1" "Host: a" "") :gives ((:request :uri "/%2F%00%zz%"))
 :served (:kept ((400))))
(:name "visible characters that no URI has are handed on" :rfc "RFC 9112, section 3.2"
 :input ("GET /\"<>\\^^`{|} HTTP/1.1" "Host: a" "")
 :gives ((:request :uri "/\"<>\\^^`{|}")))
(:name "a fragment" :rfc "RFC 9112, section 3.2"
 :input ("GET /a#b HTTP/1.1" "Host: a" "") :gives ((:refused 400 :malformed-target)))
(:name "an empty fragment after a query" :rfc "RFC 9112, section 3.2"
 :input ("GET /a?b=c# HTTP/1.1" "Host: a" "") :gives ((:refused 400 :malformed-target)))
(:name "a fragment of an absolute URI" :rfc "RFC 9112, section 3.2"
 :input ("GET http://a#b HTTP/1.1" "Host: a" "") :gives ((:refused 400 :malformed-target)))
(:name "an octet above 127" :rfc "RFC 9112, section 3.2"
 :input ("GET /caf^xE9 HTTP/1.1" "Host: a" "") :gives ((:refused 400 :malformed-request-line)))
(:name "a NUL" :rfc "RFC 9112, section 3.2"
 :input ("GET /^@ HTTP/1.1" "Host: a" "") :gives ((:refused 400 :malformed-request-line)))
(:name "a delete character" :rfc "RFC 9112, section 3.2"
 :input ("GET /^? HTTP/1.1" "Host: a" "") :gives ((:refused 400 :malformed-request-line)))
(:name "a path without slash" :rfc "RFC 9112, section 3.2"
 :input ("GET index.html HTTP/1.1" "Host: a" "") :gives ((:refused 400 :malformed-target)))
(:name "a query only" :rfc "RFC 9112, section 3.2.1"
 :input ("GET ?q=1 HTTP/1.1" "Host: a" "") :gives ((:refused 400 :malformed-target)))

;;; absolute-form

(:name "an absolute URI" :rfc "RFC 9112, section 3.2.2"
 :input ("GET http://www.example.org/pub/WWW/TheProject.html HTTP/1.1"
         "Host: www.example.org" "")
 :gives ((:request :uri "http://www.example.org/pub/WWW/TheProject.html"
                   :host "www.example.org")))
(:name "an absolute URI takes precedence over Host" :rfc "RFC 9112, section 3.2.2"
 :input ("GET http://right.example:81/ HTTP/1.1" "Accept: */*" "Host: wrong.example" "")
 :gives ((:request :host "right.example:81"
                   :headers ((:accept . "*/*") (:host . "right.example:81")))))
(:name "an absolute URI does not make Host unnecessary" :rfc "RFC 9112, section 3.2"
 :input ("GET http://a/ HTTP/1.1" "") :gives ((:refused 400 :invalid-host)))
(:name "an absolute URI does not make an invalid Host valid" :rfc "RFC 9112, section 3.2"
 :input ("GET http://a/ HTTP/1.1" "Host: a b" "") :gives ((:refused 400 :invalid-host)))
(:name "an absolute URI in HTTP/1.0" :rfc "RFC 9112, section 3.2.2"
 :input ("GET http://a.example/b HTTP/1.0" "")
 :gives ((:request :host "a.example" :headers ())))
(:name "an https URI" :rfc "RFC 9110, section 4.2.2"
 :input ("GET https://a.example/b HTTP/1.1" "Host: a.example" "")
 :gives ((:request :host "a.example")))
(:name "a scheme in upper case" :rfc "RFC 9110, section 4.2.3"
 :input ("GET HTTP://a.example/b HTTP/1.1" "Host: a.example" "")
 :gives ((:request :host "a.example")))
(:name "an absolute URI without path" :rfc "RFC 9112, section 3.2.2"
 :input ("GET http://a.example HTTP/1.1" "Host: a.example" "")
 :gives ((:request :uri "http://a.example" :host "a.example")))
(:name "an absolute URI with a query and no path" :rfc "RFC 9112, section 3.2.2"
 :input ("GET http://a.example?x=/y HTTP/1.1" "Host: a.example" "")
 :gives ((:request :host "a.example")))
(:name "OPTIONS with an absolute URI" :rfc "RFC 9112, section 3.2.4"
 :input ("OPTIONS http://www.example.org:8001 HTTP/1.1" "Host: www.example.org:8001" "")
 :gives ((:request :method :options :host "www.example.org:8001")))
(:name "an absolute URI with an empty host" :rfc "RFC 9110, section 4.2.1"
 :input ("GET http:///a HTTP/1.1" "Host: a" "") :gives ((:refused 400 :malformed-target)))
(:name "an absolute URI with a port and no host" :rfc "RFC 9110, section 4.2.1"
 :input ("GET http://:80/a HTTP/1.1" "Host: a" "") :gives ((:refused 400 :malformed-target)))
(:name "an absolute URI with a user" :rfc "RFC 9110, section 4.2.4"
 :input ("GET http://user@a.example/ HTTP/1.1" "Host: a.example" "")
 :gives ((:refused 400 :malformed-target)))
(:name "an absolute URI with a password" :rfc "RFC 9110, section 4.2.4"
 :input ("GET http://u:p@a.example/ HTTP/1.1" "Host: a.example" "")
 :gives ((:refused 400 :malformed-target)))
(:name "an absolute URI with a port out of range" :rfc "RFC 9110, section 4.2"
 :input ("GET http://a.example:65536/ HTTP/1.1" "Host: a.example" "")
 :gives ((:refused 400 :malformed-target)))
(:name "another scheme" :rfc "RFC 9112, section 3.2"
 :input ("GET ftp://a.example/ HTTP/1.1" "Host: a.example" "")
 :gives ((:refused 400 :malformed-target)))
(:name "a scheme with one slash" :rfc "RFC 9112, section 3.2"
 :input ("GET http:/a.example/ HTTP/1.1" "Host: a.example" "")
 :gives ((:refused 400 :malformed-target)))

;;; asterisk-form

(:name "OPTIONS for the server" :rfc "RFC 9112, section 3.2.4"
 :input ("OPTIONS * HTTP/1.1" "Host: a" "")
 :gives ((:request :method :options :uri "*" :host "a")))
(:name "the asterisk with GET" :rfc "RFC 9112, section 3.2.4"
 :input ("GET * HTTP/1.1" "Host: a" "") :gives ((:refused 400 :malformed-target)))
(:name "the asterisk with an unknown method" :rfc "RFC 9112, section 3.2.4"
 :input ("FROB * HTTP/1.1" "Host: a" "") :gives ((:refused 400 :malformed-target)))
(:name "two asterisks" :rfc "RFC 9112, section 3.2"
 :input ("OPTIONS ** HTTP/1.1" "Host: a" "") :gives ((:refused 400 :malformed-target)))

;;; authority-form

(:name "CONNECT" :rfc "RFC 9112, section 3.2.3"
 :input ("CONNECT www.example.com:80 HTTP/1.1" "Host: www.example.com" "")
 :gives ((:request :method :connect :uri "www.example.com:80"
                   :host "www.example.com:80")))
(:name "CONNECT to an IPv6 address" :rfc "RFC 9112, section 3.2.3"
 :input ("CONNECT [::1]:443 HTTP/1.1" "Host: [::1]:443" "")
 :gives ((:request :host "[::1]:443")))
(:name "CONNECT without port" :rfc "RFC 9112, section 3.2.3"
 :input ("CONNECT www.example.com HTTP/1.1" "Host: a" "")
 :gives ((:refused 400 :malformed-target)))
(:name "CONNECT with an empty port" :rfc "RFC 9112, section 3.2.3"
 :input ("CONNECT www.example.com: HTTP/1.1" "Host: a" "")
 :gives ((:refused 400 :malformed-target)))
(:name "CONNECT without host" :rfc "RFC 9112, section 3.2.3"
 :input ("CONNECT :80 HTTP/1.1" "Host: a" "")
 :gives ((:refused 400 :malformed-target)))
(:name "CONNECT with a path" :rfc "RFC 9112, section 3.2.3"
 :input ("CONNECT / HTTP/1.1" "Host: a" "") :gives ((:refused 400 :malformed-target)))
(:name "CONNECT with a URI" :rfc "RFC 9112, section 3.2.3"
 :input ("CONNECT http://a:80/ HTTP/1.1" "Host: a" "")
 :gives ((:refused 400 :malformed-target)))
(:name "the authority-form with GET" :rfc "RFC 9112, section 3.2"
 :input ("GET www.example.com:80 HTTP/1.1" "Host: a" "")
 :gives ((:refused 400 :malformed-target)))
