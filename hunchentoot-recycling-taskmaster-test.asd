(defsystem "hunchentoot-recycling-taskmaster-test"
  :description "Tests of hunchentoot-recycling-taskmaster, named for the promises they check."
  :author "The hunchentoot-recycling-taskmaster maintainers"
  :version (:read-file-form "version.sexp")
  :license "BSD-2-Clause"
  :depends-on ("hunchentoot-recycling-taskmaster" "clack-handler-recycling"
               "fiveam" "flexi-streams" "chunga" "alexandria" "cl-ppcre"
               (:feature (:and :sbcl :linux :64-bit) "hunchentoot-recycling-taskmaster/http2")
               (:feature :sbcl "hunchentoot-recycling-taskmaster/postgresql"))
  :around-compile "hunchentoot-recycling-taskmaster-system:call-with-own-policy"
  :pathname "test/"
  :serial t
  :components
  ((:file "package")
   (:module "support"                   ; latches, leak check, a client of octets
    :serial t
    :components ((:file "system")
                 (:file "patience")
                 (:file "functions")
                 (:file "threads")
                 (:file "leaks")
                 (:file "octets")
                 (:file "files")
                 (:file "connection")
                 (:file "request")
                 (:file "response")
                 (:file "client")
                 (:file "json")
                 (:file "acceptors")
                 (:file "slow-clients")
                 (:file "clack-servers")
                 (:file "websocket-client")
                 (:file "fronts")
                 (:file "later")
                 (:file "programs")
                 (:file "server-test")
                 (:file "markdown")
                 (:file "examples")
                 (:file "http2-connection" :if-feature (:and :sbcl :linux :64-bit))
                 ;; The last: ASDF would let what follows depend on nothing before it.
                 (:file "tls-connection"
                  :if-feature (:and :sbcl (:not :hunchentoot-no-ssl)))))
   (:file "run")                        ; the entry point
   (:file "architecture")
   (:file "ceilings")           ; of the sizes of folders
   (:file "public-names")
   (:module "base"
    :components ((:file "policies")))
   (:module "scripts"
    :components ((:file "run-tests")))
   (:module "http"                      ; vectors, and octets at random
    :serial t
    :components ((:file "conversation")
                 (:file "vectors")
                 (:file "heads")
                 (:file "fuzz")
                 (:file "replies")
                 (:file "chunking")
                 (:file "decoding")
                 (:file "forwarded")
                 (:file "proxy-protocol")
                 (:file "representations")
                 (:file "bodies")
                 (:file "multipart")
                 (:file "event-stream")))
   (:module "websocket"                 ; vectors, and octets at random
    :serial t
    :components ((:file "frames")
                 (:file "vectors")
                 (:file "opening-handshakes")
                 (:file "encoding")
                 (:file "large-messages")
                 (:file "any-octets")))
   (:module "engine"                    ; tables and models
    :components ((:file "pool-sizing")
                 (:file "timers" :depends-on ("pool-sizing"))
                 (:file "connections" :depends-on ("pool-sizing"))
                 (:file "ownership-model" :depends-on ("pool-sizing"))))
   (:module "platform"
    :serial t
    :components ((:file "tables")))
   (:module "server"
    :serial t
    :components ((:file "journal")))
   (:module "hunchentoot"
    :serial t
    :components ((:file "taskmaster")
                 (:file "lifecycle")
                 (:file "process-exits")
                 (:file "demo")
                 (:file "faults")
                 (:file "timers")
                 (:file "listening")
                 (:file "deployment")
                 (:file "certificates")
                 (:file "https" :if-feature (:not :hunchentoot-no-ssl))))
   (:module "conformance"               ; all that a Hunchentoot application relies on
    :pathname "hunchentoot/conformance/"
    :serial t
    :components ((:file "suite")
                 (:file "handlers")
                 (:file "sessions")
                 (:file "uploads")
                 (:file "debugging")
                 (:file "logs")
                 (:file "subclasses")
                 (:file "detaching")
                 (:file "listener-thread")
                 (:file "libraries")
                 (:file "detached-tls"
                  :if-feature (:and :sbcl :linux :64-bit (:not :hunchentoot-no-ssl)))
                 (:file "connection-methods")))
   (:module "logs"                      ; these use tools of the conformance tests
    :pathname "hunchentoot/"
    :components ((:file "requests")
                 (:file "own-output")
                 (:file "access-log")
                 (:file "message-log")
                 (:file "forms")
                 (:file "small-heaps")
                 (:file "secrets")
                 (:file "deferred-replies")
                 (:file "shared-content")
                 (:file "outgoing-streams")
                 (:file "channels")
                 (:file "brokers")))
   (:module "sockets"
    :pathname "platform/"
    :components ((:file "sockets")))
   (:module "clack"                     ; the protocol of Clack's handlers, driven directly
    :serial t
    :components ((:file "environments")
                 (:file "responses")
                 (:file "responders")
                 (:file "running")
                 (:static-file "rival-application.lisp")
                 (:static-file "differences.sexp")
                 (:file "rival-requests")
                 (:file "differential")))
   (:module "websockets"                ; of servers
    :pathname "hunchentoot/"
    :serial t
    :components ((:file "websockets")
                 (:file "until-signalled"))) ; its programs have WebSockets, too
   (:module "fronts"                    ; what Hunchentoot's and Clack's do alike
    :serial t
    :components ((:file "later")
                 (:file "early-hints")
                 (:file "races")
                 (:file "streams")
                 (:file "slow-clients")
                 (:file "limits-of-time")
                 (:file "content")
                 (:file "requests")
                 (:file "arguments")
                 (:file "inputs")
                 (:file "messages")
                 (:file "verdicts")
                 (:file "files")
                 (:file "compression" :if-feature (:not :hunchentoot-no-ssl)) ; which brings CFFI
                 (:file "proxies")
                 (:file "lifecycle")
                 (:file "crowds")
                 (:file "websockets")
                 (:file "hand-over")
                 (:file "monitoring")
                 (:file "live-page-in-browser")
                 (:file "http2" :if-feature (:and :sbcl :linux :64-bit))
                 (:file "tls" :if-feature (:and :sbcl :linux :64-bit (:not :hunchentoot-no-ssl)))))
   (:module "proxies"                   ; in front of servers
    :pathname "hunchentoot/"
    :serial t
    :components ((:file "real-proxies")
                 (:file "restarts")
                 (:file "service-manager"))) ; its units, and what is told to systemd
   (:module "clack-sockets"             ; by the client of WebSockets
    :pathname "clack/"
    :components ((:file "sockets")))
   (:module "postgresql"                ; between processes
    :if-feature :sbcl
    :serial t
    :components ((:file "database")
                 (:file "brokers")
                 (:file "chat")))
   (:module "differential"              ; the same requests to Hunchentoot's own acceptor
    :pathname "hunchentoot/differential/"
    :serial t
    :components ((:static-file "differences.sexp")
                 (:file "cases")
                 (:file "observing")
                 (:file "pages")
                 (:file "reply-pages")
                 (:file "action-pages")
                 (:file "comparing")
                 (:file "worlds")
                 (:file "suite")))
   (:file "guide")                      ; the README and docs/guide, example by example
   (:file "documents"))                 ; their tables and links
  :perform (test-op (operation system)
             (declare (ignore operation system))
             (unless (uiop:symbol-call '#:hunchentoot-recycling-taskmaster-test '#:run-all)
               (error "Some tests failed."))))
