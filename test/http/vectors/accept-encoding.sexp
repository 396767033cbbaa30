;;; Values of Accept-Encoding, and the codings that the client accepts, the best first.

(nil) ("") (" , ,")
("gzip" :gzip) ("br" :br) ("x-gzip" :gzip) ("GZip" :gzip) ("deflate, zstd")
("gzip, deflate, br, zstd" :br :gzip) ("br;q=0.9, gzip" :br :gzip)
("gzip ; Q=0.001" :gzip) ("gzip;q=1.000" :gzip)
("gzip;q=0") ("gzip;q=0.000, br;q=0.0") ("br;q=0, gzip" :gzip)
("*") ("gzip, *;q=0" :gzip) ("identity") ("identity;q=0, gzip" :gzip) ("gzip, identity" :gzip)
("gzip;q=") ("gzip q=1") ("gzipped") ("gz ip") ("\"gzip\"")
