;;; Other settings, other programs: see worlds.lisp.

(:name "in the open, {r}" :worlds (:errors-shown)
 :for ((r "GET /failed" "GET /failed-typed" "GET /failed-unprintable"
          "GET /failed-after-headers-set" "HEAD /failed" "GET /missing" "GET /status-nil?x=500"
          "GET /status-nil?x=403" "GET /own-failed" "GET /header-value?x=18"))
 :request "{r}")
(:name "in the open, with a backtrace, {r}" :worlds (:backtraces-shown)
 :for ((r "GET /failed" "GET /failed-typed" "GET /failed-after-headers-set"
          "GET /status-nil?x=500"))
 :request "{r}")
(:name "traced, {r}" :worlds (:headers-traced)
 :for ((r "GET /string" "GET /letters" "GET /nil" "GET /octets" "HEAD /string" "GET /own"
          "GET /missing" "GET /failed" "GET /cookies" "GET /folder/small.txt" "POST /string"
          "GET /status?x=204" "GET /headers"))
 :request "{r}" :headers ("Accept: a" "X-Forwarded-For: 1" "accept: b"))
(:name "traced, a body" :worlds (:headers-traced)
 :request "POST /raw" :headers ("Content-Type: text/plain") :body "body")
(:name "traced, expecting 100" :worlds (:headers-traced)
 :request "POST /raw" :headers ("Content-Type: text/plain" "Expect: 100-continue") :body "body")
(:name "traced, chunks" :worlds (:headers-traced)
 :request "POST /raw" :headers ("Content-Type: text/plain") :chunks ("a" "b"))
(:name "traced, two requests" :worlds (:headers-traced)
 :steps ((:request "GET /string") (:request "GET /own")))
(:name "overridden, {r}" :worlds (:subclasses :streams-wrapped)
 :for ((r "GET /string" "GET /letters" "GET /long-lines" "GET /octets" "GET /nil" "HEAD /string"
          "GET /own" "GET /own-with-length" "GET /echo?a=b" "GET /missing" "GET /failed"
          "GET /status-nil?x=410" "GET /status-nil?x=403" "GET /aborted" "GET /redirect?x=/a"
          "GET /folder/page.html" "POST /form" "GET /session" "GET /cookies" "GET /status?x=204"
          "HEAD /own" "GET /header?name=:server&value=mine" "GET /own-failed" "GET /guarded"))
 :request "{r}")
(:name "overridden, {p} of a body" :worlds (:subclasses :streams-wrapped)
 :for ((p "/raw" "/form" "/stream-in-sequence" "/own-after-body" "/untouched"))
 :request "POST {p}" :headers ("Content-Type: application/x-www-form-urlencoded") :body "a=b")
(:name "overridden, chunks" :worlds (:subclasses :streams-wrapped)
 :request "POST /raw" :headers ("Content-Type: text/plain") :chunks ("a" "b"))
(:name "overridden, in turn" :worlds (:subclasses :streams-wrapped)
 :steps ((:request "GET /string") (:request "HEAD /own") (:request "GET /own")
         (:request "GET /failed") (:request "GET /string")))
(:name "overridden, a pipeline" :worlds (:subclasses :streams-wrapped)
 :pipeline ((:request "GET /string") (:request "GET /own") (:request "GET /failed")
            (:request "GET /string")))
(:name "in ISO 8859-1, {r}" :worlds (:latin-1)
 :for ((r "GET /string" "GET /letters" "GET /encoded?x=utf-8" "GET /echo?a=%E9" "GET /echo?a=%C3%A9"
          "GET /missing?%E9" "GET /folder/page.html" "GET /long-letters"))
 :request "{r}")
(:name "in ISO 8859-1, a form {f}" :worlds (:latin-1) :for ((f "a=%E9" "a=%C3%A9" "a=^xE9"))
 :request "POST /form" :headers ("Content-Type: application/x-www-form-urlencoded") :body "{f}")
(:name "forms by {m}" :worlds (:put-forms) :for ((m "POST" "PUT" "PATCH" "DELETE"))
 :request "{m} /form" :headers ("Content-Type: application/x-www-form-urlencoded") :body "a=b")
(:name "other defaults, {p}" :worlds (:put-forms)
 :for ((p "/string" "/octets" "/nil" "/own" "/failed" "/folder/no-type"))
 :request "GET {p}")
(:name "one request each, {p}, {c}" :worlds (:one-request-each)
 :for ((p "/string" "/own" "/nil" "/own-with-length" "/folder/small.txt" "/missing" "/failed")
       (c "keep-alive" "close"))
 :request "GET {p}" :headers ("Connection: {c}"))
(:name "one request each, HTTP/1.0" :worlds (:one-request-each)
 :request "GET /string" :version "HTTP/1.0" :headers ("Connection: keep-alive"))
(:name "no chunks out, {r}" :worlds (:no-chunks-out)
 :for ((r "GET /string" "GET /own" "GET /own-with-length" "GET /nil" "HEAD /own" "GET /own-long"
          "GET /own-failed"))
 :request "{r}")
(:name "no chunks in, {r}" :worlds (:no-chunks-in) :for ((r "/string" "/raw"))
 :request "POST {r}" :headers ("Content-Type: text/plain") :chunks ("a" "b"))
(:name "no chunks in, a length" :worlds (:no-chunks-in)
 :request "POST /raw" :headers ("Content-Type: text/plain") :body "body")
(:name "no timeouts, {v}, {c}" :worlds (:no-timeouts)
 :for ((v "HTTP/1.1" "HTTP/1.0") (c "keep-alive" "close" ""))
 :request "GET /string" :version "{v}" :headers ("Connection: {c}"))
(:name "unobserved, {r}" :worlds (:unobserved)
 :for ((r "GET /string" "GET /letters" "GET /octets" "GET /nil" "HEAD /string" "GET /own"
          "GET /own-with-length" "GET /failed" "GET /missing" "GET /folder/large.bin"
          "GET /echo?a=b" "POST /raw" "GET /session" "GET /cookies" "GET /redirect?x=/a"
          "GET /status?x=204" "GET /status?x=304" "GET /long-string" "GET /"))
 :request "{r}" :headers ("Cookie: a=b" "User-Agent: x"))
(:name "logged, {r}" :worlds (:logs-written)
 :for ((r "GET /string" "GET /echo?a=b" "HEAD /string" "GET /own" "GET /own-with-length" "GET /nil"
          "GET /missing" "GET /failed" "GET /warned" "GET /logged" "GET /folder/small.txt"
          "GET /redirect?x=/a" "GET /guarded" "GET /%C3%A9" "OPTIONS *"))
 :request "{r}"
 :headers ("Authorization: Basic YTpi" "Referer: r" "User-Agent: u" "X-Forwarded-For: 1.2.3.4"))
(:name "logged, bare" :worlds (:logs-written) :request "GET /string")
(:name "logged, a body" :worlds (:logs-written) :request "POST /raw" :body "body")
(:name "logged, two requests" :worlds (:logs-written)
 :steps ((:request "GET /string") (:request "GET /failed")))
(:name "extended, {r}" :worlds (:extended)
 :for ((r "GET /extended" "GET /extended?a=b" "GET /echo?a=%C3%A9" "GET /letters" "GET /octets"
          "HEAD /string" "GET /own" "GET /failed" "GET /missing" "GET /session" "POST /form"))
 :request "{r}" :headers ("Cookie: a=b"))
(:name "extended, twice" :worlds (:extended)
 :steps ((:request "GET /extended") (:request "GET /extended" :headers ("Content-Type: text/plain"))
         (:request "GET /extended")))
