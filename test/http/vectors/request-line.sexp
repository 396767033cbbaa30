;;; RFC 9112, sections 2.2, 2.3 and 3: the request line.

(:name "the shortest request" :rfc "RFC 9112, section 3"
 :input ("GET / HTTP/1.1" "Host: a" "")
 :gives ((:request :method :get :uri "/" :protocol :http/1.1
                   :headers ((:host . "a")) :framing :none :body "")))

(:name "the shortest HTTP/1.0 request" :rfc "RFC 9112, section 2.3"
 :input ("GET / HTTP/1.0" "")
 :gives ((:request :method :get :uri "/" :protocol :http/1.0 :headers () :host nil)))

(:name "wrk's request" :rfc "RFC 9112, section 3"
 :input ("GET /yo HTTP/1.1" "Host: 127.0.0.1:4242" "")
 :gives ((:request :method :get :uri "/yo" :host "127.0.0.1:4242" :keep-alive t)))

(:name "nothing at all" :rfc "RFC 9112, section 3"
 :input ((:raw ""))
 :gives ())

(:name "one octet" :rfc "RFC 9112, section 3"
 :input ((:raw "G"))
 :gives ((:waiting :head 1)))

(:name "a request line that has not ended" :rfc "RFC 9112, section 3"
 :input ((:raw "GET / HTTP/1.1^M"))
 :gives ((:waiting :head 15)))

(:name "a head that has not ended" :rfc "RFC 9112, section 2.1"
 :input ("GET / HTTP/1.1" "Host: a" (:raw "^M"))
 :gives ((:waiting :head 26)))

;;; Methods: RFC 9112, section 3.1, and RFC 9110, section 9.1

(:name "HEAD" :rfc "RFC 9110, section 9.3.2"
 :input ("HEAD / HTTP/1.1" "Host: a" "") :gives ((:request :method :head)))
(:name "POST" :rfc "RFC 9110, section 9.3.3"
 :input ("POST / HTTP/1.1" "Host: a" "") :gives ((:request :method :post :framing :none)))
(:name "PUT" :rfc "RFC 9110, section 9.3.4"
 :input ("PUT / HTTP/1.1" "Host: a" "") :gives ((:request :method :put)))
(:name "DELETE" :rfc "RFC 9110, section 9.3.5"
 :input ("DELETE / HTTP/1.1" "Host: a" "") :gives ((:request :method :delete)))
(:name "TRACE" :rfc "RFC 9110, section 9.3.8"
 :input ("TRACE / HTTP/1.1" "Host: a" "") :gives ((:request :method :trace)))
(:name "PATCH" :rfc "RFC 5789, section 2"
 :input ("PATCH / HTTP/1.1" "Host: a" "") :gives ((:request :method :patch)))
(:name "PROPFIND" :rfc "RFC 4918, section 9.1"
 :input ("PROPFIND / HTTP/1.1" "Host: a" "") :gives ((:request :method :propfind)))
(:name "a method in lower case is another method" :rfc "RFC 9110, section 9.1"
 :input ("get / HTTP/1.1" "Host: a" "") :gives ((:request :method "get")))
(:name "an unknown method is left to the layer above" :rfc "RFC 9112, section 3.1"
 :input ("FROBNICATE-13 / HTTP/1.1" "Host: a" "")
 :gives ((:request :method "FROBNICATE-13")))
(:name "a method of all token characters" :rfc "RFC 9110, section 5.6.2"
 :input ("!#$%&'*+-.^^_`|~09azAZ / HTTP/1.1" "Host: a" "")
 :gives ((:request :method "!#$%&'*+-.^^_`|~09azAZ")))
(:name "no method" :rfc "RFC 9112, section 3.1"
 :input (" / HTTP/1.1" "Host: a" "") :gives ((:refused 400 :malformed-request-line)))
(:name "a method with a colon" :rfc "RFC 9112, section 3.1"
 :input ("GET: / HTTP/1.1" "Host: a" "") :gives ((:refused 400 :malformed-request-line)))
(:name "a method with a NUL" :rfc "RFC 9112, section 3.1"
 :input ("G^@ET / HTTP/1.1" "Host: a" "") :gives ((:refused 400 :malformed-request-line)))
