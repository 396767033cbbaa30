;;; What fields of proxies tell: the client's address and port, the scheme and the
;;; host; and the fields.  Networks 10.0.0.0/8 and fd00::/8 are trusted.

;;; A proxy tells its client

(nil)
(("192.0.2.1" 0 nil nil) "X-Forwarded-For: 192.0.2.1")
(("192.0.2.1" 4711 nil nil) "X-Forwarded-For: 192.0.2.1:4711")
(("2001:db8::1" 0 nil nil) "X-Forwarded-For: 2001:db8::1")
(("2001:db8::1" 0 nil nil) "X-Forwarded-For: [2001:DB8::1]")
(("2001:db8::1" 4711 nil nil) "x-forwarded-for:[2001:db8::1]:4711")
(("192.0.2.1" 0 nil nil) "X-FORWARDED-FOR: ::ffff:192.0.2.1")
(("192.0.2.1" 0 :https "example.org") "X-Forwarded-For: 192.0.2.1" "X-Forwarded-Proto: https"
 "X-Forwarded-Host: example.org")
(("192.0.2.1" 0 :http "example.org:8080") "X-Forwarded-For: 192.0.2.1"
 "X-Forwarded-Proto: HTTP" "X-Forwarded-Host: example.org:8080")
((nil 0 :https nil) "X-Forwarded-Proto: wss")
((nil 0 nil "[::1]:80") "X-Forwarded-Host: [::1]:80")

;;; A list is believed as far as trusted proxies wrote it

(("192.0.2.1" 0 nil nil) "X-Forwarded-For: 198.51.100.7, 192.0.2.1")
(("192.0.2.1" 0 nil nil) "X-Forwarded-For: 198.51.100.7, 192.0.2.1, 10.0.0.2")
(("192.0.2.1" 0 nil nil) "X-Forwarded-For: 198.51.100.7" "X-Forwarded-For: 192.0.2.1, 10.0.0.2")
(("10.0.0.3" 0 nil nil) "X-Forwarded-For: 10.0.0.3 ,	10.0.0.2")
(("10.0.0.3" 0 nil nil) "X-Forwarded-For: ::ffff:10.0.0.3, 10.0.0.2")
;; Each proxy adds its scheme, or all keep that of the first.
(("192.0.2.1" 0 :https nil) "X-Forwarded-For: 192.0.2.1, 10.0.0.2"
 "X-Forwarded-Proto: https, http")
(("192.0.2.1" 0 :https nil) "X-Forwarded-For: 192.0.2.1, 10.0.0.2" "X-Forwarded-Proto: https")
(("192.0.2.1" 0 :http nil) "X-Forwarded-For: 8.8.8.8, 192.0.2.1"
 "X-Forwarded-Proto: https, http")
(("192.0.2.1" 0 :http nil) "X-Forwarded-For: 192.0.2.1" "X-Forwarded-Proto: https"
 "X-Forwarded-Proto: http")
(("192.0.2.1" 0 nil "b") "X-Forwarded-For: 192.0.2.1" "X-Forwarded-Host: a, b")
(("192.0.2.1" 0 nil nil) "X-Forwarded-For: 192.0.2.1, 10.0.0.2, 10.0.0.3"
 "X-Forwarded-Proto: https, http")

;;; Nothing is believed from a malformed element on

((nil 0 nil nil) "X-Forwarded-For: unknown")
((nil 0 nil nil) "X-Forwarded-For: _hidden")
((nil 0 nil nil) "X-Forwarded-For:")
((nil 0 nil nil) "X-Forwarded-For: ,")
((nil 0 nil nil) "X-Forwarded-For: 192.0.2.1,")
((nil 0 nil nil) "X-Forwarded-For: 192.0.2.1" "X-Forwarded-For:")
(("10.0.0.2" 0 nil nil) "X-Forwarded-For: 192.0.2.1, , 10.0.0.2")
(("10.0.0.2" 0 nil nil) "X-Forwarded-For: 192.0.2.1, unknown, 10.0.0.2")
(("192.0.2.1" 0 nil nil) "X-Forwarded-For: \", 192.0.2.1")
(("192.0.2.1" 0 nil nil) "X-Forwarded-For: \"8.8.8.8, 192.0.2.1")
((nil 0 nil nil) "X-Forwarded-For: \"192.0.2.1\"")
((nil 0 nil nil) "X-Forwarded-For: 192.0.2.1:")
((nil 0 nil nil) "X-Forwarded-For: 192.0.2.1:65536")
((nil 0 nil nil) "X-Forwarded-For: 192.0.2.1:80:80")
((nil 0 nil nil) "X-Forwarded-For: [192.0.2.1]:80")
((nil 0 nil nil) "X-Forwarded-For: [2001:db8::1")
((nil 0 nil nil) "X-Forwarded-For: 2001:db8::1]")
((nil 0 nil nil) "X-Forwarded-For: [2001:db8::1]4711")
((nil 0 nil nil) "X-Forwarded-For: [2001:db8::1]:99999")
((nil 0 nil nil) "X-Forwarded-For: fe80::1%eth0")
((nil 0 nil nil) "X-Forwarded-For: 8.8.8.8 192.0.2.1")
((nil 0 nil nil) "X-Forwarded-For: for=192.0.2.1")
((nil 0 nil nil) "X-Forwarded-For: 0300.0.2.1")
((nil 0 nil nil) "X-Forwarded-For: 3221225985")
((nil 0 nil nil) "X-Forwarded-Proto: ftp")
((nil 0 nil nil) "X-Forwarded-Proto: https;x")
((nil 0 nil nil) "X-Forwarded-Proto: http, ")
((nil 0 nil nil) "X-Forwarded-Host: a b")
((nil 0 nil nil) "X-Forwarded-Host: user@a")
((nil 0 nil nil) "X-Forwarded-Host: :80")
((nil 0 nil nil) "X-Forwarded-Host: a/b")
((nil 0 nil nil) "X-Forwarded-Host: a:123456")
