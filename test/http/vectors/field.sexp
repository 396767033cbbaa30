;;; RFC 9112, section 5, and RFC 9110, section 5: header fields.

(:name "white space around a value" :rfc "RFC 9112, section 5.1"
 :input ("GET / HTTP/1.1" "Host:^I a ^I " "")
 :gives ((:request :headers ((:host . "a")) :host "a")))
(:name "no white space before a value" :rfc "RFC 9112, section 5.1"
 :input ("GET / HTTP/1.1" "Host:a" "") :gives ((:request :headers ((:host . "a")))))
(:name "white space inside a value" :rfc "RFC 9110, section 5.5"
 :input ("GET / HTTP/1.1" "Host: a" "Accept: a ^I b" "")
 :gives ((:request :headers ((:host . "a") (:accept . "a ^I b")))))
(:name "an empty value" :rfc "RFC 9110, section 5.5"
 :input ("GET / HTTP/1.1" "Host: a" "Accept:" "")
 :gives ((:request :headers ((:host . "a") (:accept . "")))))
(:name "a value of white space" :rfc "RFC 9110, section 5.5"
 :input ("GET / HTTP/1.1" "Host: a" "Accept: ^I " "")
 :gives ((:request :headers ((:host . "a") (:accept . "")))))
(:name "a value with colons" :rfc "RFC 9110, section 5.5"
 :input ("GET / HTTP/1.1" "Host: a" "Accept: :a:" "")
 :gives ((:request :headers ((:host . "a") (:accept . ":a:")))))
(:name "octets above 127 are Latin-1" :rfc "RFC 9110, section 5.5"
 :input ("GET / HTTP/1.1" "Host: a" "Accept: ^x80^xE9^xFF" "")
 :gives ((:request :headers ((:host . "a") (:accept . "^x80^xE9^xFF")))))
(:name "names in any case" :rfc "RFC 9110, section 5.1"
 :input ("GET / HTTP/1.1" "hOST: a" "ACCEPT-encodinG: b" "")
 :gives ((:request :headers ((:host . "a") (:accept-encoding . "b")))))
(:name "a name that nobody knows" :rfc "RFC 9110, section 5.1"
 :input ("GET / HTTP/1.1" "Host: a" "X-Unheard-Of-3: b" "")
 :gives ((:request :headers ((:host . "a") ("X-UNHEARD-OF-3" . "b")))))
(:name "a name of all token characters" :rfc "RFC 9110, section 5.6.2"
 :input ("GET / HTTP/1.1" "Host: a" "!#$%&'*+-.^^_`|~09azAZ: b" "")
 :gives ((:request :headers ((:host . "a") ("!#$%&'*+-.^^_`|~09AZAZ" . "b")))))
(:name "names that differ from known ones in bit 5 only" :rfc "RFC 9110, section 5.1"
 :input ("GET / HTTP/1.1" "Host: a" "~ost-1: b" "Accept_Encoding: c" "")
 :gives ((:request :headers ((:host . "a") ("~OST-1" . "b") ("ACCEPT_ENCODING" . "c")))))

;;; Repeated fields: RFC 9110, section 5.2 and 5.3

(:name "a repeated field" :rfc "RFC 9110, section 5.2"
 :input ("GET / HTTP/1.1" "Accept: a" "Host: h" "accept: b" "ACCEPT: c" "")
 :gives ((:request :headers ((:accept . "a,b,c") (:host . "h")))))
(:name "a repeated field with empty values" :rfc "RFC 9110, section 5.2"
 :input ("GET / HTTP/1.1" "Host: h" "Accept:" "Accept:" "Accept: c" "")
 :gives ((:request :headers ((:host . "h") (:accept . ",,c")))))
(:name "a repeated field that nobody knows" :rfc "RFC 9110, section 5.2"
 :input ("GET / HTTP/1.1" "Host: h" "X-Unheard-Of-4: a" "X-Unheard-Of-5: b" "x-unheard-of-4: c" "")
 :gives ((:request :headers ((:host . "h") ("X-UNHEARD-OF-4" . "a,c") ("X-UNHEARD-OF-5" . "b")))))