(:name "a method with an octet above 127" :rfc "RFC 9112, section 3.1"
 :input ("G^xC9T / HTTP/1.1" "Host: a" "") :gives ((:refused 400 :malformed-request-line)))
(:name "a method and nothing else" :rfc "RFC 9112, section 3.1"
 :input ("GET" "Host: a" "") :gives ((:refused 400 :malformed-request-line)))
(:name "a Tab after the method" :rfc "RFC 9112, section 3"
 :input ("GET^I/ HTTP/1.1" "Host: a" "") :gives ((:refused 400 :malformed-request-line)))
(:name "a greeting in TLS" :rfc "RFC 9112, section 3.1"
 :input ((:raw "^x16^x03^x01^x02^x00^x01^x00^x01^xFC^x03^x03"))
 :gives ((:refused 400 :malformed-request-line)))
(:name "the signature of a proxy's header" :rfc "RFC 9112, section 3.1"
 :input ((:raw "^M^J^M^J^@^MQUIT^J")) :gives ((:refused 400 :malformed-request-line)))

;;; White space: RFC 9112, section 3

(:name "two spaces after the method" :rfc "RFC 9112, section 3"
 :input ("GET  / HTTP/1.1" "Host: a" "") :gives ((:refused 400 :malformed-request-line)))
(:name "two spaces after the target" :rfc "RFC 9112, section 3"
 :input ("GET /  HTTP/1.1" "Host: a" "") :gives ((:refused 400 :malformed-request-line)))
(:name "a space after the version" :rfc "RFC 9112, section 3"
 :input ("GET / HTTP/1.1 " "Host: a" "") :gives ((:refused 400 :malformed-request-line)))
(:name "a space in the target" :rfc "RFC 9112, section 3.2"
 :input ("GET /a b HTTP/1.1" "Host: a" "") :gives ((:refused 400 :malformed-request-line)))
(:name "a Tab after the target" :rfc "RFC 9112, section 3"
 :input ("GET /^IHTTP/1.1" "Host: a" "") :gives ((:refused 400 :malformed-request-line)))
(:name "a vertical tab for a space" :rfc "RFC 9112, section 3"
 :input ("GET^x0B/ HTTP/1.1" "Host: a" "") :gives ((:refused 400 :malformed-request-line)))

;;; Versions: RFC 9112, section 2.3, RFC 9110, sections 2.5 and 15.6.6

(:name "a request of HTTP/0.9" :rfc "RFC 9112, section 3"
 :input ("GET /") :gives ((:refused 400 :malformed-request-line)))
(:name "a request of HTTP/0.9 with a space" :rfc "RFC 9112, section 3"
 :input ("GET / ") :gives ((:refused 400 :malformed-request-line)))
(:name "version 0.9 by name" :rfc "RFC 9110, section 15.6.6"
 :input ("GET / HTTP/0.9" "Host: a" "") :gives ((:refused 505 :unsupported-version)))
(:name "version 2.0" :rfc "RFC 9110, section 15.6.6"
 :input ("GET / HTTP/2.0" "Host: a" "") :gives ((:refused 505 :unsupported-version)))
(:name "the preface of HTTP/2" :rfc "RFC 9110, section 15.6.6"
 :input ("PRI * HTTP/2.0" "" "SM" "") :gives ((:refused 505 :unsupported-version)))
(:name "version 3.0" :rfc "RFC 9110, section 15.6.6"
 :input ("GET / HTTP/3.0" "Host: a" "") :gives ((:refused 505 :unsupported-version)))
(:name "a later minor version" :rfc "RFC 9110, section 2.5"
 :input ("GET / HTTP/1.2" "Host: a" "") :gives ((:request :protocol :http/1.1 :keep-alive t)))
(:name "the last minor version" :rfc "RFC 9110, section 2.5"
 :input ("GET / HTTP/1.9" "Host: a" "") :gives ((:request :protocol :http/1.1)))
(:name "a version of two digits" :rfc "RFC 9112, section 2.3"
 :input ("GET / HTTP/1.10" "Host: a" "") :gives ((:refused 400 :malformed-request-line)))
