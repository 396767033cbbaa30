;;;; (clack:clackup app :server :recycling) loads this.

(defsystem "clack.handler.recycling"
  :description "A fast HTTP server for Clack applications, on recycled threads."
  :long-description
  "A handler for Clack, without Hunchentoot: (clack:clackup app :server :recycling).  It has replies
that come later, streams, server-sent events and WebSockets, without a thread for each."
  :author "The hunchentoot-recycling-taskmaster maintainers"
  :version (:read-file-form "version.sexp")
  :license "BSD-2-Clause"
  :depends-on ("hunchentoot-recycling-taskmaster/server")
  :weakly-depends-on ("clack-socket")   ; Clack's; RUN looks again if it is loaded later
  :around-compile "hunchentoot-recycling-taskmaster-system:call-with-own-policy"
  :pathname "clack/"
  :serial t
  :components ((:file "package")
               (:file "server")         ; the arguments of RUN, start and stop
               (:file "responses")      ; whole ones, as octets
               (:file "later-responses") ; given to a responder, or written piece by piece
               (:file "socket")         ; connections that applications take over
               (:file "serving")        ; from the environment to the response
               (:file "monitoring-middlewares"))) ; pages for those that watch
