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
 (("wait-for-events" "(counter-add waiting -1)" "" :suites (ready event-queue))
  ("wait-for-events" "(or (take-event engine)" "(or nil" :suites (event-queue ready stress))
  ("queue-other-events" "(clear-wakeup engine)" "" :suites (ready event-queue))
  ("queue-other-events" "(setf others (remove :wakeup others))" "" :suites (ready event-queue))
  ("next-event" "(clear-wakeup engine)" "nil" :suites (ready event-queue))
  ("take-event" "(wake-one-if-somebody-waits engine)" "nil")
  ("take-event" "(compare-and-set (engine-event-queue engine) queue left)"
   "(progn (setf (engine-event-queue engine) left) t)" :suites (event-queue ready stress))
  ("take-event" "(or first (reverse behind))" "(or first behind)")
  ("queue-events" "(revappend tokens (cdr before))" "(append tokens (cdr before))")
  ("queue-events" "(revappend tokens (cdr before))" "(reverse tokens)" :suites (interrupts))
  ("queue-events" "(wake-one-if-somebody-waits engine)" "")
  ("wake-one-if-somebody-waits" "(somebody-waits-p engine)" "t")
  ("wake-one-if-somebody-waits" "(compare-and-set (engine-wakeup-pending-p engine) nil t)" "t")
  ("clear-wakeup" "(compare-and-set (engine-wakeup-pending-p engine) t nil)" "nil")))

(:file "src/engine/ready/worker-loop.lisp" :suites (ready event-queue steps time-outs progress slow-readers ready-faults)
 :mutants
 (("attend-timers-in" "(call-for-timers engine)" "nil" :suites (timers))
  ("worker-loop" "(setf (ready-worker-stamp worker) 0)" "nil"
   :suites (ready pool-sizing event-queue))
  ("own-connection" "(token-hangup-p token)" "nil" :suites (ready steps time-outs differential))
  ("handle-event" "(connection-lingering-p connection)" "nil")))

(:file "src/engine/ready/connection-time-outs.lisp" :suites (steps time-outs ready slow-readers progress soft-stop ready-faults)
 :mutants
 (("time-out-if-due" "(or (overdue-p connection now) (drain-time-out-p engine connection now))" "(overdue-p connection now)")
  ("time-out-if-due" "(overdue-p connection now) (time-out-parked-connection engine connection now)"
   "t (time-out-parked-connection engine connection now)")
  ("time-out-if-due" "(and (owner-may-wait-p connection) (overdue-p connection now)" "(and (owner-may-wait-p connection)")
  ("time-out-if-due" "(and (owner-may-wait-p connection) (overdue-p connection now)" "(and (overdue-p connection now)")
  ("time-out-if-due" "(output-in-time-p connection now)" "nil")
  ("time-out-if-due" "(output-in-time-p connection now)" "t")
  ("owner-may-wait-p" "(null (connection-untouched connection))" "nil")
  ("owner-may-wait-p" "(unfinished-p connection)" "nil")
  ("owner-may-wait-p" "(not (amid-request-p connection))" "t")
  ("drain-time-out-p" "(not (unfinished-p connection))" "t")
  ("drain-time-out-p" "(drain-over-p engine now)" "nil")
  ("time-out-owned-connection" "(count-time-out engine connection)" "")
  ("time-out-owned-connection" "(setf (connection-deadline connection) nil)" "")
  ("time-out-owned-connection" "(shut-descriptor (connection-descriptor connection) :io)" "")
  ("time-out-parked-connection" "(taken-in-time-p connection now)" "nil")
  ("time-out-parked-connection" "(count-time-out engine connection)" "")
  ("time-out-parked-connection" "((left-to-workers-p engine connection now))" "")
  ("end-idle-parked-connection" "(left-to-workers-p engine connection now)" "nil")
  ("housekeep-when-due" "(accept-again engine)" "nil" :suites (ready-faults))))