(:name "a version without minor" :rfc "RFC 9112, section 2.3"
 :input ("GET / HTTP/1" "Host: a" "") :gives ((:refused 400 :malformed-request-line)))
(:name "a version in lower case" :rfc "RFC 9112, section 2.3"
 :input ("GET / http/1.1" "Host: a" "") :gives ((:refused 400 :malformed-request-line)))
(:name "a version with a comma" :rfc "RFC 9112, section 2.3"
 :input ("GET / HTTP/1,1" "Host: a" "") :gives ((:refused 400 :malformed-request-line)))
(:name "another protocol" :rfc "RFC 9112, section 2.3"
 :input ("DESCRIBE / RTSP/1.0" "Host: a" "") :gives ((:refused 400 :malformed-request-line)))
(:name "a version with a letter" :rfc "RFC 9112, section 2.3"
 :input ("GET / HTTP/1.x" "Host: a" "") :gives ((:refused 400 :malformed-request-line)))
(:name "an empty version" :rfc "RFC 9112, section 2.3"
 :input ("GET / ^M") :gives ((:refused 400 :malformed-request-line)))

;;; Lines: RFC 9112, section 2.2

(:name "a bare line feed after the request line" :rfc "RFC 9112, section 2.2"
 :input ((:raw "GET / HTTP/1.1^JHost: a^M^J^M^J")) :gives ((:refused 400 :malformed-request-line)))
(:name "line feeds only" :rfc "RFC 9112, section 2.2"
 :input ((:raw "GET / HTTP/1.1^JHost: a^J^J")) :gives ((:refused 400 :malformed-request-line)))
(:name "a line feed in the method" :rfc "RFC 9112, section 2.2"
 :input ((:raw "GE^JT / HTTP/1.1^M^J")) :gives ((:refused 400 :malformed-request-line)))
(:name "a line feed in the target" :rfc "RFC 9112, section 2.2"
 :input ((:raw "GET /a^Jb HTTP/1.1^M^J")) :gives ((:refused 400 :malformed-request-line)))
(:name "a bare carriage return after the request line" :rfc "RFC 9112, section 2.2"
 :input ((:raw "GET / HTTP/1.1^MHost: a^M^J^M^J"))
 :gives ((:refused 400 :malformed-request-line)))
(:name "two carriage returns after the request line" :rfc "RFC 9112, section 2.2"
 :input ((:raw "GET / HTTP/1.1^M^M^JHost: a^M^J^M^J"))
 :gives ((:refused 400 :malformed-request-line)))
(:name "a carriage return in the target" :rfc "RFC 9112, section 3"
 :input ((:raw "GET /a^Mb HTTP/1.1^M^J")) :gives ((:refused 400 :malformed-request-line)))
(:name "an empty line before the request line" :rfc "RFC 9112, section 2.2"
 :input ("" "GET / HTTP/1.1" "Host: a" "") :gives ((:request :method :get)))
(:name "three empty lines before the request line" :rfc "RFC 9112, section 2.2"
 :input ("" "" "" "GET / HTTP/1.1" "Host: a" "") :gives ((:request :method :get)))
(:name "a bare line feed before the request line" :rfc "RFC 9112, section 2.2"
 :input ((:raw "^J") "GET / HTTP/1.1" "Host: a" "") :gives ((:refused 400 :malformed-request-line)))
(:name "a bare carriage return before the request line" :rfc "RFC 9112, section 2.2"
 :input ((:raw "^M") "GET / HTTP/1.1" "Host: a" "")
 :gives ((:refused 400 :malformed-request-line)))
(:name "only empty lines" :rfc "RFC 9112, section 2.2"
 :input ("" "") :gives ())
(:name "white space after the request line" :rfc "RFC 9112, section 2.2"
 :input ("GET / HTTP/1.1" " Host: a" "") :gives ((:refused 400 :malformed-field)))
(:name "a line of a Tab after the request line" :rfc "RFC 9112, section 2.2"
 :input ("GET / HTTP/1.1" "^I" "Host: a" "") :gives ((:refused 400 :malformed-field)))
