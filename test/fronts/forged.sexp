;;; Fields by which a client may say that it is another.

("X-Forwarded-For: 192.0.2.1") ("X-Forwarded-For: 192.0.2.1, 127.0.0.1")
("X-Forwarded-For: 127.0.0.1, 192.0.2.1") ("X-Forwarded-For: ::ffff:192.0.2.1")
("X-Forwarded-For: unknown") ("X-Forwarded-For:") ("X-FORWARDED-FOR:192.0.2.1")
("X-Forwarded-For: 192.0.2.1" "X-Forwarded-For: 192.0.2.2") ("X-Forwarded-Proto: https")
("X-Forwarded-Host: example.org:443" "X-Forwarded-Proto: https") ("X-Forwarded-Port: 443")
("Forwarded: for=192.0.2.1;proto=https;host=example.org;by=127.0.0.1")
("Forwarded: for=192.0.2.1, for=127.0.0.1") ("Forwarded: for=_hidden;proto=https")
("Forwarded: \"") ("Forwarded: for=192.0.2.1" "X-Forwarded-For: 192.0.2.2")
("X-Forwarded-Ssl: on") ("Front-End-Https: on") ("X-Real-IP: 192.0.2.1")
("X-Client-IP: 192.0.2.1") ("True-Client-IP: 192.0.2.1") ("X_Forwarded_For: 192.0.2.1")
