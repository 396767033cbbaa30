;;; Where we do not do as Clack's other handlers; differential.lisp tells what an entry has.

;;; Requests

(:name "methods that no keyword of Clack's has, and `get`"
 :ours "501" :theirs "Woo: 400; Hunchentoot's: served, as keywords in capitals"
 :why "methods are case-sensitive, and keywords never garbage"
 :at (((:woo) (:unknown-method :method-in-lower-case) "status")
      ((:hunchentoot) (:unknown-method :method-in-lower-case) "status" "connection")))
(:name "two `Host`s, or none in HTTP/1.1"
 :ours "400" :theirs "both: served"
 :why "RFC 9112, section 3.2"
 :at (((:woo :hunchentoot) (:no-host :two-hosts) "status" "connection")))
(:name "HTTP/2.0 in the first line"
 :ours "505" :theirs "Woo: 500; Hunchentoot's, before 1.3.0: served"
 :why "RFC 9110, section 15.6.6"
 :at (((:woo) (:version-2) "status")
      ((:hunchentoot) (:version-2) "status" "connection")))
(:name "malformed escapes in a path"
 :ours "`%zz` stays, and what is no UTF-8 becomes U+FFFD"
 :theirs "Hunchentoot's: 400; Woo drops a `%` at the end"
 :why "the application may know better"
 :at (((:hunchentoot) (:escapes-not-utf-8 :escapes-malformed) "status")
      ((:woo) (:escapes-malformed) "path-info")))
(:name "a plus sign in a path"
 :ours "a plus sign" :theirs "both: a space"
 :why "RFC 3986, section 3.3"
 :at (((:woo :hunchentoot) (:plus) "path-info")))
(:name "`#` in a target"
 :ours "400" :theirs "Woo drops what follows; Hunchentoot's: part of the path"
 :why "RFC 9112, section 3.2: there are no fragments"
 :at (((:woo :hunchentoot) (:fragment) "status" "connection")))
(:name "a target in absolute form"
 :ours "it says host, port and path, which is `/` at least"
 :theirs "both: `Host` says host and port; Hunchentoot's: the path may be empty"
 :why "RFC 9112, section 3.2.2"
 :at (((:woo :hunchentoot) (:absolute :absolute-root) "header host" "server-name" "server-port")
      ((:hunchentoot) (:absolute-root) "path-info")))
(:name "`Host: example.org:`, without digits"
 :ours "`:server-port` is 80" :theirs "Woo: 0; Hunchentoot's: `nil`"
 :why "RFC 3986, section 3.2.3"
 :at (((:woo :hunchentoot) (:host-with-colon) "server-port")))
(:name "an IPv6 address in `Host`"
 :ours "served" :theirs "Hunchentoot's: 500"
 :why "RFC 3986, section 3.2.2"
 :at (((:hunchentoot) (:host-version-6 :host-version-6-port) "status")))
(:name "HTTP/1.0 without `Host`"
 :ours "`:server-name` and `:server-port` are of our end" :theirs "both: `nil` and 80"
 :why "Clack wants a string, and the port is known"
 :at (((:woo :hunchentoot) (:old-without-host) "server-name" "server-port")))
(:name "`content-type` and `content-length` in `:headers`"
 :ours "there" :theirs "Hunchentoot's: not there"
 :why "as with Woo, the table has all fields"
 :at (((:hunchentoot) (:post :put :patch :form :json :empty-content)
       "header content-type" "header content-length")))
(:name "`Cookie` twice"
 :ours "joined by `; `" :theirs "both: by a comma"
 :why "RFC 6265, section 5.4"
 :at (((:woo :hunchentoot) (:repeated-cookies) "header cookie")))
(:name "another field twice"
 :ours "joined by a comma" :theirs "Woo: by a comma and a space"
 :why "as with Hunchentoot's; RFC 9110, section 5.3, has both"
 :at (((:woo) (:repeated-headers) "header x-foo")))
(:name "spaces after the value of a field"
 :ours "dropped" :theirs "Woo: part of it"
 :why "RFC 9112, section 5.1"
 :at (((:woo) (:spaces-in-header) "header x-foo")))
(:name "`:raw-body` after `(file-position raw-body 0)`"
 :ours "begins again" :theirs "Hunchentoot's: reads nothing more, or the request gets no answer"
 :why "as with Woo; what parses forms does it"
 :at (((:hunchentoot) (:twice :twice-chunks) "body" "status" "connection")))
(:name "the connection after content in chunks"
 :ours "kept" :theirs "Woo: closed; Hunchentoot's: closed, if it was not read"
 :why "RFC 9112, section 9.3"
 :at (((:woo) (:chunks :echo-chunks :twice-chunks) "connection")
      ((:hunchentoot) (:chunks) "connection")))

;;; Responses

