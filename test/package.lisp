(defpackage #:hunchentoot-recycling-taskmaster-test
  (:documentation "The tests.  RUN-ALL runs them.")
  (:use #:common-lisp #:fiveam)
  (:shadow #:test)
  ;; What the tests in engine/ use of the inside: tables and models.
  (:import-from #:hunchentoot-recycling-taskmaster.engine
                #:add-timer #:become-owner #:change-ownership #:close-timers #:connection-token
                #:count-request #:engine-lock #:engine-workers #:enter-connection #:find-connection
                #:forget-connection #:make-connection #:make-table #:make-timers #:make-worker
                #:map-connections #:next-ownership #:note-sent #:put-parts #:queue-events #:retire
                #:send-more #:size-pool #:take-due-timer #:take-event #:timer-function
                #:timers-pending)
  ;; What the operators of Clack's package clack.socket call, which need not be there.
  (:import-from #:clack.handler.recycling
                #:close-clack-socket
                #:set-clack-socket-callback #:write-to-clack-socket)
  (:local-nicknames (#:base #:hunchentoot-recycling-taskmaster.base)
                    (#:platform #:hunchentoot-recycling-taskmaster.platform)
                    (#:http #:hunchentoot-recycling-taskmaster.http)
                    (#:websocket #:hunchentoot-recycling-taskmaster.websocket)
                    (#:engine #:hunchentoot-recycling-taskmaster.engine)
                    (#:server #:hunchentoot-recycling-taskmaster.server)
                    (#:recycling #:hunchentoot-recycling-taskmaster)
                    #+(and sbcl linux 64-bit)
                    (#:http2 #:hunchentoot-recycling-taskmaster.http2)
                    #+sbcl (#:postgresql #:hunchentoot-recycling-taskmaster.postgresql)
                    (#:handler #:clack.handler.recycling))
  (:export #:run-all #:all #:unknown-suite))