(:file "src/engine/ready/pending-output.lisp" :suites (slow-readers steps time-outs progress)
 :mutants
 (("send-wanted-output" "(failure :broken)" "")
  ("send-wanted-output" "(not (unread-input-kept-p engine connection))" "nil" :suites (giving-way))
  ("send-wanted-output" "(reset-taking queue)" "nil")
  ("send-wanted-output" "(or sent-p (null (connection-deadline connection)))" "t")
  ("send-wanted-output" "(or sent-p (null (connection-deadline connection)))"
   "(null (connection-deadline connection))")
  ("send-wanted-output" "(member (connection-outcome connection) '(:park :deferred))" "t")
  ("taken-in-time-p" "(not (taker-given-up-p queue now))" "t")
  ("taken-in-time-p" "(send-queue-looked queue)" "t")
  ("park-until-writable" "(setf (connection-watched connection) :both)" "")
  ("park-until-writable" "(rearm (engine-poller engine) (connection-descriptor connection) (connection-token connection) t)" "nil")))

(:file "src/engine/ready/closing-connections.lisp" :suites (ready steps time-outs slow-readers progress)
 :mutants
 (("release-owned" "(close-owned engine connection)" "nil" :suites (clack/socket-mishaps))
  ("forget-owned" "(clear-queue (connection-queue connection))" ""
   :suites (slow-readers sent-files))
  ("forget-owned" "(forget-connection (engine-table engine) connection)" "")
  ("forget-owned" "(counter-add (tally-open (engine-tally engine)) -1)" "")
  ("close-owned" "(close-descriptor (connection-descriptor connection))" "nil")
  ("abort-connection" "(unwatch-connection engine connection)" "" :suites (steps))
  ("detach" "(unwatch-connection engine connection)" "nil"
   :suites (ready progress conformance/detaching))))

(:file "src/engine/common/send-queue.lisp" :suites (slow-readers buffered-connections io-output sent-files)
 :mutants
 (("drop-parts" "(close-descriptor file)" "nil")
  ("drop-parts" "(shiftf (file-part-file part) nil)" "(file-part-file part)")
  ("skip-octets" "(incf (part-position part) sent)" "")
  ("skip-octets" "(decf count sent)" "" :suites (files tls))
  ("gather-octets" "(not (step-part-p part))" "t" :suites (handshakes)
   :equivalent "Nothing follows or comes before a step.")
  ("send-parts" "(drop-parts (list (pop parts)))" "(pop parts)")
  ("send-parts" "((zerop count) (return (values parts sent-p +eio+)))" ""
   :equivalent "0 is taken for an error number then.")
  ("send-parts" "+eio+" "nil")
  ("enqueue" "(append (send-queue-parts queue) parts)" "parts" :suites (reply-streams))
  ("enqueue" "(incf (send-queue-owed queue) (count-octets parts))" "nil" :suites (time-outs))
  ("count-octets" "(part-position part)" "0" :suites (reply-streams))
  ("flush-queue" "(setf (send-queue-parts queue) left)" "")
  ("clear-queue" "(drop-parts (shiftf (send-queue-parts queue) '()))" "nil" :suites (io-output))))

(:file "src/engine/common/slow-readers.lisp"
 :suites (time-outs slow-readers reply-streams slow-streams)
 :mutants
 (("octets-owed" "(queued-octets queue)" "0")
  ("octets-taken-since" "(- before owed)" "(- owed before)")
  ("look-at-taker" "(+ now (send-queue-milliseconds queue))" "now")
  ("look-at-taker" "(- (send-queue-waited queue))" "0")
  ("limit-taking" "(* 1000 grace)" "0")
  ("look-at-taker" "(incf (send-queue-taken queue) taken)" "nil")
  ("look-at-taker" "(plusp taken)" "nil")
  ("look-at-taker" "(null looked)" "nil")
  ("next-look-at-taker" "(ceiling milliseconds +looks+)" "milliseconds")
  ("next-look-at-taker" "(min end" "(max end")
  ("patience-left-p" "(not (taker-given-up-p queue now))" "nil")
  ("patience-left-p" "(plusp (octets-taken-since queue (octets-owed queue descriptor)))" "nil")
  ("end-wait" "(send-queue-looked queue) nil" "(send-queue-looked queue) 0")))

(:file "src/engine/ready/accepting-connections.lisp" :suites (ready steps time-outs event-queue ready-faults)
 :mutants
 (("open-connection" "(counter-add (tally-open (engine-tally engine)) 1)" "")
  ("open-connection" "(counter-add (tally-accepted (engine-tally engine)) 1)" "")
  ("refused-p" "(> (open-count engine) limit)" "(>= (open-count engine) limit)"
   :equivalent "The new one is open, and does not want anything yet, so fewer than the limit do.")
  ("refuse-connection" "(incf (tally-refused (engine-tally engine)))" "")
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
  ("resume-workers" "(incf (tally-resumes (engine-tally engine)))" "nil")
  ("end-suspension" "(ready-worker-away worker) 0" "(ready-worker-away worker) 1" :suites (interrupts))))

