;;;; Threads and connections.  See mutants.lisp for the form.

(:file "src/engine/ownership.lisp" :suites (ownership steps sweeping progress ready slow-readers stress)
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

(:file "src/engine/table.lisp" :suites (ownership steps sweeping ready)
 :mutants
 (("find-connection" "(= (connection-generation connection) (ash token -32))" "t")
  ("next-generation" "(ldb (byte +generation-bits+ 0) (1+ (the fixnum last)))" "(1+ (the fixnum last))")
  ("forget-connection" "(when (eq connection (svref page place))" "(progn")
  ("forget-connection" "(setf (svref page place) nil)" "nil")
  ("parked-connections" "(not (unfinished-p connection))" "t")
  ("parked-connections" "(parked-p connection)" "t")
  ("table-page" "(ash descriptor (- +page-bits+))" "0")))

(:file "src/engine/tray.lisp" :suites (tray ready)
 :mutants
 (("take-from-tray" "(summon-if-somebody-waits engine)" "nil")
  ("take-from-tray" "(compare-and-set (engine-tray engine) tokens (rest tokens))"
   "(progn (setf (engine-tray engine) (rest tokens)) t)")
  ("leave-on-tray" "(append before tokens)" "(append tokens before)")
  ("leave-on-tray" "(append before tokens)" "tokens")
  ("leave-on-tray" "(summon-if-somebody-waits engine)" "")
  ("summon-if-somebody-waits" "(somebody-waits-p engine)" "t")
  ("summon-if-somebody-waits" "(compare-and-set (engine-summoned-p engine) nil t)" "t")
  ("answer-summons" "(compare-and-set (engine-summoned-p engine) t nil)" "nil")))

(:file "src/engine/ready.lisp" :suites (ready tray steps sweeping progress slow-readers ready-faults)
 :mutants
 (("await-token" "(counter-add waiting -1)" "")
  ("await-token" "(or (take-from-tray engine)" "(or nil" :suites (tray ready stress))
  ("await-token" "(when others (leave-others engine others))" "")
  ("leave-others" "(answer-summons engine)" "")
  ("leave-others" "(setf others (remove :summons others))" "")
  ("next-token" "(answer-summons engine)" "nil")
  ("look-for-work" "(setf (ready-worker-stamp worker) 0)" "nil"
   :suites (ready pacing tray))
  ("own-connection" "(token-hangup-p token)" "nil" :suites (ready steps sweeping differential))
  ("tend-connection" "(connection-lingering-p connection)" "nil")
  ("serve-while-ready" "(setf (worker-connection worker) nil)" "")
  ("serve-while-ready" "(end-if-parked-too-late engine connection)" "nil"
   :suites (ready soft-stop ready-faults))
  ("serve-while-ready" "((gone-p connection))" "" :suites (ready progress conformance/detaching))
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

(:file "src/engine/sweeping.lisp" :suites (steps sweeping ready slow-readers progress soft-stop ready-faults)
 :mutants
 (("end-overdue-connection" "(drained-p engine connection now)" "nil")
  ("end-late-connection" "(overdue-p connection now) (end-parked-connection engine connection now)"
   "t (end-parked-connection engine connection now)")
  ("end-late-connection" "(and (held-p connection) (overdue-p connection now))" "(held-p connection)")
  ("end-late-connection" "(and (held-p connection) (overdue-p connection now))" "(overdue-p connection now)")
  ("held-p" "(null (connection-untouched connection))" "nil")
  ("held-p" "(unfinished-p connection)" "nil")
  ("drained-p" "(not (unfinished-p connection))" "t")
  ("drained-p" "(drain-over-p engine now)" "nil")
  ("expire-owned" "(count-expiry engine connection)" "")
  ("expire-owned" "(setf (connection-deadline connection) nil)" "")
  ("expire-owned" "(shut-descriptor (connection-descriptor connection) :io)" "")
  ("end-parked-connection" "(peer-took-some-p connection)" "t")
  ("end-parked-connection" "(peer-took-some-p connection)" "nil")
  ("end-parked-connection" "(count-expiry engine connection)" "")
  ("end-parked-connection" "((left-to-workers-p engine connection now))" "")
  ("end-drained-connection" "(left-to-workers-p engine connection now)" "nil")
  ("left-to-workers-p" "(not (unfinished-p connection))" "t")
  ("left-to-workers-p" "((unwanted-p engine connection) nil)" "")
  ("left-to-workers-p" "(park-again engine connection) t)" "nil)")
  ("left-to-workers-p" "(connection-untouched connection) :left" "")
  ("unwanted-p" "(eql (connection-served-when-left connection) (connection-served connection))" "t")
  ("unwanted-p" "(not (all-read-p (engine-service engine) connection))" "t")
  ("left-to-workers-p" "(tend-connection-later engine connection)" "(park-again engine connection)")
  ("park-again" "(end-if-parked-too-late engine connection)" "nil")
  ("park-again" "(tend-connection-later engine connection)" "nil")
  ("dismiss" "(not (unfinished-p connection))" "t")
  ("dismiss" "(let-go engine connection) (begin-to-linger connection now)" "(let-go engine connection)")
  ("dismiss" "(tend-connection-later engine connection)" "nil")
  ("notice-given-p" "(count-failure engine)" "")
  ("sweep" "(accept-again engine)" "nil" :suites (ready-faults))
  ("longest-idle" "#'<" "#'>")
  ("end-if-idle" "((left-to-workers-p engine connection (milliseconds)))" "")
  ("end-if-idle" "(unfinished-p connection)" "nil")
  ("end-if-idle" "(park-again engine connection)" "nil")
  ("end-if-idle" "(count-expired engine :crowd)" "nil")))

(:file "src/engine/writing.lisp" :suites (slow-readers steps sweeping progress)
 :mutants
 (("send-what-is-left" "(setf (connection-output connection) left)" "")
  ("send-what-is-left" "(error :broken)" "")
  ("send-what-is-left" "(or sent-p (null (connection-deadline connection)))" "t")
  ("send-what-is-left" "(or sent-p (null (connection-deadline connection)))"
   "(null (connection-deadline connection))")
  ("send-what-is-left" "(eq (connection-outcome connection) :park)" "t")
  ("peer-took-some-p" "(< -1 (unsent-octets (connection-descriptor connection)) unsent)"
   "(<= -1 (unsent-octets (connection-descriptor connection)) unsent)")
  ("park-until-writable" "(shiftf (connection-output-watched-p connection) t)"
   "(connection-output-watched-p connection)")
  ("park-until-writable" "(watch-connection-again engine connection)" "")))

(:file "src/engine/closing.lisp" :suites (ready steps sweeping slow-readers progress)
 :mutants
 (("forget-owned" "(drop-parts (shiftf (connection-output connection) '()))" ""
   :suites (slow-readers sent-files))
  ("forget-owned" "(forget-connection (engine-table engine) connection)" "")
  ("forget-owned" "(counter-add (engine-open-count engine) -1)" "")
  ("close-owned" "(close-descriptor (connection-descriptor connection))" "nil")
  ("break-off" "(unwatch-connection engine connection)" "" :suites (steps))
  ("detach" "(unwatch-connection engine connection)" "nil"
   :suites (ready progress conformance/detaching))
  ("say-good-bye" "(linger engine connection)" "nil")
  ("say-good-bye" "(cond (unread-p" "(cond (nil")
  ("unread-p" "(not (arrived-p connection))" "t")
  ("begin-to-linger" "(shut-descriptor (connection-descriptor connection) :output)" "")
  ("begin-to-linger" "(set-deadline connection :linger *linger-seconds* now)" "")
  ("drop-arrivals" "((minusp (decf (connection-linger-octets connection) count)) (return :end))" "")
  ("linger" "(overdue-p connection (milliseconds))" "nil")
  ("tend-connection-later" "(leave-on-tray engine (list (connection-token connection)))" "nil")))

(:file "src/engine/output.lisp" :suites (slow-readers wires wire-output sent-files)
 :mutants
 (("drop-parts" "(close-descriptor file)" "nil")
  ("drop-parts" "(shiftf (file-part-file part) nil)" "(file-part-file part)")
  ("send-part" "(setf (part-position part) (+ position count))" "")
  ("send-parts" "(drop-parts (list (pop parts)))" "(pop parts)")
  ("send-parts" "((zerop count) (return (values parts sent-p +eio+)))" ""
   :equivalent "0 is taken for an error number then.")
  ("send-parts" "+eio+" "nil")))

(:file "src/engine/accepting.lisp" :suites (ready steps sweeping tray ready-faults)
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
  ("see-to-others" "(leave-listener engine worker)" "nil")
  ("see-to-others" "(drop-connection engine connection)" "nil")
  ("leave-listener" "(listen-again engine)" "nil")
  ("accept-rest" "(engine-accepting-p engine)" "t" :suites (steps))
  ("leave-listener" "(< (incf (ready-worker-accepted worker)) +accept-batch+)" "t")
  ("accept-for-others" "(listen-again engine)" "nil")))

(:file "src/engine/bench.lisp" :suites (ready ready-faults pacing)
 :mutants
 (("enough-wait-p" ">=" ">")
  ("leave-crowd-p" "(plusp surplus)" "t")
  ("await-promotion" "(or (not (serving-p engine)) (dispensable-p engine worker))" "(not (serving-p engine))")
  ("dispensable-p" "(> (pool-size engine) (engine-standby engine))" "t")
  ("promote" "(bt:condition-notify (ready-worker-bell worker))" "t")
  ("promote" "(incf (engine-promotions engine))" "nil")))

(:file "src/engine/pool.lisp" :suites (sharing faults lifecycle ready)
 :mutants
 (("move" "(decf (svref (engine-counts engine) (state-index (worker-state worker))))" "")
  ("pool-limit" "(1+ limit)" "limit")
  ("room-p" "(< (pool-size engine) limit)" "(<= (pool-size engine) limit)")
  ("full-p" "(>= (attended-count engine) limit)" "(> (attended-count engine) limit)")
  ("retire" "(incf (engine-served-before engine) (worker-served worker))" "")
  ("retire" "(unless (eq (worker-state worker) :ended)" "(progn")
  ("run-worker" "(close-doors-when-empty engine)" "")
  ("bury" "(give-up-connection engine connection)" "nil" :suites (sharing))
  ("launch" "(retire worker)" "nil")
  ("launch" "(note-thread-trouble engine condition)" "")
  ("launch" "(forget-thread-trouble engine)" "")))
