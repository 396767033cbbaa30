;;; What a program is told of its client, and the fields of a trusted proxy.

("192.0.2.1 4711 inner 1 http" "X-Forwarded-For: 192.0.2.1:4711")
("2001:db8::1 0 inner 1 https" "X-Forwarded-For: 2001:DB8::1"
 "X-Forwarded-Proto: https")
("192.0.2.1 0 example.org 443 https" "X-Forwarded-For: 8.8.8.8, 192.0.2.1"
 "X-Forwarded-Proto: https" "X-Forwarded-Host: example.org")
("192.0.2.1 0 example.org 80 http" "X-Forwarded-For: 192.0.2.1"
 "X-Forwarded-Host: example.org")
("192.0.2.1 0 example.org 8443 https" "X-Forwarded-For: 192.0.2.1"
 "X-Forwarded-Proto: https" "X-Forwarded-Host: example.org"
 "X-Forwarded-Port: 443, 8443")
("192.0.2.1 0 example.org 81 http" "X-Forwarded-For: 192.0.2.1"
 "X-Forwarded-Host: example.org:81" "X-Forwarded-Port: 8443")
("192.0.2.1 0 inner 1 http" "X-Forwarded-For: 192.0.2.1"
 "X-Forwarded-Port: 8443")
("192.0.2.1 80 [::1] 8443 https" "X-Forwarded-For: 192.0.2.1:80"
 "X-Forwarded-Proto: https" "X-Forwarded-Host: [::1]:8443")
