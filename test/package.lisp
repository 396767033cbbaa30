(defpackage #:hunchentoot-recycling-taskmaster-test
  (:documentation "The tests.  RUN-ALL runs them.")
  (:use #:common-lisp #:fiveam)
  (:shadow #:test)
  ;; What the tests in engine/ and server/ pin of the inside: state machines and models, which they
  ;; take through their states by hand.  Other tests write two colons where they reach inside.
  (:import-from #:hunchentoot-recycling-taskmaster.engine
                #:*alarm-microseconds* #:*arrival-seconds* #:*brief-ticks*
                #:*computing-microseconds* #:*count-milliseconds* #:*decisions* #:*drain-seconds*
                #:*idle-looks* #:*idle-tick* #:*linger-seconds* #:*long-nap-ticks*
                #:*overload-idle-milliseconds* #:*ownership-bits* #:*ownership-rules*
                #:*poll-milliseconds* #:*processors* #:*suspension-seconds* #:*tick*
                #:*tick-microseconds* #:*trouble-seconds* #:*watch-looks* #:+accept-batch+
                #:+most-descriptors+ #:+timer-batch+ #:accept-again #:accept-again-p
                #:accept-and-park #:accept-for-others #:accept-one #:accept-open-p
                #:accept-or-back-off #:accept-others #:accept-overflow #:accept-rest
                #:accept-trouble #:accept-users #:accepting-p #:add-timer #:add-workers
                #:adjust-pool #:admit #:advance-phase #:alarm-moment #:apply-thread-limit
                #:arrived-p #:asleep-p #:assign-connection #:await-alarm #:await-event
                #:await-resume #:await-sentinel #:back-off #:become-idle #:become-owner
                #:begin-suspension #:begin-to-linger #:busy-or-readable-count #:call-due-functions
                #:call-while-expiring #:claim-next-alarm #:claim-parked #:clear-wakeup
                #:close-connection #:close-owned #:close-timers #:coarse-now
                #:collection-due-p #:collections-ended #:collections-took #:collections-used
                #:computed-for-long-p
                #:connection-linger-octets #:connection-lingering-p #:connection-token
                #:controller-asleep-lately #:controller-decisions #:controller-idle-looks
                #:controller-last-processor-count #:controller-looks-without-need
                #:controller-processors #:count-decision #:count-expired
                #:count-processors #:delay-microseconds #:discount-sentinel #:drain-time-out-p
                #:draining-p #:drop-arrivals #:drop-connection #:durations-counted
                #:end-idle-connections #:end-input #:end-input-of #:end-overdue-connections
                #:end-resumption #:end-setting #:end-suspension #:engine-accept-state
                #:engine-counts #:engine-event-queue #:engine-listener-descriptor #:engine-lock
                #:engine-phase #:engine-poller #:engine-pool-state #:engine-probe #:engine-queue
                #:engine-resources-held-p #:engine-sentinel #:engine-suspended #:engine-table
                #:engine-tally #:engine-threads #:engine-timer-descriptor #:engine-timers
                #:engine-workers #:ensure-sentinel #:enter-connection #:evict-idle-connections
                #:find-connection #:forget-accept-trouble #:forget-connection
                #:forget-thread-trouble #:give-up-ownership #:gone-p #:grow-heap
                #:handle-connection #:handle-event #:histogram #:housekeep #:housekeep-when-due
                #:idle-too-long-p #:idle-wait #:idle-wait-seconds #:join-exited-threads #:launch
                #:launch-all #:leave-to-poller #:linger #:long-naps-p #:longest-idle
                #:look-at-output #:look-at-workers #:lost-sentinel-p #:maintain-pool
                #:make-collections
                #:make-connection #:make-controller #:make-engine-controller #:make-missing-workers
                #:make-pool-worker #:make-table #:make-timer #:make-timers #:map-connections
                #:may-launch-p #:missing-workers #:next-deadline #:next-due-function
                #:next-generation #:next-step #:no-expirations #:no-workers #:note-accept-trouble
                #:note-accepted #:note-backlog-empty #:note-duration #:note-failed-accept
                #:note-shared-duration #:note-thread-trouble #:note-wait #:one-of-excess-p
                #:open-connection #:own-connection #:ownership-changes #:ownership-word #:park
                #:park-again #:parked-connections #:parked-p #:pause-after-failure #:peer-text
                #:pool-state-calm-p #:pool-state-clock #:pool-state-clock-stopped-p
                #:pool-state-excess #:pool-state-floor #:pool-state-idle
                #:pool-state-sentinel-idle-p #:pool-state-target #:pool-state-tick
                #:pool-state-waiting #:probe-latest #:probe-sent #:probe-wait #:probe-waits
                #:processor-free-p #:queue-events #:queue-for-next-turn #:queue-other-events
                #:read-closed-p #:ready-worker-away #:ready-worker-begun
                #:ready-worker-blocked-stamp #:ready-worker-stamp #:rearm-listener
                #:record-sentinel #:record-timer-thread #:refuse-and-close #:refuse-connection
                #:release-connection #:release-output #:release-resources-when-empty
                #:replace-sentinel-p #:request-sentinel #:requeue-connection #:requeue-listener
                #:reserve-output #:reserve-worker #:rest-after-look #:resting-p #:resume-clock
                #:resume-workers #:retire #:ring-again #:run-due-timers #:run-worker #:sample-wait
                #:sample-wait-when-busy #:send-queue-reserved #:sentinel-count
                #:sentinel-failing-parts #:sentinel-lost-p #:sentinel-thread #:serve-connection
                #:serve-once #:serve-resumption #:serve-to-the-end #:set-alarm-clock
                #:set-worker-state #:settle-outcome #:size-pool #:somebody-waits-p #:start-refused
                #:start-sentinel #:state-index #:stop-for-exit #:table-generation #:take-alarm
                #:take-connection #:take-due-timer #:take-event #:tally-accepted #:tally-drain-end
                #:tally-open #:tally-served-before #:tally-served-by-resuming-threads
                #:tally-started #:tally-stopped #:thread-trouble-p #:threads-exited
                #:threads-launch-after #:threads-trouble-p #:time-out-if-due #:timer-function
                #:timer-number #:timer-place #:timer-statistics #:timers-alarm #:timers-count
                #:timers-entries #:timers-lock #:timers-setting #:timers-thread
                #:unanswered-connections #:unread-p #:usable-processors #:wait-a-tick
                #:wake-sentinel #:wake-sentinel-if-nobody-waits #:watch-connection #:with-engine
                #:work-finished-p #:worker #:worker-connection #:worker-count #:worker-durations
                #:worker-since #:worker-state #:worker-thread)
  (:import-from #:hunchentoot-recycling-taskmaster.server
                #:*batch-octets* #:*flush-seconds* #:*journal-octets* #:*metrics* #:*turns*
                #:await-lines #:call-with-turn #:decimal-text #:gather #:journal-kept #:journal-lock
                #:journal-phase #:journal-thread #:journal-wanted #:keep-journal #:prometheus-text
                #:take-turn #:with-journal)
  ;; What the operators of Clack's package clack.socket call, which need not be there.
  (:import-from #:clack.handler.recycling
                #:buffer-for-clack-socket #:close-clack-socket #:flush-clack-socket
                #:set-clack-socket-callback #:write-to-clack-socket)
  (:local-nicknames (#:base #:hunchentoot-recycling-taskmaster.base)
                    (#:platform #:hunchentoot-recycling-taskmaster.platform)
                    (#:http #:hunchentoot-recycling-taskmaster.http)
                    (#:websocket #:hunchentoot-recycling-taskmaster.websocket)
                    (#:engine #:hunchentoot-recycling-taskmaster.engine)
                    (#:server #:hunchentoot-recycling-taskmaster.server)
                    (#:recycling #:hunchentoot-recycling-taskmaster)
                    #+sbcl (#:postgresql #:hunchentoot-recycling-taskmaster.postgresql)
                    (#:handler #:clack.handler.recycling))
  (:export #:run-all #:all #:unknown-suite))
