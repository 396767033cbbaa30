(defpackage #:hunchentoot-recycling-taskmaster.engine
  (:documentation "Private.  Threads and connections, and nothing of HTTP: an ENGINE
recycles a pool of workers over the connections of one listener.  The layer above
subclasses SERVICE and is called through its generic functions.")
  (:use #:common-lisp
        #:hunchentoot-recycling-taskmaster.base
        #:hunchentoot-recycling-taskmaster.platform)
  (:export
   ;; implemented by the layer above
   #:service #:serve #:release #:time-out-handler #:give-notice #:*refusal-reasons*
   #:address-limit #:keep-unread-input #:input-kept-p #:make-engine-thread
   #:call-as-worker #:note
   ;; connections
   #:connection #:connection-socket #:connection-served #:connection-data #:count-request #:detach
   #:connection-descriptor #:connection-handle #:connection-peer #:connection-peer-name
   #:enter-address #:refuse-with-notice #:connection-parkable-p #:connection-deadline
   #:connection-deadline-kind #:connection-outcome #:connection-input #:peer-ended-p
   #:resume-connection #:wake-from-client #:set-deadline #:set-deadline-at
   #:count-late #:count-failure #:evict-oldest
   ;; virtual connections
   #:virtual-connection #:virtual-connection-over-p
   #:connection-virtuals #:queue-events #:end-virtual-connection #:await-taker
   #:note-sent #:put-parts
   #:send-queue-more #:send-queue-carrier #:send-queue-shut #:send-on #:send-more
   #:end-under-lock
   ;; output that the socket did not take yet
   #:connection-queue #:connection-output #:send-queue #:make-send-queue #:with-send-queue
   #:send-queue-lock #:send-queue-descriptor #:send-queue-parts #:send-queue-last #:send-queue-size
   #:send-queue-sender #:*reply-grace* #:send-queue-arm
   #:send-queue-dead-p #:write-to-queue #:write-parts #:write-under-lock
   #:flush-queue #:end-queue #:make-room-for-output #:limit-taking #:taker-given-up-p #:earlier
   #:drop-parts #:parts-size #:part #:part-position #:part-end #:part-octets #:part-file
   #:part-queued-p #:make-octets-part #:make-file-part #:arm-for-output
   ;; engines
   #:engine #:make-blocking-engine #:make-ready-engine #:engine-service #:engine-listener
   #:engine-accept-limit #:wait-for-client #:resize-pool #:engine-statistics
   #:list-engine-connections #:list-workers #:note-task #:start-engine #:stop-engine
   #:engine-overloaded-p #:keeps-connections-p #:welcoming-p #:running-p #:serving-p #:drain-over-p
   #:engine-stopped-p #:stop-from-worker #:log-message #:*worker* #:worker-engine #:current-engine
   ;; memory that clients take
   #:*waiting-share* #:*request-share*
   #:change-reservation #:fits-in-heap-p
   #:make-room-in-heap
   ;; timers
   #:timer #:schedule #:cancel))
