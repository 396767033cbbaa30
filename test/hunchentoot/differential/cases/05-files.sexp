;;; Static files.

(:name "{m} {p}, a file"
 :for ((m "GET" "HEAD")
       (p "/folder/small.txt" "/folder/empty.txt" "/folder/page.html" "/folder/image.png"
          "/folder/middle.bin" "/folder/large.bin" "/folder/no-type" "/folder/some.unheard-of"
          "/folder/with%20space.txt" "/folder/with+space.txt" "/folder/sub/in.css" "/folder/missing"
          "/folder/" "/folder/sub" "/folder/sub/" "/folder/../small.txt" "/folder/sub/../small.txt"
          "/folder/%2e%2e/small.txt" "/folder/..%2fsmall.txt" "/folder//small.txt"
          "/folder/./small.txt" "/folder/small.txt?x=y" "/folder//etc/passwd" "/folder/~/x"
          "/folder/*.txt" "/folder/%00" "/folder/..%5Csmall.txt" "/folder/SMALL.TXT" "/folder/.."
          "/folder/sub%2Fin.css" "/folder/[a].txt" "/folder/a:b" "/typed-folder/small.txt"
          "/one.txt" "/file-typed?x=text/x-given" "/file-typed?x=image/png" "/folder"))
 :request "{m} {p}")
(:name "range {r} of {p}"
 :for ((r "bytes=0-0" "bytes=0-3" "bytes=4-" "bytes=0-" "bytes=11-11" "bytes=11-" "bytes=12-"
          "bytes=0-12" "bytes=0-99999999" "bytes=-3" "bytes=3-1" "bytes=0-1,3-4" "bytes= 0-1"
          "bytes=a-b" "lines=0-1" "bytes=" "Bytes=0-1" "bytes=0-1 ")
       (p "/folder/small.txt"))
 :request "GET {p}" :headers ("Range: {r}"))
(:name "range {r} of a large file" :for ((r "bytes=100000-299999" "bytes=300000-" "bytes=300001-"))
 :request "GET /folder/large.bin" :headers ("Range: {r}"))
(:name "range {r} of an empty file" :for ((r "bytes=0-" "bytes=0-0"))
 :request "GET /folder/empty.txt" :headers ("Range: {r}"))
(:name "range by HEAD" :request "HEAD /folder/small.txt" :headers ("Range: bytes=0-3"))
(:name "range of a page that is no file" :request "GET /string" :headers ("Range: bytes=0-3"))
(:name "If-Modified-Since {d}"
 :for ((d "Sat, 01 Jan 2000 00:00:00 GMT" "nonsense" "" "Fri, 01 Jan 2100 00:00:00 GMT"))
 :request "GET /folder/small.txt" :headers ("If-Modified-Since: {d}"))
(:name "{m} of {p}, not modified since"
 :for ((m "GET" "HEAD") (p "/folder/small.txt" "/folder/large.bin" "/folder/page.html"))
 :steps ((:request "GET {p}" :capture (("date" "^Last-Modified: (.*)")))
         (:request "{m} {p}" :headers ("If-Modified-Since: {date}"))
         (:request "{m} {p}" :headers ("If-Modified-Since: {date}" "Range: bytes=0-1"))))
(:name "a page with a date, {d}"
 :for ((d "Sat, 25 Jan 1995 05:20:00 GMT" "Tue, 25 Jan 1995 05:20:00 GMT"
          "Wed, 25 Jan 1995 05:20:00 GMT"))
 :request "GET /modified" :headers ("If-Modified-Since: {d}"))
(:name "a page with its own date"
 :steps ((:request "GET /modified" :capture (("date" "^Last-Modified: (.*)")))
         (:request "GET /modified" :headers ("If-Modified-Since: {date}"))
         (:request "HEAD /modified" :headers ("If-Modified-Since: {date}"))))
(:name "{p} by HTTP/1.0"
 :for ((p "/folder/small.txt" "/folder/large.bin" "/folder/empty.txt" "/folder/missing"))
 :request "GET {p}" :version "HTTP/1.0")
(:name "several files on one connection"
 :steps ((:request "GET /folder/middle.bin") (:request "GET /folder/small.txt")
         (:request "HEAD /folder/large.bin") (:request "GET /folder/large.bin")
         (:request "GET /folder/missing") (:request "GET /folder/empty.txt")))
(:name "a form posted to a file" :request "POST /folder/small.txt"
 :headers ("Content-Type: application/x-www-form-urlencoded")
 :body "a=b")
(:name "a tag asked for" :request "GET /folder/small.txt" :headers ("If-None-Match: \"x\""))
(:name "at the root, {p}" :worlds (:templates)
 :for ((p "/small.txt" "/" "/errors" "/missing" "/%3Cb%3E" "/sub/in.css" "/../x" "/failed"
          "/aborted-nil" "/status-nil?x=404" "/status-nil?x=500" "/status-nil?x=403"))
 :request "GET {p}")
