(defpackage #:hunchentoot-recycling-taskmaster
  (:documentation "Serve a Hunchentoot application by recycled threads: make an instance of
one of the PARALLEL- acceptors where you made one of Hunchentoot's.")
  (:use #:common-lisp
        #:hunchentoot-recycling-taskmaster.base
        #:hunchentoot-recycling-taskmaster.platform
        #:hunchentoot-recycling-taskmaster.http
        #:hunchentoot-recycling-taskmaster.engine
        #:hunchentoot-recycling-taskmaster.server)
  (:import-from #:hunchentoot-recycling-taskmaster.websocket
                #:accept-handshake #:handshake-headers #:handshake-refused
                #:handshake-refused-status
                #:handshake-refused-reason #:handshake-refused-headers #:encode-frame)
  ;; What we use of Hunchentoot without its having promised it; the rest is in internals.lisp.
  (:import-from #:hunchentoot
                #:*default-max-thread-count* #:acceptor-taskmaster #:acceptor-process
                #:acceptor-server-name
                ;; the context of a request
                #:*hunchentoot-stream* #:*close-hunchentoot-stream* #:*finish-processing-socket*
                #:*headers-sent* #:*tmp-files* #:request-processed #:handler-done
                #:with-debugger #:handler-case*
                ;; requests and replies
                #:content-stream #:start-output #:stringify-cookie
                #:form-url-encoded-list-to-alist #:cookies-to-alist
                #:maybe-add-charset-to-content-type-header)
  (:export
   #:parallel-acceptor #:parallel-easy-acceptor
   #:parallel-ssl-acceptor #:parallel-easy-ssl-acceptor
   #:recycling-taskmaster #:*default-standby-thread-count*
   #:*high-water-mark*
   #:taskmaster-standby-thread-count
   ;; replies that come later
   #:defer-reply #:deferred-reply #:deferred-reply-p #:complete-reply #:fail-reply
   #:request-timed-out-p #:reply-abandoned-p #:call-with-reply-context #:with-reply-context
   #:send-early-hints
   #:start-stream #:outgoing-stream #:outgoing-stream-p #:write-outgoing
   #:close-outgoing
   #:outgoing-open-p
   #:start-event-stream #:send-event #:send-comment #:last-event-id #:*heartbeat-seconds*
   #:channel #:channel-p #:make-channel #:channel-size
   #:channel-name #:subscribe #:unsubscribe #:publish
   #:broker #:open-broker #:close-broker #:broker-stats #:publish-message #:deliver-message
   #:upgrade-to-websocket #:websocket #:websocket-p #:websocket-open-p #:send-text #:send-binary
   #:close-websocket
   #:serve-until-signalled
   #:request-id #:request-trace
   #:stats #:list-connections #:reopen-logs #:reload-certificates
   #:make-metrics-dispatcher
   #:make-readiness-dispatcher #:make-liveness-dispatcher
   #:make-live-page-dispatcher
   #:tls-information #:client-certificate
   #:abandon-acceptor #:retry
   #:run-after #:cancel-timer
   ;; conditions
   #:recycling-error #:client-left #:reply-already-sent #:cannot-defer #:stream-full
   #:content-too-long #:content-left #:protocol-error #:invalid-header #:malformed-event
   #:reply-failed #:unfit-argument #:stop-from-worker
   #:listen-failed
   #:recycling-taskmaster-corrupted-error))