(:name "a list as body"
 :ours "with `Content-Length`"
 :theirs "Woo: in chunks; Hunchentoot's: in chunks, or for HTTP/1.0 without a length"
 :why "the length is known"
 :at (((:woo :hunchentoot)
       (:content-unread :last :/list :/empty-strings :/utf-8 :/untyped :/headers :/repeated
        :/integer :/close :/201 :/404 :/500 :/delayed :head/list :head/delayed :head/404)
       "framing")
      ((:hunchentoot) (:old-list :old-kept) "framing")))
(:name "octets as body"
 :ours "with `Content-Length`" :theirs "Hunchentoot's: in chunks"
 :why "the length is known"
 :at (((:hunchentoot)
       (:echo :echo-octets :echo-much :echo-with-get :echo-chunks :twice :/octets :/no-octets
        :head/octets)
       "framing")))
(:name "`nil` as body"
 :ours "`Content-Length: 0`, but for 204 and 304"
 :theirs "Hunchentoot's: no length, and the connection is closed; Woo: sends the 0 for 204,
          too, and for HEAD in place of the length that the application gave"
 :why "RFC 9110, section 8.6"
 :at (((:hunchentoot) (:/nil :/delayed-nil :/204 :/204-with-type :head/nil) "framing" "connection")
      ((:woo) (:/204 :/204-with-type :head/length-of-nothing) "framing")))
(:name "HTTP/1.0 with `Connection: keep-alive`"
 :ours "kept" :theirs "both: closed"
 :why "RFC 9112, appendix C.2.2"
 :at (((:woo :hunchentoot) (:old-kept) "connection")))
(:name "a writer's response for HTTP/1.0"
 :ours "as it is, up to the end of the connection" :theirs "Woo: in chunks, and left open"
 :why "HTTP/1.0 has no chunks"
 :at (((:woo) (:old-stream) "framing" "connection" "body")))
(:name "`:connection \"close\"` in a response"
 :ours "closed" :theirs "both: sent, but kept"
 :why "RFC 9112, section 9.6"
 :at (((:woo :hunchentoot) (:/close) "connection")))
(:name "`:content-length` as a string"
 :ours "as an integer" :theirs "Hunchentoot's: 500"
 :why "as with Woo"
 :at (((:hunchentoot) (:/length-in-text) "status")))
(:name "HEAD"
 :ours "no content" :theirs "Woo: content, which clients take for the next response"
 :why "RFC 9110, section 9.3.2"
 :at (((:woo)
       (:head/list :head/length :head/octets :head/file :head/delayed :head/stream :head/404)
       "connection")))
(:name "`Content-Type` with 204 or 304"
 :ours "never" :theirs "Woo: what the application says; Hunchentoot's: always"
 :why "there is no content to have a type"
 :at (((:woo) (:/204-with-type :/304-with-headers) "reply content-type")
      ((:hunchentoot) (:/204 :/204-with-type :/304 :/304-with-headers) "reply content-type")))
(:name "a response without `:content-type`"
 :ours "strings are `text/html; charset=utf-8`, files what their names say"
 :theirs "Woo: strings have none; its list of names is longer"
 :why "as with Hunchentoot's; Ningle relies on it"
 :at (((:woo) (:/untyped :/file-untyped) "reply content-type")))
(:name "302 without a body"
 :ours "no content" :theirs "Hunchentoot's: a page of its own"
 :why "what the application says is sent"
 :at (((:hunchentoot) (:/302) "body" "framing" "reply content-type")))
(:name "a header twice in a response"
 :ours "sent twice" :theirs "Hunchentoot's: joined, but for `Set-Cookie`"
 :why "what the application says is sent"
 :at (((:hunchentoot) (:/repeated) "reply x-foo")))
(:name "files"
 :ours "`ETag`, `Last-Modified` and ranges" :theirs "Woo: none of them; Hunchentoot's: no `ETag`"
 :why "RFC 9110, sections 13 and 14"
 :at (((:woo) (:/file :/file-untyped :/delayed-file :head/file)
       "reply etag" "reply last-modified" "reply accept-ranges")
      ((:hunchentoot) (:/file :/file-untyped :/delayed-file :head/file) "reply etag")))
(:name "a file that is not there"
 :ours "404 with a sentence" :theirs "Woo: 500; Hunchentoot's: 404 with a page of its own"
 :why "RFC 9110, section 15.5.5"
 :at (((:woo) (:/file-missing) "status")
      ((:hunchentoot) (:/file-missing) "body" "framing" "reply content-type")))
(:name "an error of the application"
 :ours "500 with a sentence in `text/plain`"
 :theirs "Woo: 500 without content; Hunchentoot's: in `text/html`"
 :why "who reads it knows what it is"
 :at (((:woo) (:/error :/delayed-error :/no-response) "body" "framing" "reply content-type")
      ((:hunchentoot) (:/error :/delayed-error :/no-response) "framing" "reply content-type")))
