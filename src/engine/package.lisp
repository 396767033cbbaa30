(defpackage #:hunchentoot-recycling-taskmaster.engine
  (:documentation "Private.  Threads and connections, and nothing of HTTP: an ENGINE
recycles a pool of workers over the connections of one listener.  The layer above
subclasses SERVICE and is called through its generic functions.")
  (:use #:common-lisp
        #:hunchentoot-recycling-taskmaster.base
        #:hunchentoot-recycling-taskmaster.platform)
  (:export
   ;; implemented by the layer above
   #:service #:serve #:output-unwanted-p #:release #:time-out-handler
   #:give-notice #:*refusal-reasons* #:address-limit
   #:keep-unread-input #:input-kept-p
   #:make-engine-thread #:call-in-thread #:call-as-worker #:note
   ;; connections
   #:connection #:connection-socket #:connection-served #:connection-data #:count-request #:detach
   #:connection-descriptor #:connection-handle #:connection-peer #:connection-peer-name
   #:enter-address #:refuse-with-notice #:connection-parkable-p
   #:connection-deadline #:connection-deadline-kind
   #:connection-outcome #:connection-input #:peer-ended-p
   #:resume-connection #:limit-handler-at #:milliseconds-queued #:wake-from-client #:call-for-all
   #:call-with-deadline #:set-deadline #:set-deadline-at #:count-late #:count-failure #:evict-oldest
   ;; output that the socket did not take yet
   #:send-queue #:make-send-queue #:send-queue-parts #:send-queue-sender #:send-queue-sent
   #:peer-progress
   #:note-worker-wait
   #:connection-queue #:connection-output #:enqueue #:flush-queue #:clear-queue #:queued-octets
   #:limit-taking #:copy-limits #:send-queue-milliseconds #:look-at-taker #:next-look-at-taker
   #:taker-given-up-p #:end-wait #:reset-taking #:earlier
   #:drop-parts
   #:part #:part-position #:part-end #:make-octets-part #:octets-part-p #:octets-part-octets
   #:make-step-part
   #:file-part-p #:gather-octets
   #:open-file-part #:file-part-file
   ;; engines
   #:engine #:blocking-engine #:make-blocking-engine #:make-ready-engine
   #:engine-service #:engine-listener #:engine-thread-limit #:engine-accept-limit
   #:engine-client-waits #:client-waits-limit #:wait-for-client
   #:engine-standby #:resize-pool #:engine-statistics #:*statistics* #:no-statistics
   #:list-engine-connections #:list-workers #:note-task
   #:start-engine #:stop-engine #:abandon-engine #:threads-left
   #:winding-down-p #:keeps-connections-p #:welcoming-p #:running-p #:serving-p #:drain-over-p
   #:engine-stopped-p #:inside-worker-p
   #:stop-from-worker #:log-message
   #:*worker* #:worker-engine #:current-engine
   ;; memory that clients take
   #:*client-memory-share* #:*waiting-share* #:*request-share* #:client-memory-budget
   #:client-memory-reserved #:reserve-client-memory #:release-client-memory
   #:change-reservation #:fits-in-heap-p #:make-room-in-heap
   ;; timers
   #:timer #:schedule #:cancel #:call-when-pool-serves))
