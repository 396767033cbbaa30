;;;; Threads and connections.  See mutants.lisp for the form.

(:file "src/engine/ready/ownership.lisp" :suites (ownership steps time-outs progress ready slow-readers stress)
 :mutants
 (("become-owner" "(if over-p (change-ownership connection :ready-over) (change-ownership connection :ready))"
   "(change-ownership connection :ready)")
  ("become-owner" ":owned :closed)" ":closed)")
  ("claim-parked" ":owned :closed)" ":closed)")
  ("give-up-ownership" "(change-ownership connection :park) :arrived)"
   "(change-ownership connection :park) :closed)")
  ("end-ownership" ":expiring)" ":closed)")
  ("call-while-expiring" "(ownership-test before :owned)" "t")
  ("call-while-expiring" "(close-descriptor (connection-descriptor connection))" "nil")
  ("parked-p" ":owned :closed)" ":owned)"
   :equivalent "What is closed is in no table any more, or will not be in a moment.")))

(:file "src/engine/ready/connection-table.lisp" :suites (ownership steps time-outs ready)
 :mutants
 (("find-connection" "(= (connection-generation connection) (ash token -32))" "t")
  ("next-generation" "(ldb (byte +generation-bits+ 0) (1+ (the fixnum last)))" "(1+ (the fixnum last))")
  ("forget-connection" "(when (eq connection (svref page place))" "(progn")
  ("forget-connection" "(setf (svref page place) nil)" "nil")
  ("parked-connections" "(not (unfinished-p connection))" "t")
  ("parked-connections" "(parked-p connection)" "t")
  ("table-page" "(ash descriptor (- +page-bits+))" "0")))

(:file "src/engine/ready/event-queue.lisp" :suites (event-queue ready)
 :mutants
 (("take-event" "(wake-one-if-somebody-waits engine)" "nil")
  ("take-event" "(compare-and-set (engine-event-queue engine) tokens (rest tokens))"
   "(progn (setf (engine-event-queue engine) (rest tokens)) t)")
  ("queue-events" "(append before tokens)" "(append tokens before)")
  ("queue-events" "(append before tokens)" "tokens")
  ("queue-events" "(wake-one-if-somebody-waits engine)" "")
  ("wake-one-if-somebody-waits" "(somebody-waits-p engine)" "t")
  ("wake-one-if-somebody-waits" "(compare-and-set (engine-wakeup-pending-p engine) nil t)" "t")
  ("clear-wakeup" "(compare-and-set (engine-wakeup-pending-p engine) t nil)" "nil")))

(:file "src/engine/ready/worker-loop.lisp" :suites (ready event-queue steps time-outs progress slow-readers ready-faults)
 :mutants
 (("await-event" "(counter-add waiting -1)" "")
  ("await-event" "(or (take-event engine)" "(or nil" :suites (event-queue ready stress))
  ("await-event" "(when others (queue-other-events engine others))" "")
  ("queue-other-events" "(clear-wakeup engine)" "")
  ("queue-other-events" "(setf others (remove :wakeup others))" "")
  ("next-event" "(clear-wakeup engine)" "nil")
  ("handle-next-event" "(setf (ready-worker-stamp worker) 0)" "nil"
   :suites (ready pool-sizing event-queue))
  ("own-connection" "(token-hangup-p token)" "nil" :suites (ready steps time-outs differential))
  ("handle-ready-connection" "(connection-lingering-p connection)" "nil")
  ("serve-connection" "(setf (worker-connection worker) nil)" "")
  ("serve-connection" "(end-if-parked-too-late engine connection)" "nil"
   :suites (ready soft-stop ready-faults))
  ("serve-connection" "((gone-p connection))" "" :suites (ready progress conformance/detaching))
  ("serve-until-parked" "(count-failure engine)" "")
  ("serve-once" "(setf (connection-deadline connection) nil)" "")
  ("serve-once" "(setf (connection-untouched connection) nil)" "")
  ("serve-once" "(or (/= served (connection-served connection)) (note-stall engine))" "t")
  ("serve-once" "(and (arrived-p connection) (not (give-up-ownership connection)))" "nil"
   :equivalent "PARK finds it out, too, and answers :AGAIN.")
  ("serve-once" "(read-closed-p connection)" "nil")
  ("serve-once" "(not (serving-p engine))" "nil" :suites (ready soft-stop slow-readers))
  ("park" "(unless (connection-deadline connection)" "(progn"
   :suites (ready progress conformance/connections acceptor-faults))
  ("park" "(if (zerop (connection-served connection)) :first-byte :idle)" ":idle")
  ("leave-to-poller" "(setf (connection-untouched connection) :parked)" "")
  ("watch-connection" "(setf (connection-watched-p connection) t)" "t")
  ("end-if-parked-too-late" "(drop-connection engine connection)" "nil"
   :suites (ready soft-stop ready-faults))))

