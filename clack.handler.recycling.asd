;;;; (clack:clackup app :server :recycling) loads this.

(defsystem "clack.handler.recycling"
  :description "A handler for Clack: applications are served by recycled threads, without Hunchentoot."
  :author "The hunchentoot-recycling-taskmaster maintainers"
  :version "0.1.0"
  :license "BSD-2-Clause"
  :depends-on ("hunchentoot-recycling-taskmaster/server")
  :weakly-depends-on ("clack-socket")   ; Clack's; where it comes later, RUN looks again
  :around-compile "hunchentoot-recycling-taskmaster-system:call-with-own-policy"
  :pathname "clack/"
  :serial t
  :components ((:file "package")
               (:file "clack-server")   ; what the server and its engine ask
               (:file "clack-tls" :if-feature (:not :hunchentoot-no-ssl))
               (:file "raw-body")       ; content that can be read again
               (:file "raw-body-stream")
               (:file "environment")    ; of a request
               (:file "media-types")    ; where the application says none
               (:file "responses")      ; as octets
               (:file "file-responses")
               (:file "delayed-responses") ; that are given to a function
               (:file "written-responses") ; piece by piece
               (:file "socket")         ; connections that applications take over
               (:file "requests-served")
               (:file "later-responses") ; which go on when their functions have returned
               (:file "engine-timers")
               (:file "options")        ; arguments of RUN
               (:file "running")))      ; start and stop
