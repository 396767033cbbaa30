;;;; Lists of octets as vectors have them, of which :END says that the client closes its half then
;;;; and :LATE that the request does not end; the status of the reply, in a list if it is counted
;;;; but not sent, or NIL; what is known of the request line, or NIL where there is no line in the
;;;; access log; whether the next request on the connection is served; arguments of the server,
;;;; words of its messages as :TOLD, if there is one, and what the row :NEEDS; see UNMET-NEED.

(("GET /a HTTP/1.1" "Host: a" "") 200 "GET /a HTTP/1.1" t)
(("GET /a HTTP/1.1" "Host: a" "Connection: close" "") 200 "GET /a HTTP/1.1" nil)
(("GET /a HTTP/1.0" "") 200 "GET /a HTTP/1.0" nil)
(("GET /a HTTP/1.0" "Connection: keep-alive" "") 200 "GET /a HTTP/1.0" t)
(("" "" "GET /a HTTP/1.1" "Host: a" "") 200 "GET /a HTTP/1.1" t)
(("GET /a HTTP/1.1" "Host: a" "") 200 "GET /a HTTP/1.1" nil :persistent-connections-p nil)
(("POST /a HTTP/1.1" "Host: a" "Content-Length: 9" "" (:raw "GET /b HT"))
 200 "POST /a HTTP/1.1" t)
;; Refused by their heads
(("GET /a HTTP/1.1" "Host: a" "Bad Name: 1" "") 400 "GET /a HTTP/1.1" nil)
(("GET /a HTTP/1.1" "") 400 "GET /a HTTP/1.1" nil)
(("GET /a HTTP/1.1" "Host: a b" "") 400 "GET /a HTTP/1.1" nil)
(("G^AT / HTTP/1.1" "") 400 "-" nil)
(("nonsense" "") 400 "-" nil)
(("GET /^xE4 HTTP/1.1" "") 400 "GET" nil)
(("POST /a HTTP/1.1" "Host: a" "Content-Length: 1" "Transfer-Encoding: chunked" "")
 400 "POST /a HTTP/1.1" nil)
(((:times 11 "") "GET /a HTTP/1.1" "Host: a" "") 400 "-" nil :max-request-line-octets 20)
(("POST /a HTTP/1.1" "Host: a" "Content-Length: 2" "Expect: more" "") 417 "POST /a HTTP/1.1"
 nil)
(("CONNECT a:80 HTTP/1.1" "Host: a:80" "") 501 "CONNECT a:80 HTTP/1.1" nil)
(("GET /a HTTP/2.0" "Host: a" "") 505 "GET /a" nil)
;; Beyond a limit
(("GET /?345 HTTP/1.1" "Host: a" "") 200 "GET /?345 HTTP/1.1" t :max-request-line-octets 20)
(("GET /?3456 HTTP/1.1" "Host: a" "") 414 "GET /?3456 HTTP/1.1" nil
 :max-request-line-octets 20)
(((:raw "GET /") (:times 17000 (:raw "x")) " HTTP/1.1" "Host: a" "") 414 "GET" nil)
(("GET /a HTTP/1.1" "Host: a" (:raw "B: ") (:times 1000 (:raw "x")) "" "")
 200 "GET /a HTTP/1.1" t :max-header-octets 1100)
(("GET /a HTTP/1.1" "Host: a" (:raw "B: ") (:times 1000 (:raw "x")) "" "")
 431 "GET /a HTTP/1.1" nil :max-header-octets 1000)
(("GET /a HTTP/1.1" "Host: a" (:raw "B: ") (:times 140000 (:raw "x")) "" "")
 431 "GET /a HTTP/1.1" nil)
(("GET /a HTTP/1.1" "Host: a" "B: 2" "C: 3" "") 200 "GET /a HTTP/1.1" t :max-header-count 3)
(("GET /a HTTP/1.1" "Host: a" "B: 2" "C: 3" "D: 4" "") 431 "GET /a HTTP/1.1" nil
 :max-header-count 3)
(("POST /read HTTP/1.1" "Host: a" "Content-Length: 10" "" (:raw "1234567890"))
 200 "POST /read HTTP/1.1" t :max-body-octets 10)
(("POST /read HTTP/1.1" "Host: a" "Content-Length: 11" "" (:raw "12345678901"))
 413 "POST /read HTTP/1.1" nil :max-body-octets 10)
(("POST /read HTTP/1.1" "Host: a" "Content-Length: 1" "" (:raw "1"))
 413 "POST /read HTTP/1.1" nil :max-body-octets 0)
(("POST /read HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" "5" "12345" "5" "67890" "0" "")
 200 "POST /read HTTP/1.1" t :max-body-octets 10)
(("POST /read HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" "5" "12345" "6" "678901" "0" "")
 413 "POST /read HTTP/1.1" nil :max-body-octets 10)
(("POST /read HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" ""
  "1;a=34" "x" "0;a=4" "") 200 "POST /read HTTP/1.1" t)
(("POST /read HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" ""
  (:raw "1;a=") (:times 17000 (:raw "x")) "" "x" "0" "")
 413 "POST /read HTTP/1.1" nil)
(("POST /read HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" ""
  "1" "x" "0" "A: 1" "B: 2" "") 200 "POST /read HTTP/1.1" t)
(("POST /read HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" ""
  "1" "x" "0" (:raw "A: ") (:times 9000 (:raw "x")) "" "")
 431 "POST /read HTTP/1.1" nil)
;; Malformed, or cut, after the head
(("POST /read HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" ""
  "1 x" "0" "") 400 "POST /read HTTP/1.1" nil)
(("POST /read HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" ""
  "1" "xx" "0" "") 400 "POST /read HTTP/1.1" nil)
(("POST /read HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" ""
  "-1" "0" "") 400 "POST /read HTTP/1.1" nil)
(("POST /read HTTP/1.1" "Host: a" "Transfer-Encoding: chunked" "" "5" "123" :end) nil nil nil)
(("POST /read HTTP/1.1" "Host: a" "Content-Length: 9" "" (:raw "123") :end) nil nil nil)
(("GET /a HTTP/1.1" (:raw "Ho") :end) nil nil nil)
((:end) nil nil nil)
;; Too late
(("GET /a HTTP/1.1" :late) 408 "GET /a HTTP/1.1" nil :head-timeout 1)
(("POST /read HTTP/1.1" "Host: a" "Content-Length: 5" "" (:raw "a") :late)
 408 "POST /read HTTP/1.1" nil :needs :our-http :read-timeout 1)
;; What looks like TLS
(((:raw "^U^C^C^@^B^B(") "") 400 "-" nil)
(("" (:raw "^A^V^C") "") 400 "-" nil)