(:file "src/engine/ready/connection-time-outs.lisp" :suites (steps time-outs ready slow-readers progress soft-stop ready-faults)
 :mutants
 (("time-out-if-due" "(drain-time-out-p engine connection now)" "nil")
  ("time-out-connection" "(overdue-p connection now) (time-out-parked-connection engine connection now)"
   "t (time-out-parked-connection engine connection now)")
  ("time-out-connection" "(and (owner-may-wait-p connection) (overdue-p connection now)" "(and (owner-may-wait-p connection)")
  ("time-out-connection" "(and (owner-may-wait-p connection) (overdue-p connection now)" "(and (overdue-p connection now)")
  ("time-out-connection" "(time-left-to-take-p connection now)" "nil")
  ("time-out-connection" "(time-left-to-take-p connection now)" "t")
  ("owner-may-wait-p" "(null (connection-untouched connection))" "nil")
  ("owner-may-wait-p" "(unfinished-p connection)" "nil")
  ("owner-may-wait-p" "(not (amid-request-p connection))" "t")
  ("drain-time-out-p" "(not (unfinished-p connection))" "t")
  ("drain-time-out-p" "(drain-over-p engine now)" "nil")
  ("time-out-owned-connection" "(count-time-out engine connection)" "")
  ("time-out-owned-connection" "(setf (connection-deadline connection) nil)" "")
  ("time-out-owned-connection" "(shut-descriptor (connection-descriptor connection) :io)" "")
  ("time-out-parked-connection" "(peer-took-some-p connection)" "t")
  ("time-out-parked-connection" "(peer-took-some-p connection)" "nil")
  ("time-out-parked-connection" "(time-left-to-take-p connection now)" "nil")
  ("time-out-parked-connection" "(time-left-to-take-p connection now)" "t")
  ("time-out-parked-connection" "(count-time-out engine connection)" "")
  ("time-out-parked-connection" "((left-to-workers-p engine connection now))" "")
  ("end-idle-parked-connection" "(left-to-workers-p engine connection now)" "nil")
  ("left-to-workers-p" "(not (unfinished-p connection))" "t")
  ("left-to-workers-p" "((unwanted-p engine connection) nil)" "")
  ("left-to-workers-p" "(park-again engine connection) t)" "nil)")
  ("left-to-workers-p" "(connection-untouched connection) :left" "")
  ("unwanted-p" "(eql (connection-served-when-left connection) (connection-served connection))" "t")
  ("unwanted-p" "(not (all-read-p (engine-service engine) connection))" "t")
  ("left-to-workers-p" "(requeue-connection engine connection)" "(park-again engine connection)")
  ("park-again" "(end-if-parked-too-late engine connection)" "nil")
  ("park-again" "(requeue-connection engine connection)" "nil")
  ("end-with-notice" "(not (unfinished-p connection))" "t")
  ("end-with-notice" "(release-connection engine connection) (begin-to-linger connection now)" "(release-connection engine connection)")
  ("end-with-notice" "(requeue-connection engine connection)" "nil")
  ("notice-given-p" "(count-failure engine)" "")
  ("housekeep-when-due" "(accept-again engine)" "nil" :suites (ready-faults))
  ("longest-idle" "#'<" "#'>")
  ("longest-idle" "(longest-first (remove-if-not #'amid-request-p parked))" "nil")
  ("longest-idle" "(remove-if #'amid-request-p parked)" "parked")
  ("evict-if-idle" "((left-to-workers-p engine connection (milliseconds)))" "")
  ("evict-if-idle" "(unfinished-p connection)" "nil")
  ("evict-if-idle" "(park-again engine connection)" "nil")
  ("evict-if-idle" "(count-expired engine :evicted)" "nil")))

(:file "src/engine/ready/pending-output.lisp" :suites (slow-readers steps time-outs progress)
 :mutants
 (("send-pending-output" "(setf (connection-output connection) left)" "")
  ("send-pending-output" "(error :broken)" "")
  ("send-pending-output" "(or sent-p (null (connection-deadline connection)))" "t")
  ("send-pending-output" "(or sent-p (null (connection-deadline connection)))"
   "(null (connection-deadline connection))")
  ("send-pending-output" "(eq (connection-outcome connection) :park)" "t")
  ("peer-took-some-p" "(< -1 (unsent-octets (connection-descriptor connection)) unsent)"
   "(<= -1 (unsent-octets (connection-descriptor connection)) unsent)")
  ("time-left-to-take-p" "(peer-took-some-p connection)" "nil")
  ("time-left-to-take-p" "(<= now end)" "t")
  ("set-next-look" "(ceiling milliseconds +write-looks+)" "milliseconds")
  ("set-next-look" "(- end now)" "milliseconds")
  ("park-until-writable" "(shiftf (connection-output-watched-p connection) t)"
   "(connection-output-watched-p connection)")
  ("park-until-writable" "(rearm-connection engine connection)" "")))

