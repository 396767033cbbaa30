;;; A query, header fields, and what a handler knows then: parameters, cookies, and the addresses
;;; that X-Forwarded-For tells.

("a=b&c=d&a=e" () (("a" . "b") ("c" . "d") ("a" . "e")) () ())
("a&=b&c=&&d=e=f" () (("a" . "") ("" . "b") ("c" . "") ("" . "") ("d" . "e=f")) () ())
("a+b=%41%C3%A9+&%61%26=%3D" () (("a b" . "Aé ") ("a&" . "=")) () ())
("a=%C3%A9" (("Content-Type" . "text/plain; charset=iso-8859-1")) (("a" . "Ã©")) () ())
("a=%C3%A9" (("Content-Type" . "text/plain")) (("a" . "é")) () ())
("a=%C3%A9" (("Content-Type" . "application/json; charset=iso-8859-1")) (("a" . "é")) () ())
("" (("Cookie" . "a=b; c=d,e=%41 , f;g=\"h\"; a=i"))
 () (("a" . "b") ("c" . "d") ("e" . "%41") ("f" . "") ("g" . "\"h\"") ("a" . "i")) ())
("" (("X-Forwarded-For" . " 192.0.2.1 ,a.b,, 10.0.0.1 ")) () () ("192.0.2.1" "a.b" "" "10.0.0.1"))
