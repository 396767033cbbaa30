;;; Values of Accept-Encoding, and the codings that the client likes, the best first.

(nil) ("") (" , ,")
("gzip" :gzip) ("br" :br) ("x-gzip" :gzip) ("GZip" :gzip) ("deflate, zstd")
("gzip, deflate, br, zstd" :br :gzip) ("br;q=0.9, gzip" :gzip :br)
("gzip;q=0.5,br;q=0.5" :br :gzip) ("gzip ; Q=0.001" :gzip) ("gzip;q=1.000" :gzip)
("gzip;q=0") ("gzip;q=0.000, br;q=0.0") ("br;q=0, gzip" :gzip)
("*" :br :gzip) ("*;q=0") ("gzip, *;q=0" :gzip) ("br;q=0, *" :gzip)
("*;q=0.5, gzip;q=0.2" :br) ("gzip, *;q=0.1" :gzip :br)
("identity") ("identity;q=0") ("identity;q=0, gzip" :gzip)
("identity;q=0, *" :br :gzip)
("identity, gzip;q=0.5") ("identity;q=0.5, gzip" :gzip) ("gzip, identity" :gzip)
;; What is malformed is not accepted.
("gzip;q=1.001") ("gzip;q=2") ("gzip;q=") ("gzip;q=0.1234") ("gzip;q=.5")
("gzip;q=-1")
("gzip;q=a") ("gzip;level=1") ("gzip q=1") ("gzip;q=1.0x") ("gzipped") ("gz ip")
("\"gzip\"") ("gzip;q=0.5;q=1") ("br;q=nan, gzip" :gzip)
