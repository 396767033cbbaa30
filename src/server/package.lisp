(defpackage #:hunchentoot-recycling-taskmaster.server
  (:documentation "Private.  The life of a connection that speaks HTTP, between the engine and an
application: octets, heads, content and replies; and logs.  Knows no application.")
  (:use #:common-lisp
        #:hunchentoot-recycling-taskmaster.base
        #:hunchentoot-recycling-taskmaster.platform
        #:hunchentoot-recycling-taskmaster.http
        #:hunchentoot-recycling-taskmaster.engine)
  (:import-from #:hunchentoot-recycling-taskmaster.websocket
                #:make-message-decoder #:decode-message #:end-decoding
                #:encode-frame #:encode-close
                #:+abnormal-end+ #:+going-away+
                #:close-frame-code #:close-frame
                #:failure-code-p
                #:next-websocket-state #:sending-p #:receiving-p #:close-owed-p #:over-p)
  (:export
   ;; conditions of replies, and streams
   #:client-left #:client-left-source #:reply-already-sent #:cannot-defer #:stream-full
   #:content-too-long #:call-with-worker-buffers #:descriptor-stream #:stream-io
   ;; buffered connections, and streams of the Lisp's own beside them
   #:io-tls #:io-tls-handle
   #:io-open-p #:io-talked-on-p #:flushed-p #:*high-water-mark*
   #:write-with-backpressure #:lent-open-p #:stream-timeout #:descriptor-broken
   ;; applications
   #:http-service #:read-seconds #:write-seconds #:application-engine #:respond
   #:reads-first-p #:application-limits #:encrypted-p #:handshake-context #:program-stream
   #:trusted-proxies #:proxy-protocol-p
   #:note-rejected #:count-as #:note-cut #:turn-away #:stats
   #:list-connections #:run-after #:cancel-timer #:server-engine
   #:*engine-of-context*
   ;; pages for those that watch, and the main function of a program
   #:place-of #:place-text #:*loopback* #:make-page #:metrics-page #:readiness-page
   #:liveness-page #:make-live-page #:send-snapshots
   #:serve-and-exit #:begin-serving #:end-serving #:renew-files
   ;; their arguments, and where they listen
   #:unfit-argument #:unfit-argument-name #:unfit-argument-words #:unfit #:check-arguments
   #:arguments-of #:check-accept-count #:check-proxy-protocol #:check-http2
   #:http2 #:http2-streams #:network-named #:changed-limits
   #:*limit-arguments* #:*tls-arguments* #:context-of-settings #:open-listener
   #:make-engine-on
   ;; a system that serves HTTP/2
   #:*begin-session* #:*preface* #:make-http-connection #:http-head #:http-phase #:http-trusted
   #:http-remote #:seconds-for #:io #:io-receiver #:io-connection #:io-input #:io-start #:io-end
   #:fill-input #:take-buffer #:return-buffer #:descriptor-broken
   #:suspended-exchange #:suspended-exchange-connection #:continue-over #:io-stream
   #:begin-http-connection #:io-drained-p #:peer-left-p
   ;; a connection's life, and its links
   #:take-content #:give-away #:leave-to-program #:next-request-missing #:http-base
   #:http-io #:http-carrier #:http-stream #:http-local #:http-origin
   #:request-remote #:http-address #:socket-io #:connection-usocket #:exchange-http #:current-head
   ;; exchanges
   #:exchange #:*exchange* #:exchange-application #:exchange-connection #:exchange-engine
   #:exchange-head #:exchange-words #:exchange-duration #:note-served
   #:last-of-connection-p #:exchange-claim #:call-with-handler-limit #:lift-handler-limit
   #:begin-limited-reply #:request-timed-out-p #:reply-begun-p #:send-early-hints
   #:exchange-output
   #:exchange-kept-p #:note-event
   #:exchange-deferred-response #:exchange-request-id #:keep-request-id #:request-id #:request-trace
   #:identifier-of #:traceparent-of
   ;; what goes on without a worker
   #:http-suspended-exchange #:suspended-exchange-application #:suspended-exchange-engine #:abandon
   #:resume #:deferred-response #:make-deferred-response #:deferred-response-exchange
   #:defer-response #:deferred-response-shared-queue #:deferred-response-endless-p
   #:deferred-response-left-p #:deferred-response-unsent-p #:deferred-response-over-p
   #:deferred-response-state #:deferred-response-owner #:answer-deferred-response
   #:withdraw-deferred-response #:take-answer #:send-deferred-response #:end-stream #:drop-deferred
   #:deferred-p #:leave-or-keep #:websocket #:make-websocket #:websocket-p #:websocket-shared-queue
   #:websocket-open-p #:put-in-websocket #:close-websocket #:call-for-websocket
   #:exchange-upgrade #:make-program-socket #:make-websocket #:end-websocket #:fail-websocket
   #:websocket-on-message #:listen-to-program-socket #:write-to-program-socket
   #:finish-program-socket #:call-when-over #:forget-when-over #:shared-queue-ended-p
   #:shared-queue-announced #:shared-queue #:shared-queue-p #:make-queue
   #:write-waiting #:write-content #:close-content #:have-sent
   #:put-in-shared-queue #:owner-wanted-p #:shared-queue-shut-p
   #:shared-queue-queue #:end-shared-queue #:begin-shared-queue
   ;; requests
   #:stream-of-content #:content-of #:content-as-stream #:read-octets-of-content
   #:content-size #:content-left #:refuse-content
   #:read-all-content #:reserve-memory #:content-limits
   #:with-content #:content-position #:abandon-content #:*no-content*
   ;; replies, files, and what handlers stream
   #:with-reply #:send-reply #:end-exchange #:settle-reply-connection #:content-wanted-p
   #:*retry-seconds* #:compression-of #:application-compression #:headers-for-program
   #:coding-of-reply #:tag-to-send #:code-content #:compressor-of-worker
   #:answer-with-file #:append-parts #:reply-stream
   #:framing-of-stream #:reply-stream-inner
   #:push-output #:end-reply #:whole-or-broken
   ;; logs: what is told seldom, and lines
   #:with-line #:encode-escaped #:encode-printed #:encode-json #:end-line #:utc-now
   #:local-now #:condition-text #:message-text #:message-line
   #:request-words #:*error-control* #:*backtrace-print-length* #:call-catching
   #:application-journals #:journal-for #:settle-logs #:flush-journal #:append-line
   #:tell #:client-address
   #:*rare-control* #:tell-seldom))
