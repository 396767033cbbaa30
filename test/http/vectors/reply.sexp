;;; RFC 9112, section 4, and RFC 9110, section 5: heads of replies.  `:gives` is the lines
;;; of the head, or `:invalid`.

(:name "a status line" :rfc "RFC 9112, section 4"
 :gives ("HTTP/1.1 200 OK" ""))
(:name "another status" :rfc "RFC 9112, section 4"
 :status 404 :gives ("HTTP/1.1 404 Not Found" ""))
(:name "an unknown status" :rfc "RFC 9112, section 4"
 :status 299 :gives ("HTTP/1.1 299 " ""))

(:name "fields in their order" :rfc "RFC 9110, section 5.3"
 :headers ((:content-type . "text/html; charset=utf-8") (:content-length . 4)
           (:server . "Hunchentoot 1.3.1") (:connection . "Keep-Alive")
           (:keep-alive . "timeout=20"))
 :second 3980000000
 :gives ("HTTP/1.1 200 OK" "Content-Type: text/html; charset=utf-8" "Content-Length: 4"
         "Server: Hunchentoot 1.3.1" "Connection: Keep-Alive" "Keep-Alive: timeout=20"
         "Date: Fri, 13 Feb 2026 19:33:20 GMT" ""))
(:name "a field without value is left out" :rfc "RFC 9110, section 5.5"
 :headers ((:server . nil) (:etag . "\"x\"")) :gives ("HTTP/1.1 200 OK" "Etag: \"x\"" ""))
(:name "an empty value is sent" :rfc "RFC 9110, section 5.5"
 :headers ((:server . "")) :gives ("HTTP/1.1 200 OK" "Server: " ""))
(:name "a repeated field" :rfc "RFC 9110, section 5.3"
 :headers ((:vary . "a") (:vary . "b")) :gives ("HTTP/1.1 200 OK" "Vary: a" "Vary: b" ""))
(:name "a name as a string is sent as it is" :rfc "RFC 9110, section 5.1"
 :headers (("x-CamelCase" . "1")) :gives ("HTTP/1.1 200 OK" "x-CamelCase: 1" ""))
(:name "an unknown keyword is capitalized" :rfc "RFC 9110, section 5.1"
 :headers ((:x-my-own-header2go . "1")) :gives ("HTTP/1.1 200 OK" "X-My-Own-Header2go: 1" ""))
(:name "cookies" :rfc "RFC 6265, section 4.1"
 :headers ((:content-length . 0)) :cookies ("a=b; Path=/" "c=d; HttpOnly")
 :gives ("HTTP/1.1 200 OK" "Content-Length: 0" "Set-Cookie: a=b; Path=/"
         "Set-Cookie: c=d; HttpOnly" ""))
(:name "a value in Latin-1" :rfc "RFC 9110, section 5.5"
 :headers ((:server . "caf^xE9")) :gives ("HTTP/1.1 200 OK" "Server: caf^xE9" ""))
(:name "a value with a Tab" :rfc "RFC 9110, section 5.5"
 :headers ((:server . "a^Ib")) :gives ("HTTP/1.1 200 OK" "Server: a^Ib" ""))

(:name "a value with a line end" :rfc "RFC 9110, section 5.5"
 :headers ((:location . "/^M^JSet-Cookie: a=b")) :gives :invalid)
(:name "a value with a line feed" :rfc "RFC 9110, section 5.5"
 :headers ((:location . "/^JSet-Cookie: a=b")) :gives :invalid)
(:name "a value with a carriage return" :rfc "RFC 9110, section 5.5"
 :headers ((:location . "/^MSet-Cookie: a=b")) :gives :invalid)
(:name "a value that is folded" :rfc "RFC 9112, section 5.2"
 :headers ((:server . "a^M^J^Ib")) :gives :invalid)
(:name "a value with a NUL" :rfc "RFC 9110, section 5.5"
 :headers ((:server . "a^@b")) :gives :invalid)
(:name "a cookie with a line end" :rfc "RFC 9110, section 5.5"
 :cookies ("a=b" "c=d^M^J^M^J<html>") :gives :invalid)
(:name "an empty name" :rfc "RFC 9110, section 5.1"
 :headers (("" . "a")) :gives :invalid)
(:name "a name with a space" :rfc "RFC 9110, section 5.1"
 :headers (("a b" . "c")) :gives :invalid)
(:name "a name with a colon" :rfc "RFC 9110, section 5.1"
 :headers (("a:" . "c")) :gives :invalid)
(:name "a name with a line end" :rfc "RFC 9110, section 5.1"
 :headers (("a^M^Jb" . "c")) :gives :invalid)
(:name "a keyword that is no token" :rfc "RFC 9110, section 5.1"
 :headers ((:|a b| . "c")) :gives :invalid)
(:name "the fault comes last" :rfc "RFC 9110, section 5.5"
 :headers ((:server . "a") (:vary . "b") (:etag . "^J")) :second 3980000000 :gives :invalid)