(:file "src/engine/common/worker-pool.lisp" :suites (blocking faults lifecycle ready)
 :mutants
 (("set-worker-state" "(decf (svref (engine-counts engine) (state-index (worker-state worker))))" "")
  ("pool-limit" "(1+ limit)" "limit")
  ("room-p" "(< (pool-size engine) limit)" "(<= (pool-size engine) limit)")
  ("full-p" "(>= (busy-count engine) limit)" "(> (busy-count engine) limit)")
  ("retire" "(incf (tally-served-before (engine-tally engine)) (worker-served worker))" "")
  ("retire" "(unless (eq (worker-state worker) :ended)" "(progn")
  ("retire" "(remove worker (engine-workers engine))" "(delete worker (engine-workers engine))" :suites (interrupts))
  ("run-worker" "(release-resources-when-empty engine)" "")
  ("reap-worker" "(close-orphaned-connection engine connection)" "nil" :suites (blocking))
  ("launch" "(retire worker)" "nil")
  ("launch" "(note-thread-trouble engine condition)" "")
  ("launch" "(forget-thread-trouble engine)" "")))

(:file "src/engine/common/timer-heap.lisp" :suites (timers)
 :mutants
 (("due-before-p" "(< deadline other-deadline)" "(<= deadline other-deadline)")
  ("due-before-p" "(< (timer-number timer) (timer-number other))" "nil")
  ("rise" "(setf place parent)" "(setf place 0)")
  ("first-child" "(< right (timers-count timers))" "t")
  ("first-child" "(>= left (timers-count timers))" "(> left (timers-count timers))")
  ("remove-timer" "(timer-place removed) -1" "(timer-place removed) 0")
  ("remove-timer" "(setf (svref (timers-entries timers) last) nil" "(setf")
  ("remove-timer" "(rise timers (free-bottom timers place) deadline moved)"
   "(put-timer timers (free-bottom timers place) deadline moved)")
  ("remove-timer" "(shiftf (timer-function removed) nil)" "(timer-function removed)")
  ("grow-heap" "(< (length (timers-entries timers)) size)" "t" :equivalent "It is made anew, with all there is.")
  ("full-heap-p" "(= (timers-count timers) (length (timers-entries timers)))" "nil")
  ("alarm-moment" "ceiling" "floor")
  ("claim-alarm" "(< moment (timers-alarm timers))" "t")
  ("claim-alarm" "(if (timers-setting timers) :again :once)" ":once")
  ("claim-alarm" "(if (timers-setting timers) :again :once)" "(or (timers-setting timers) :once)")
  ("end-setting" "(if (eq :again (timers-setting timers)) :once nil)" "nil")
  ("claim-next-alarm" "(<= (timers-alarm timers) now)" "nil")
  ("claim-next-alarm" "(plusp (timers-count timers))" "nil")
  ("add-timer" "(setf (timer-function timer) nil)" "")
  ("add-timer" "(incf (timers-dropped timers))" "")
  ("add-timer" "(zerop (timer-place timer))" "t"
   :equivalent "The alarm is set to no later than for whoever is before it; this spares a division.")
  ("take-due-timer" "(incf (timers-run timers))" "")
  ("take-due-timer" "((due-p) :due)" "")
  ("cancel-timer-of" "(unless (minusp (timer-place timer))" "(progn")
  ("cancel-timer-of" "(incf (timers-cancelled timers))" "")
  ("close-timers" "(setf (timers-closed-p timers) t)" "")
  ("close-timers" "(incf (timers-dropped timers) (timers-count timers))" "")
  ("close-timers" "(bt:condition-notify (timers-changed timers))" "nil")))

