(defpackage #:clack.handler.recycling
  (:documentation "Serves a Clack application on recycled threads.  CLACK:CLACKUP with :SERVER
:RECYCLING finds RUN here.  Neither Clack nor Hunchentoot has to be loaded.")
  (:use #:common-lisp
        #:hunchentoot-recycling-taskmaster.base
        #:hunchentoot-recycling-taskmaster.platform
        #:hunchentoot-recycling-taskmaster.http
        #:hunchentoot-recycling-taskmaster.engine
        #:hunchentoot-recycling-taskmaster.server)
  (:export #:run #:stop #:run-until-signalled
           #:clack-server #:server-address #:server-port #:stats #:list-connections
           #:request-id #:request-trace #:send-early-hints
           #:run-after #:cancel-timer
           #:request-timed-out-p
           ;; conditions
           #:recycling-error #:client-left #:reply-already-sent #:cannot-defer
           #:content-too-long #:content-left #:invalid-header
           #:make-metrics-middleware
           #:make-readiness-middleware #:make-liveness-middleware
           #:make-live-page-middleware
           #:unfit-argument #:listen-failed #:unfit-response #:stop-from-worker))
