;;;; The table of contents: layers on a base, each knowing only those that come before it in this
;;;; list.

;;; Some Lisps keep what a file of any library proclaims about optimisation, such as safety 0, for
;;; all that is compiled later.

(defpackage #:hunchentoot-recycling-taskmaster-system
  (:documentation "Private to the system definitions.")
  (:use #:common-lisp)
  (:export #:call-with-own-policy))

(defun hunchentoot-recycling-taskmaster-system:call-with-own-policy (compile)
  "Calls COMPILE under the policy of our files, whatever was proclaimed before, and again is
afterwards.  UIOP:*OPTIMIZATION-SETTINGS*, a list such as ((SAFETY 3)), takes precedence."
  (uiop:with-optimization-settings
      (`((speed 1) (space 1) (debug 1) (compilation-speed 1)
         (safety #-ecl 1 #+ecl 2)       ; ECL checks too little at 1
         ,@uiop:*optimization-settings*))
    (funcall compile)))

(defsystem "hunchentoot-recycling-taskmaster/server"
  :description "A server of HTTP on recycled threads, for applications of any kind."
  :long-description
  "All layers below Hunchentoot's.  The handler for Clack depends on this, and not on Hunchentoot."
  :author "The hunchentoot-recycling-taskmaster maintainers"
  :version (:read-file-form "version.sexp")
  :license "BSD-2-Clause"
  ;; Nothing that Hunchentoot would not bring.
  :depends-on ("bordeaux-threads" "usocket" "trivial-gray-streams" "cl-base64"
               (:feature (:not :hunchentoot-no-ssl) "cl+ssl")
               (:feature (:not :hunchentoot-no-ssl) "cffi")
               (:feature (:not :hunchentoot-no-ssl) "trivial-garbage"))
  :around-compile "hunchentoot-recycling-taskmaster-system:call-with-own-policy"
  :pathname "src/"
  :serial t
  :components
  ((:file "base")                       ; policies, types, root conditions
   (:module "platform"                  ; the door to the operating system and to the Lisp
    :serial t
    :components ((:file "package")
                 (:file "sbcl" :if-feature :sbcl) ; what Lisps do differently
                 (:file "ecl" :if-feature :ecl)
                 (:file "abcl" :if-feature :abcl)
                 (:file "portable")     ; what they do alike
                 (:file "compressors" :if-feature (:not :hunchentoot-no-ssl)) ; which brings CFFI
                 ;; What the ready engine stands on.  Its tokens need 62 bits in one word, and it
                 ;; reads the system's structures as these processors lay them out.
                 (:module "linux"
                  :if-feature (:and :sbcl :linux :64-bit :little-endian)
                  :serial t
                  :components ((:file "descriptors")
                               (:file "epoll")
                               (:file "sockets")
                               (:file "listen-sockets")
                               (:file "systemd")
                               (:file "system-files")
                               (:file "process")))
                 (:file "usockets"
                  :if-feature (:not (:and :sbcl :linux :64-bit :little-endian)))
                 (:module "openssl"     ; TLS
                  :if-feature (:not :hunchentoot-no-ssl)
                  :serial t
                  :components ((:file "library") ; and facts of a connection
                               (:file "tls-contexts") ; certificates, keys, settings
                               (:file "tls-sessions"
                                :if-feature (:and :sbcl :linux :64-bit :little-endian))))))
   (:module "http"                      ; HTTP/1.1 without I/O
    :serial t
    :components ((:file "package")
                 (:file "refusals")     ; and limits
                 (:file "scan")         ; octets, known words and texts
                 (:file "request-head")
                 (:file "origins")      ; what proxies tell of a client
                 (:file "parser")
                 (:file "bodies")       ; of requests, and the parts of a form
                 (:file "representations") ; of files
                 (:file "encoder")))    ; of replies
   (:module "websocket"                 ; RFC 6455 without I/O
    :serial t
    :components ((:file "package")
                 (:file "opening-handshake")
                 (:file "websocket-frames") ; encoder, masks, codes, and what may follow what
                 (:file "message-decoder")))
   (:module "engine"                    ; threads and connections, nothing of HTTP
    :serial t
    :components
    ((:file "package")
     (:module "common"                  ; to both engines
      :serial t
      :components ((:file "service-protocol") ; what an engine asks of the layer above
                   (:file "memory-budget") ; of what clients make us keep
                   (:file "send-queue") ; the one way out of a connection; slow readers
                   (:file "connection-state") ; deadline, ownership, table
                   (:file "engine")     ; phases, states of workers, trouble
                   (:file "worker-pool") ; how workers come and go
                   (:file "timer-queue") ; functions that wait for their moment
                   (:file "lifecycle")  ; start, drain, stop
                   (:file "statistics")))
     (:file "blocking-engine")           ; a worker for each connection: every Lisp
     (:module "ready"                   ; workers share a poller, connections are parked: epoll
      :serial t
      :components ((:file "ready-engine") ; who does what
                   (:file "loop")       ; wait, own, serve, settle, park
                   (:file "accepting-connections")
                   (:file "ready-sentinel"))))) ; how many workers are awake, deadlines, evictions
   (:module "server"                    ; a connection's life
    :serial t
    :components
    ((:file "package")
     (:file "for-programs")             ; conditions, timers, statistics
     (:module "logs"                    ; what is told to people who run a server
      :serial t
      :components ((:file "lines")
                   (:file "messages")   ; for people who run a server, and how often
                   (:file "journal")))  ; lines of logs, written behind the requests' backs
     (:file "application")              ; what is served
     (:file "arguments")                ; of applications, and the listener they ask for
     (:file "tls-arguments"
      :if-feature (:not :hunchentoot-no-ssl))
     (:module "connection"              ; its input, and what carries its octets
      :serial t
      :components ((:file "io")         ; buffers, input, waits
                   (:file "io-stream")  ; output, and the stream of both
                   (:file "http-connection") ; what is known of it, and of its client
                   (:file "handshake"))) ; of TLS, without a worker
     (:module "request"                 ; head and content
      :serial t
      :components ((:file "exchange")   ; one request and its reply
                   (:file "content")))  ; of requests, in memory or a file
     (:module "response"                ; whole, streamed, of a file, later, or another protocol
      :serial t
      :components ((:file "replies")    ; and 503 in place of handlers that take too long
                   (:file "compression")
                   (:file "sent-files") ; and what is known of them
                   (:file "suspended-exchange") ; what goes on without a worker
                   (:file "streamed-content") ; which any thread writes, or the handler
                   (:file "later")      ; replies that come later
                   (:file "websocket")
                   (:file "program-socket"))) ; connections that programs take over or away
     (:file "connection-life")          ; from the engine to the application and back
     (:file "monitoring")               ; pages for those that watch
     (:static-file "live.html")
     (:file "live-page")                ; and one for those that want to see it
     (:file "until-signalled")))))      ; the main function of a program, and systemd

(defsystem "hunchentoot-recycling-taskmaster"
  :description "A fast HTTP server for programs that use Hunchentoot, on recycled threads."
  :long-description
  "Acceptors and a taskmaster to be used in the place of Hunchentoot's own: a pool of threads serves
all connections, and on SBCL under Linux a connection needs a thread only while its
request is handled.  Handlers, sessions and dispatchers stay as they are."
  :author "The hunchentoot-recycling-taskmaster maintainers"
  :version (:read-file-form "version.sexp")
  :license "BSD-2-Clause"
  ;; Hunchentoot and what Hunchentoot itself brings; nothing else.
  :depends-on ("hunchentoot-recycling-taskmaster/server" "hunchentoot")
  :in-order-to ((test-op (test-op "hunchentoot-recycling-taskmaster-test")))
  :around-compile "hunchentoot-recycling-taskmaster-system:call-with-own-policy"
  :pathname "src/"
  :serial t
  :components
  ((:file "package")                    ; the public names
   (:module "hunchentoot"
    :serial t
    :components ((:file "internals")    ; what Hunchentoot hides
                 (:file "taskmaster")   ; between Hunchentoot, engine and server
                 (:file "acceptors")    ; arguments, listening, start and stop
                 (:file "logs")
                 (:file "tls" :if-feature (:not :hunchentoot-no-ssl))
                 (:file "forms")        ; and other content of requests
                 (:file "reply")        ; to octets
                 (:file "deferred-replies") ; replies that any thread has, later
                 (:file "requests")     ; from head to conclusion
                 (:file "outgoing-streams") ; replies that any thread writes, later
                 (:file "websockets")
                 (:file "channels")     ; to many clients at once, in several processes
                 (:file "files")        ; by the shortest way
                 (:file "administration"))))) ; statistics, pages, the main function

(defsystem "hunchentoot-recycling-taskmaster/http2"
  :description "HTTP/2 for acceptors and for Clack's server, by libnghttp2."
  :long-description
  "Once it is loaded, :http2 t has a server on SBCL under Linux speak HTTP/2 with clients that want
that, and handlers stay as they are."
  :author "The hunchentoot-recycling-taskmaster maintainers"
  :version (:read-file-form "version.sexp")
  :license "BSD-2-Clause"
  :depends-on ("hunchentoot-recycling-taskmaster/server" "cffi")
  :around-compile "hunchentoot-recycling-taskmaster-system:call-with-own-policy"
  :pathname "src/http2/"
  :serial t
  :components ((:file "package")
               (:file "nghttp2")        ; calls of the library
               (:file "streams")        ; each a virtual connection
               (:file "session")))      ; of a client: frames in and out

(defsystem "hunchentoot-recycling-taskmaster/postgresql"
  :description "Channels that reach the subscribers of all processes, through PostgreSQL."
  :author "The hunchentoot-recycling-taskmaster maintainers"
  :version (:read-file-form "version.sexp")
  :license "BSD-2-Clause"
  :depends-on ("hunchentoot-recycling-taskmaster" "cl-postgres")
  :around-compile "hunchentoot-recycling-taskmaster-system:call-with-own-policy"
  :pathname "postgresql/"
  :serial t
  :components ((:file "package")
               (:file "broker")         ; the class, its reports, and its queue of messages
               (:file "database")       ; its tables and statements
               (:file "threads")))      ; the publisher and the listener; open and close