(:file "src/engine/common/timer-alarm.lisp" :suites (timers)
 :mutants
 (("set-alarm" "(end-setting timers)" "(progn (end-setting timers) t)")
  ("run-timer" "(schedule engine 0 function)" "nil")
  ("run-timer" "(begun-p (count-failed-timer (engine-timers engine)))" "(begun-p)")
  ("schedule" "(grow-heap timers)" "(return)")
  ("deadline-after" "(min *most-slack-microseconds* (floor delay *slack-divisor*))" "(floor delay *slack-divisor*)")
  ("deadline-after" "(< slack (* 2 *alarm-microseconds*))" "nil")
  ("deadline-after" "(* grid (ceiling deadline grid))" "(* grid (floor deadline grid))")
  ("enter-and-set-alarm" "(set-alarm engine)" "nil")
  ("next-due-function" "(eq next :set)" "nil")
  ("next-due-function" "(eq next :due)" "nil")
  ("run-timer" "(setf done-p t)" "")
  ("run-timer" "(count-failed-timer (engine-timers engine))" "nil")
  ("run-timer" "(log-message engine :error" "(list engine :error")))

(:file "src/engine/common/timer-thread.lisp" :suites (timers)
 :mutants
 (("replace-timer-thread" "(start-timer-thread engine)" "nil")
  ("start-timer-thread" "(record-timer-thread engine claim thread)" "nil")
  ("record-timer-thread" "(eq claim (engine-timer-thread engine))" "t")
  ("begin-timer-thread" "(setf (timers-alarm (engine-timers engine)) 0)" "nil")
  ("end-timer-thread" "(if closed-p nil :missing)" "nil")
  ("await-end-of-timers" "(wait-for-change engine seconds (lambda () (timer-thread-gone-p engine)))" "nil")))

(:file "src/engine/ready/ready-timers.lisp" :suites (timers)
 :mutants
 (("acquire-timer-descriptor" "(release-timer-descriptor engine)" "nil")
  ("acquire-timer-descriptor" "(note-missing-timer-descriptor engine descriptor)" "nil")
  ("release-timer-descriptor" "(close-descriptor descriptor)" "nil")
  ("set-alarm-clock ((engine ready-engine)" "(call-next-method)" "nil")
  ("attend-timers ((engine ready-engine)" "(call-for-timers engine)" "nil")
  ("ring-again" "(set-alarm engine)" "nil")
  ("run-due-timers" "(return (ring-again engine))" "nil")
  ("run-due-timers" "(call-for-timers engine)" "nil")))

(:file "src/engine/ready/resuming-connections.lisp" :suites (slow-readers websockets)
 :mutants
 (("serve-resumption" "(null (connection-output connection))" "t" :suites (slow-readers))
  ("end-owned-resumption" "(leave-to-worker engine connection)" "nil")
  ("end-resumption" "(given-away-outcome connection)" "nil" :suites (ready))
  ("end-resumption" "(or result (given-away-outcome connection) :broken)" "(or result :close)"
   :suites (ready))
  ("end-resumption" "(:parked (end-resumed" "(:none (end-resumed" :suites (ready))))

(:file "src/engine/ready/serving-connections.lisp" :suites (ready event-queue steps time-outs progress slow-readers ready-faults)
 :mutants
 (("serve-connection" "(setf (worker-connection worker) nil)" "")
  ("end-service" "(end-if-parked-too-late engine connection)" "nil"
   :suites (ready soft-stop ready-faults))
  ("end-service" "((gone-p connection))" "" :suites (ready progress conformance/detaching))
  ("serve-once" "(setf (connection-deadline connection) nil)" "")
  ("serve-once" "(setf (connection-untouched connection) nil (connection-outcome connection) nil"
   "(setf (connection-outcome connection) nil")
  ("settle-outcome" "(setf (connection-awaiting connection) :answer)" "" :suites (deferred-replies))
  ("settle-outcome" "(eql served (connection-served connection))" "nil")
  ("settle-served" "(ownership-test ownership :arrived)" "nil" :suites (ready progress conformance/connections))
  ("settle-served" "(ownership-test ownership :read-closed)" "nil")
  ("settle-served" "(not (serving-p engine))" "nil" :suites (ready soft-stop slow-readers))
  ("serve-connection" "finally (return :later)" "" :suites (interrupts))
  ("queue-for-next-turn" "(setf (ready-worker-taken worker) +event-batch+)" "nil" :suites (interrupts))))

