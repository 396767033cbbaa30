;;; Values of Accept-Encoding, and the coding that the server takes of :ZSTD and :GZIP.

(nil nil) ("" nil) ("gzip" :gzip) ("x-gzip" :gzip) ("GZip" :gzip) ("zstd" :zstd)
("gzip, zstd" :zstd) ("gzip, deflate, br, zstd" :zstd) ("zstd;q=0.9, gzip;q=1.0" :gzip)
("gzip ; q=0.001 ,br" :gzip) ("gzip;q=0" nil) ("gzip;q=0.000, zstd;Q=0" nil) ("*" :zstd)
("*;q=0" nil) ("*;q=0, gzip" :gzip) ("zstd;q=0, *;q=0.5" :gzip) ("identity" nil)
("identity;q=0" nil) ("identity, gzip;q=0.5" nil) ("identity;q=0.4, gzip;q=0.5" :gzip)
("gzip, identity" :gzip) ("gzip;q=" nil) ("gzip q=1" nil) ("gz ip, \"gzip\"" nil)
("br, deflate" nil) ("gzip;q=a" nil) ("gzip;q=1.5, zstd;q=00" nil) (" ,,gzip, " :gzip)
