;;;; Lists of a request, and some of its environment.

(("/a%20b/?q=1&r=%20" :host "example.org:8080" :headers (("X-Foo" . "bar")))
 :request-method :get :script-name "" :path-info "/a b/" :query-string "q=1&r=%20"
 :server-name "example.org" :server-port 8080 :server-protocol :http/1.1
 :request-uri "/a%20b/?q=1&r=%20" :url-scheme "http" :remote-addr "127.0.0.1"
 :content-type nil :content-length nil :clack.streaming t)
(("/" :method :post :content "abc") :content-length 3)
(("/" :method :post :headers (("Content-Length" . "0"))) :content-length 0)
(("/" :method :post :chunks ("abc")) :content-length nil)
(("/" :method :post) :content-length nil)
;; Paths are decoded once, leniently, as UTF-8
(("/foo/bar%2cbaz") :path-info "/foo/bar,baz")
(("/foo/bar%252cbaz") :path-info "/foo/bar%2cbaz")
(("/foo%E3%81%82") :path-info "/fooあ")
(("/%E3%81%82%BF%27%22%28") :path-info "/あ�'\"(")
(("/%zz") :path-info "/%zz")
(("/a+b") :path-info "/a+b")
(("/foo///bar/baz") :path-info "/foo///bar/baz")
(("///") :path-info "///")
;; Targets of every form
(("http://other.org:81/p?x=/y" :host "a")
 :path-info "/p" :query-string "x=/y" :server-name "other.org" :server-port 81
 :request-uri "http://other.org:81/p?x=/y")
(("http://other.org") :path-info "/" :query-string nil)
(("http://other.org?q") :path-info "/" :query-string "q")
(("*" :method :options) :path-info "*")
(("/p?") :path-info "/p" :query-string "")
(("/p") :path-info "/p" :query-string nil)
;; The server that the client has asked for
(("/" :host "localhost") :server-name "localhost" :server-port 80)
(("/" :host "localhost:") :server-name "localhost" :server-port 80)
(("/" :host "localhost:5000") :server-name "localhost" :server-port 5000)
(("/" :host "[::1]") :server-name "[::1]" :server-port 80)
(("/" :host "[::1]:5000") :server-name "[::1]" :server-port 5000)
(("/" :method :put) :request-method :put)
(("/" :method :propfind) :request-method :propfind)
(("/" :version "HTTP/1.0" :host nil :headers (("Connection" . "keep-alive")))
 :server-protocol :http/1.0 :server-name "127.0.0.1")
