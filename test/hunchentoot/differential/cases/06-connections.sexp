;;; What becomes of connections.

(:name "Connection {c} by {v}"
 :for ((c "" "keep-alive" "Keep-Alive" "close" "Close" "CLOSE" "close, keep-alive"
          "keep-alive, close" "keep-alive,close" ",close" "TE, close" "upgrade" "nonsense" "close;"
          "\"close\"")
       (v "HTTP/1.1" "HTTP/1.0"))
 :request "GET /string" :version "{v}" :headers ("Connection: {c}"))
(:name "kept for {n}"
 :for ((n "GET /string" "GET /own" "GET /own-with-length" "GET /failed" "GET /missing" "GET /file"
          "GET /empty" "HEAD /string" "HEAD /nil" "GET /aborted" "GET /status?x=204"
          "GET /status?x=304" "GET /redirect?x=/there"))
 :steps ((:request "{n}") (:request "GET /letters") (:request "{n}") (:request "HEAD /string")))
(:name "{n} requests in turn" :for ((n "four"))
 :steps ((:request "GET /echo?{n}=1" :headers ("Cookie: a=b" "Accept: x"))
         (:request "POST /echo" :headers ("Content-Type: application/x-www-form-urlencoded")
          :body "a=b")
         (:request "GET /echo")
         (:request "POST /raw" :headers ("Content-Type: text/plain") :chunks ("a" "b"))
         (:request "GET /echo")))

;;; Pipelines

(:name "a pipeline of pages"
 :pipeline ((:request "GET /echo?1") (:request "GET /string") (:request "GET /echo?2")))
(:name "a pipeline of HEAD" :pipeline ((:request "HEAD /string") (:request "GET /string")
                                       (:request "HEAD /own") (:request "GET /own")))
(:name "a pipeline of forms"
 :pipeline ((:request "POST /form" :headers ("Content-Type: application/x-www-form-urlencoded")
             :body "a=1")
            (:request "POST /raw" :headers ("Content-Type: text/plain") :body "two")
            (:request "POST /untouched" :body "three")
            (:request "GET /echo")))
(:name "a pipeline of chunks"
 :pipeline ((:request "POST /raw" :headers ("Content-Type: text/plain") :chunks ("a" "b"))
            (:request "POST /untouched" :chunks ("c"))
            (:request "POST /own-after-body" :chunks ("d"))
            (:request "GET /string")))
(:name "a pipeline of files" :pipeline
 ((:request "GET /folder/large.bin") (:request "GET /folder/small.txt") (:request "GET /string")))
(:name "a pipeline with errors"
 :pipeline ((:request "GET /failed") (:request "GET /missing") (:request "GET /string")))
(:name "a pipeline in pieces"
 :pipeline ((:request "GET /string") (:request "POST /raw" :body "body") (:request "GET /letters"))
 :pieces 7)
(:name "a pipeline of long replies"
 :pipeline ((:request "GET /long-octets") (:request "GET /long-letters") (:request "GET /own-long")
           (:request "GET /string")))
(:name "a pipeline that ends with close"
 :pipeline ((:request "GET /string") (:request "GET /letters" :headers ("Connection: close"))))
(:name "a pipeline by HTTP/1.0"
 :pipeline ((:request "GET /string" :version "HTTP/1.0" :headers ("Connection: keep-alive"))
            (:request "GET /letters" :version "HTTP/1.0")))
(:name "a request after close"
 :pipeline ((:request "GET /string" :headers ("Connection: close")) (:request "GET /letters"))
 :reads (:response))

;;; Ends

(:name "half-closed after {p}" :for ((p "/string" "/own" "/long-octets" "/nil" "/folder/large.bin"))
 :request "GET {p}" :end t)
(:name "half-closed after a pipeline" :pipeline ((:request "GET /string") (:request "GET /letters"))
 :end t)
(:name "half-closed after a body" :request "POST /raw" :headers ("Content-Type: text/plain")
 :body "body" :end t)
(:name "half-closed in the head" :send ((:raw "GET /string HTTP/1.1^M^JHo")) :end t :reads ())
(:name "half-closed at once" :send ((:raw "")) :end t :reads ())

;;; Sessions

(:name "a session by cookie"
 :steps ((:request "GET /session" :headers ("User-Agent: a")
          :capture (("session" "hunchentoot-session=([^;]+)")))
         (:request "GET /session"
          :headers ("User-Agent: a" "Cookie: hunchentoot-session={session}"))
         (:request "GET /session-read"
          :headers ("User-Agent: a" "Cookie: x=y; hunchentoot-session={session}; z=1"))
         (:request "GET /session-read"
          :headers ("User-Agent: b" "Cookie: hunchentoot-session={session}"))
         (:request "GET /session-read" :headers ("User-Agent: a"))
         (:request "GET /session-removed"
          :headers ("User-Agent: a" "Cookie: hunchentoot-session={session}"))
         (:request "GET /session-read"
          :headers ("User-Agent: a" "Cookie: hunchentoot-session={session}")))
 :worlds (:plain :sessions-bound))
(:name "a session by URL"
 :steps ((:request "GET /session" :capture (("session" "hunchentoot-session=([^;]+)")))
         (:request "GET /session?hunchentoot-session={session}")
         (:request "GET /session-links?hunchentoot-session={session}")
         (:request "GET /session-redirect?hunchentoot-session={session}")
         (:request "GET /session-redirect" :headers ("Cookie: hunchentoot-session={session}"))))
(:name "links with a session, type {t}"
 :for ((t "text/html" "text/html;%20charset=utf-8" "application/xhtml%2Bxml" "text/plain"
          "text/x-default"))
 :request "GET /session-links?type={t}" :worlds (:plain :sessions-in-cookies-only :put-forms))
(:name "links with a session and its cookie" :request "GET /session-links"
 :headers ("Cookie: hunchentoot-session=stale"))
(:name "links with a session by HEAD" :request "HEAD /session-links")
(:name "redirect with a session" :request "GET /session-redirect")
(:name "redirect with a session, cookies only" :request "GET /session-redirect"
 :worlds (:sessions-in-cookies-only))