(:name "fields that nobody knows, of which one begins like the other" :rfc "RFC 9110, section 5.2"
 :input ("GET / HTTP/1.1" "Host: h" "X-Unheard-Of-8: a" "X-Unheard-Of: b" "X-Unheard-Of-89: c" "")
 :gives ((:request :headers ((:host . "h") ("X-UNHEARD-OF-8" . "a") ("X-UNHEARD-OF" . "b")
                             ("X-UNHEARD-OF-89" . "c")))))
(:name "two repeated fields" :rfc "RFC 9110, section 5.2"
 :input ("GET / HTTP/1.1" "Host: h" "Via: 1" "TE: a" "Via: 2" "TE: b" "")
 :gives ((:request :headers ((:host . "h") (:via . "1,2") (:te . "a,b")))))
(:name "Cookie in two lines" :rfc "RFC 9113, section 8.2.3"
 :input ("GET / HTTP/1.1" "Host: h" "Cookie: a=b" "Cookie: c=d; e=f" "")
 :gives ((:request :headers ((:host . "h") (:cookie . "a=b; c=d; e=f")))))

;;; Names: RFC 9112, section 5.1

(:name "a space before the colon" :rfc "RFC 9112, section 5.1"
 :input ("GET / HTTP/1.1" "Host : a" "") :gives ((:refused 400 :malformed-field)))
(:name "a Tab before the colon" :rfc "RFC 9112, section 5.1"
 :input ("GET / HTTP/1.1" "Host^I: a" "") :gives ((:refused 400 :malformed-field)))
(:name "a space in a name" :rfc "RFC 9112, section 5.1"
 :input ("GET / HTTP/1.1" "Content Length: 1" "Host: a" "")
 :gives ((:refused 400 :malformed-field)))
(:name "an empty name" :rfc "RFC 9112, section 5"
 :input ("GET / HTTP/1.1" ": a" "") :gives ((:refused 400 :malformed-field)))
(:name "a line without colon" :rfc "RFC 9112, section 5"
 :input ("GET / HTTP/1.1" "Host" "") :gives ((:refused 400 :malformed-field)))
(:name "a name with a slash" :rfc "RFC 9110, section 5.1"
 :input ("GET / HTTP/1.1" "Ho/st: a" "") :gives ((:refused 400 :malformed-field)))
(:name "a name with a quote" :rfc "RFC 9110, section 5.1"
 :input ("GET / HTTP/1.1" "\"Host\": a" "") :gives ((:refused 400 :malformed-field)))
(:name "a name with a NUL" :rfc "RFC 9110, section 5.1"
 :input ("GET / HTTP/1.1" "Ho^@st: a" "") :gives ((:refused 400 :malformed-field)))
(:name "a name with an octet above 127" :rfc "RFC 9110, section 5.1"
 :input ("GET / HTTP/1.1" "H^xF6st: a" "") :gives ((:refused 400 :malformed-field)))
(:name "a name with brackets" :rfc "RFC 9110, section 5.1"
 :input ("GET / HTTP/1.1" "Host[0]: a" "") :gives ((:refused 400 :malformed-field)))

;;; Folding: RFC 9112, section 5.2

(:name "a value folded with a space" :rfc "RFC 9112, section 5.2"
 :input ("GET / HTTP/1.1" "Host: a" "Accept: b," " c" "") :gives ((:refused 400 :malformed-field)))
(:name "a value folded with a Tab" :rfc "RFC 9112, section 5.2"
 :input ("GET / HTTP/1.1" "Host: a" "Accept: b," "^Ic" "") :gives ((:refused 400 :malformed-field)))
(:name "a folded Transfer-Encoding" :rfc "RFC 9112, section 5.2"
 :input ("POST / HTTP/1.1" "Host: a" "Transfer-Encoding:" " chunked" "" "0" "")
 :gives ((:refused 400 :malformed-field)))
(:name "a fold of white space only" :rfc "RFC 9112, section 5.2"
 :input ("GET / HTTP/1.1" "Host: a" " " "") :gives ((:refused 400 :malformed-field)))

;;; Line ends: RFC 9112, section 2.2

(:name "a bare line feed after a value" :rfc "RFC 9112, section 2.2"
 :input ("GET / HTTP/1.1" (:raw "Host: a^JAccept: b^M^J^M^J"))
 :gives ((:refused 400 :malformed-field)))