(:file "src/engine/ready/parking-connections.lisp" :suites (ready event-queue steps time-outs progress slow-readers ready-faults)
 :mutants
 (("park" "(unless (connection-deadline connection)" "(progn"
   :suites (ready progress conformance/connections acceptor-faults))
  ("park" "(if (zerop (connection-served connection)) :first-byte :idle)" ":idle")
  ("leave-to-poller" "(setf (connection-untouched connection) :parked)" "")
  ("watch-connection" "(setf (connection-watched connection) interest)" "t")
  ("end-if-parked-too-late" "(drop-connection engine connection)" "nil"
   :suites (ready soft-stop ready-faults))
  ("park-again" "(end-if-parked-too-late engine connection)" "nil"
   :suites (steps time-outs ready slow-readers progress soft-stop ready-faults))
  ("park-again" "(requeue-connection engine connection)" "nil"
   :suites (steps time-outs ready slow-readers progress soft-stop ready-faults))
  ("give-up-unread" "(connection-input connection) :missed" "" :suites (deferred-replies))
  ("queue-parked" "(queue-events engine (list (connection-token connection)))" "nil"
   :suites (ready steps time-outs slow-readers progress))
  ("leave-to-worker" "(end-resumed-too-late engine connection)" "nil" :suites (ready))
  ("end-resumed-too-late" "(eq :stopped (engine-phase engine))" "(not (serving-p engine))" :suites (ready))
  ("end-resumed-too-late" "(end-if-parked-too-late engine connection)" "nil" :suites (ready))))

(:file "src/engine/ready/ready-engine.lisp" :suites (ready)
 :mutants
 (("look-around" "(setf (ready-worker-away worker) 0)" "nil" :suites (pool-sizing interrupts))
  ("look-around" "(wake-sentinel-if-nobody-waits engine (engine-pool-state engine))" "nil"
   :equivalent "An idle sentinel looks once in a second."
   :suites (ready event-queue steps time-outs progress slow-readers ready-faults))))

(:file "src/engine/ready/evictions.lisp" :suites (steps time-outs ready slow-readers progress soft-stop ready-faults)
 :mutants
 (("left-to-workers-p" "(not (unfinished-p connection))" "t")
  ("left-to-workers-p" "((unwanted-p connection) nil)" "")
  ("left-to-workers-p" "(park-again engine connection) t)" "nil)")
  ("left-to-workers-p" "(connection-untouched connection) :left" "")
  ("unwanted-p" "(eql (connection-served-when-left connection) (connection-served connection))" "t")
  ("unwanted-p" "(not (eq :read (connection-input connection)))" "t")
  ("left-to-workers-p" "(requeue-connection engine connection)" "(park-again engine connection)")
  ("end-with-notice" "(not (unfinished-p connection))" "t")
  ("end-with-notice" "(release-owned engine connection) (begin-to-linger connection now)" "(release-owned engine connection)")
  ("end-with-notice" "(requeue-connection engine connection)" "nil")
  ("notice-given-p" "(count-failure engine)" "")
  ("longest-idle" "(longest-first (remove-if-not #'amid-request-p parked))" "nil")
  ("longest-idle" "(remove-if #'amid-request-p parked)" "parked")
  ("evict-if-idle" "((left-to-workers-p engine connection (milliseconds)))" "")
  ("evict-if-idle" "(unfinished-p connection)" "nil")
  ("evict-if-idle" "(park-again engine connection)" "nil")
  ("evict-if-idle" "(count-expired engine :evicted)" "nil")))

(:file "src/engine/ready/lingering-connections.lisp" :suites (ready steps time-outs slow-readers progress)
 :mutants
 (("close-lingering" "(linger engine connection)" "nil")
  ("close-gracefully" "(release-owned engine connection)" "(progn (release-owned engine connection) nil)")
  ("close-gracefully" "(unread-p connection)" "nil")
  ("close-gracefully" "(not (read-closed-p connection))" "t"
   :equivalent "What lingers sees that end at once.")
  ("known-read-p" "(not (arrived-p connection))" "t")
  ("begin-to-linger" "(shut-descriptor (connection-descriptor connection) :output)" "")
  ("begin-to-linger" "(set-deadline connection :linger *linger-seconds* now)" "")
  ("drop-arrivals" "((minusp (decf (connection-linger-octets connection) count)) (return :end))" "")
  ("linger" "(overdue-p connection (milliseconds))" "nil")))