(:file "src/engine/ready/closing-connections.lisp" :suites (ready steps time-outs slow-readers progress)
 :mutants
 (("forget-owned" "(drop-parts (shiftf (connection-output connection) '()))" ""
   :suites (slow-readers sent-files))
  ("forget-owned" "(forget-connection (engine-table engine) connection)" "")
  ("forget-owned" "(counter-add (engine-open-count engine) -1)" "")
  ("close-owned" "(close-descriptor (connection-descriptor connection))" "nil")
  ("abort-connection" "(unwatch-connection engine connection)" "" :suites (steps))
  ("detach" "(unwatch-connection engine connection)" "nil"
   :suites (ready progress conformance/detaching))
  ("close-gracefully" "(linger engine connection)" "nil")
  ("close-gracefully" "(cond (linger-p" "(cond (nil")
  ("close-gracefully" "(expecting-more-p engine connection)" "nil")
  ("close-gracefully" "(not (read-closed-p connection))" "t"
   :equivalent "What lingers sees that end at once.")
  ("unread-p" "(not (arrived-p connection))" "t")
  ("begin-to-linger" "(shut-descriptor (connection-descriptor connection) :output)" "")
  ("begin-to-linger" "(set-deadline connection :linger *linger-seconds* now)" "")
  ("drop-arrivals" "((minusp (decf (connection-linger-octets connection) count)) (return :end))" "")
  ("linger" "(overdue-p connection (milliseconds))" "nil")
  ("requeue-connection" "(queue-events engine (list (connection-token connection)))" "nil")))

(:file "src/engine/common/output-parts.lisp" :suites (slow-readers wires wire-output sent-files)
 :mutants
 (("drop-parts" "(close-descriptor file)" "nil")
  ("drop-parts" "(shiftf (file-part-file part) nil)" "(file-part-file part)")
  ("send-part" "(incf (part-position part) count)" "")
  ("send-parts" "(drop-parts (list (pop parts)))" "(pop parts)")
  ("send-parts" "((zerop count) (return (values parts sent-p +eio+)))" ""
   :equivalent "0 is taken for an error number then.")
  ("send-parts" "+eio+" "nil")))

(:file "src/engine/ready/accepting-connections.lisp" :suites (ready steps time-outs event-queue ready-faults)
 :mutants
 (("open-connection" "(counter-add (engine-open-count engine) 1)" "")
  ("open-connection" "(counter-add (engine-accept-count engine) 1)" "")
  ("refused-p" "(> (open-count engine) limit)" "(>= (open-count engine) limit)"
   :equivalent "The new one is open, and does not want anything yet, so fewer than the limit do.")
  ("refuse-connection" "(incf (engine-refused engine))" "")
  ("take-connection" "(note-accepted engine)" "")
  ("note-accepted" "(not (eq (engine-accept-trouble engine) 'descriptors-exhausted))" "t")
  ("note-failed-accept" "(:gone t)" "(:gone nil)")
  ("note-backlog-empty" "(forget-accept-trouble engine)" "nil")
  ("note-backlog-empty" "(somebody-to-accept-p engine)" "nil")
  ("accept-again" "(note-backlog-empty engine)" "(progn (note-backlog-empty engine) nil)")
  ("accept-others" "(requeue-listener engine worker)" "nil")
  ("accept-others" "(drop-connection engine connection)" "nil")
  ("requeue-listener" "(rearm-listener engine)" "nil")
  ("accept-rest" "(engine-accepting-p engine)" "t" :suites (steps))
  ("requeue-listener" "(< (incf (ready-worker-accepted worker)) +accept-batch+)" "t")
  ("accept-for-others" "(rearm-listener engine)" "nil")))

(:file "src/engine/ready/suspended-workers.lisp" :suites (ready ready-faults pool-sizing)
 :mutants
 (("target-met-p" ">=" ">")
  ("one-of-excess-p" "(plusp excess)" "t")
  ("await-resume" "(or (not (serving-p engine)) (dispensable-p engine worker))" "(not (serving-p engine))")
  ("dispensable-p" "(> (pool-size engine) (engine-standby engine))" "t")
  ("resume-workers" "(bt:condition-notify (ready-worker-resumed worker))" "t")
  ("resume-workers" "(incf (engine-resumes engine))" "nil")))

(:file "src/engine/common/worker-pool.lisp" :suites (blocking faults lifecycle ready)
 :mutants
 (("set-worker-state" "(decf (svref (engine-counts engine) (state-index (worker-state worker))))" "")
  ("pool-limit" "(1+ limit)" "limit")
  ("room-p" "(< (pool-size engine) limit)" "(<= (pool-size engine) limit)")
  ("full-p" "(>= (busy-count engine) limit)" "(> (busy-count engine) limit)")
  ("retire" "(incf (engine-served-before engine) (worker-served worker))" "")
  ("retire" "(unless (eq (worker-state worker) :ended)" "(progn")
  ("run-worker" "(release-resources-when-empty engine)" "")
  ("reap-worker" "(close-orphaned-connection engine connection)" "nil" :suites (blocking))
  ("launch" "(retire worker)" "nil")
  ("launch" "(note-thread-trouble engine condition)" "")
  ("launch" "(forget-thread-trouble engine)" "")))