(:name "a bare line feed in a name" :rfc "RFC 9112, section 2.2"
 :input ("GET / HTTP/1.1" (:raw "Ho^Jst: a^M^J^M^J")) :gives ((:refused 400 :malformed-field)))
(:name "a bare line feed for the empty line" :rfc "RFC 9112, section 2.2"
 :input ("GET / HTTP/1.1" "Host: a" (:raw "^J")) :gives ((:refused 400 :malformed-field)))
(:name "a bare carriage return in a value" :rfc "RFC 9112, section 2.2"
 :input ("GET / HTTP/1.1" "Host: a^MTransfer-Encoding: chunked" "")
 :gives ((:refused 400 :malformed-field)))
(:name "a bare carriage return in a name" :rfc "RFC 9112, section 5.1"
 :input ("GET / HTTP/1.1" "Ho^Mst: a" "") :gives ((:refused 400 :malformed-field)))
(:name "two carriage returns after a value" :rfc "RFC 9112, section 2.2"
 :input ("GET / HTTP/1.1" "Host: a^M" "") :gives ((:refused 400 :malformed-field)))
(:name "a carriage return alone for the empty line" :rfc "RFC 9112, section 2.2"
 :input ("GET / HTTP/1.1" "Host: a" (:raw "^Mx")) :gives ((:refused 400 :malformed-field)))

;;; Values: RFC 9110, section 5.5

(:name "a NUL in a value" :rfc "RFC 9110, section 5.5"
 :input ("GET / HTTP/1.1" "Host: a" "Accept: b^@c" "") :gives ((:refused 400 :malformed-field)))
(:name "a bell in a value" :rfc "RFC 9110, section 5.5"
 :input ("GET / HTTP/1.1" "Host: a" "Accept: ^G" "") :gives ((:refused 400 :malformed-field)))
(:name "a vertical tab in a value" :rfc "RFC 9110, section 5.5"
 :input ("GET / HTTP/1.1" "Host: a" "Accept: ^Kb" "") :gives ((:refused 400 :malformed-field)))
(:name "a form feed in a value" :rfc "RFC 9110, section 5.5"
 :input ("GET / HTTP/1.1" "Host: a" "Accept: b^L" "") :gives ((:refused 400 :malformed-field)))
(:name "an escape in a value" :rfc "RFC 9110, section 5.5"
 :input ("GET / HTTP/1.1" "Host: a" "User-Agent: ^[[31m" "")
 :gives ((:refused 400 :malformed-field)))
(:name "a delete character in a value" :rfc "RFC 9110, section 5.5"
 :input ("GET / HTTP/1.1" "Host: a" "Accept: ^?" "") :gives ((:refused 400 :malformed-field)))

(:name "what a browser sends" :rfc "RFC 9112, section 5"
 :input ("GET /app/items?id=4711&sort=name HTTP/1.1"
         "Host: www.example.com:4242"
         "User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0"
         "Accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
         "Accept-Language: en-US,en;q=0.5"
         "Accept-Encoding: gzip, deflate, br, zstd"
         "Connection: keep-alive"
         "Referer: http://www.example.com:4242/app"
         "Cookie: session=1%3AF8A0; theme=dark; lang=en; _ga=GA1.2.1"
         "Upgrade-Insecure-Requests: 1"
         "Sec-Fetch-Dest: document"
         "Sec-Fetch-Mode: navigate"
         "Sec-Fetch-Site: same-origin"
         "")
 :gives ((:request
          :uri "/app/items?id=4711&sort=name"
          :headers ((:host . "www.example.com:4242")
                    (:user-agent .
                     "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0")
                    (:accept . "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8")
                    (:accept-language . "en-US,en;q=0.5")
                    (:accept-encoding . "gzip, deflate, br, zstd")
                    (:connection . "keep-alive")
                    (:referer . "http://www.example.com:4242/app")
                    (:cookie . "session=1%3AF8A0; theme=dark; lang=en; _ga=GA1.2.1")
                    (:upgrade-insecure-requests . "1")
                    (:sec-fetch-dest . "document")
                    (:sec-fetch-mode . "navigate")
                    (:sec-fetch-site . "same-origin"))
          :keep-alive t :asks-keep-alive t)))
