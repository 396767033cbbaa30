;;;; Requests and replies of Hunchentoot's.  See mutants.lisp for the form.

(:file "src/hunchentoot/request-processing.lisp"
 :suites (exchanges conformance/connections conformance/request-bodies limits
          content-that-does-not-come stray-octets rejections acceptor-faults conformance/streaming)
 :mutants
 (("process-head" "(setf (exchange-protocol exchange) (state-after-head (exchange-protocol exchange) head))" "")
  ("conclude-exchange" "(eq :error (our-side (exchange-protocol exchange)))" "nil" :suites (exchanges conformance/streaming conformance/errors))
  ("conclude-exchange" "(reusable-p (exchange-protocol exchange))" "t")
  ("conclude-exchange" "(reusable-p (exchange-protocol exchange))" "(persists-p (exchange-protocol exchange))"
   :equivalent "Both sides have come to their ends by then.")
  ("call-with-content" "(release-octets content)" "nil")
  ("call-with-content" "(connection-taken-p)" "nil" :suites (early-content))
  ("process-head" "(abandon-body-prefetch http)" "nil" :suites (early-content))))

(:file "src/hunchentoot/connection.lisp"
 :suites (exchanges conformance/connections conformance/detaching slow-replies acceptor-faults
          stray-octets content-that-does-not-come)
 :mutants
 (("serve-request" "(count-request connection)" "nil" :suites (stats-tell-what-happened))
  ("serve-request" "(eq outcome :detached)" "nil")))

(:file "src/hunchentoot/post-data.lisp"
 :suites (exchanges conformance/request-bodies conformance/parameters limits form-limits
          content-that-does-not-come forms conformance/connections)
 :mutants
 (("form-wanted-p" "(or (null read) (and force (typep read 'octets)))" "(null read)")
  ("field-counter" "(> fields limit)" "(>= fields limit)")
  ("field-counter" "(incf fields" "(setf fields")
  ("form-octets" "(and most (> (length read) most))" "nil")
  ("too-much-unasked-p" "(too-much-to-come-p content)" "nil")
  ("too-much-unasked-p" "(not (content-asked-for-p request))" "t")
  ("drop-unasked" "(setf (raw-post-data* request) t)" "")
  ("take-unasked" "(content-invite content)" "nil")
  ("take-unasked" "(and size most (> size most))" "nil")
  ("take-unasked" "(note-event *exchange* :request-fault)" "nil"
   :equivalent "FINISH-EXCHANGE finds it out once more, before the connection is used again.")
  ("take-unasked" "(protocol-error () nil)" "(protocol-error () t)")
  ("take-what-was-not-read" "(content-asked-for-p request)" "nil")))

(:file "src/hunchentoot/streaming.lisp" :suites (own-output conformance/streaming exchanges)
 :mutants
 (("start-output-here" "(and (current-head) (headers-sent-p))" "nil")
  ("start-output-here" "(check-transfer-encoding)" "nil"
   :equivalent "Where our own code reads, SETTLE-HEADERS asks.")
  ("ours-to-stream-p" "(bare-p (current-stream) (http-stream (current-http-connection)))" "t")
  ("current-framing" "(unless (typep length" "(unless (typep nil")
  ("current-framing" "(hunchentoot:acceptor-output-chunking-p hunchentoot:*acceptor*)" "t")
  ("current-framing" "(eq :http/1.1 (hunchentoot:server-protocol*))" "t")
  ("encode-streamed-head" "(drop-header :transfer-encoding)" "nil")
  ("start-streaming" "(not (eq :plain framing))" "t")
  ("start-streaming" "(begin-reply acceptor status event)" "")
  ("start-streaming" "(take-before-streaming request)" "" :suites (form-limits content-that-does-not-come exchanges))
  ("start-streaming" "(write-encoded io reply)" "")
  ("start-streaming" "(end-of-request)" "nil" :suites (conformance/methods own-output))
  ("start-streaming" "(push-output io)" "nil")))

(:file "src/hunchentoot/files.lisp" :suites (sent-files conformance/static-files)
 :mutants
 (("ours-to-send-p" "(not (headers-sent-p))" "t")
  ("ours-to-send-p" "(null hunchentoot:*header-stream*)" "t")
  ("settle-file-headers" "(unless (hunchentoot:header-out :etag)" "(progn")
  ("settle-conditions" "(when (eql (hunchentoot:return-code*) hunchentoot:+http-ok+)" "(progn")
  ("settle-conditions" "(:failed (leave-with hunchentoot:+http-precondition-failed+))" "")
  ("send-version" "(when (eq (hunchentoot:request-method*) :head) (end-of-request))" "")))

(:file "src/hunchentoot/uploads.lisp" :suites (forms conformance/uploads)
 :mutants
 (("refill" "(replace octets octets :start2 (form-reader-start reader) :end2 (form-reader-end reader))" "")
  ("refill" "(form-reader-start reader) 0" "")
  ("next-event" "((multipart-closed-p (form-reader-parser reader)) (return nil))" "")
  ("open-new-file" ":if-exists nil" ":if-exists :supersede")
  ("new-file" "(disown-temporary-pathname pathname)" "nil")
  ("note-file" "(> (incf (form-reader-files reader)) most)" "(> (form-reader-files reader) most)"
   :suites (form-limits))
  ("part-parameter" "(not (equal \"\" file-name))" "t")
  ("stray-octets" "(incf count more)" "")))

(:file "src/hunchentoot/fast-instances.lisp" :suites (requests conformance/subclasses)
 :mutants
 (("instance-maker (designator base)" "(and known (eq class (instance-maker-class known)))" "known")
  ("new-instance-maker" "(watch-class class base)" "")
  ("new-instance-maker" "(equal making (cdr (assoc base *known-makings*)))" "t")
  ("allocated-instance" "(when own-slots (shared-initialize instance own-slots))" "")
  ("new-instance-maker" "(and inherits (compiled-allocator class))" "(compiled-allocator class)")
  ("new-instance-maker" "(make-instance-maker :class class)" "(make-instance-maker :class class :allocator (compiled-allocator class))")
  ("forget-instance-makers" "(setf *instance-makers* (no-instance-makers))" "nil")
  ("make-reply" "(fill-reply reply)" "")))

(:file "src/hunchentoot/parameters.lisp"
 :suites (requests conformance/parameters conformance/cookies forms)
 :mutants
 (("literal-p" "(char= char #\\+)" "nil")
  ("literal-p" "(char> char #\\~)" "nil")
  ("decoded-ascii" "(when plus-p (setf char #\\Space))" "(setf char #\\Space)")
  ("decoded-ascii" "(incf position 2)" "")
  ("decoded-ascii" "(< (char-code char) 128)" "t")
  ("decoded-ascii" "(and (< position end)" "(and t")
  ("query-alist" "(min end (1+ equals))" "(1+ equals)")
  ("query-alist" "(or (position #\\& query :test #'char/= :from-end t) -1)" "(1- (length query))")
  ("end-of-list" "(white-start text 0 (1- start))" "(1- start)")
  ("map-list-elements" "(if (= stop size) size (white-start text start stop))" "stop")
  ("map-list-elements" "(char= char other)" "nil")
  ("cookie-alist" "(min end (1+ equals))" "(1+ equals)")))

(:file "src/hunchentoot/guards.lisp" :suites (client-input)
 :mutants
 (("element-index" "(< index +most-array-elements+)" "t")
  ("element-index" "(string= array-name name :end2 start)" "t")
  ("converted-parameter" "(> (length argument) +most-integer-characters+)" "nil")))

(:file "src/hunchentoot/reply.lisp"
 :suites (exchanges conformance/content conformance/errors conformance/connections
          conformance/streaming)
 :mutants
 (("send-result" "(unless (headers-sent-p)" "(progn")
  ("send-result" "(typep condition 'protocol-error)" "nil" :suites (deferred-replies))
  ("send-result" "(eq :error (client-side (exchange-protocol *exchange*)))" "t" :suites (deferred-replies))
  ("send-result" "(not (headers-sent-p))" "t" :suites (deferred-replies))
  ("answer (acceptor request head)" "(end-context (deferred-response-context deferred-response))" "" :suites (deferred-replies))
  ("answer (acceptor request head)" "(not (deferred-p *exchange*))" "t" :suites (deferred-replies))
  ("report-error" "(drop-header (invalid-header-name condition))" "nil")
  ("report-error" "(note-event *exchange* :reply-cut)" "nil")
  ("hunchentoot:process-request" "(note-event *exchange* :switch)" "" :suites (own-output))
  ("kept-p" "(hunchentoot:acceptor-persistent-connections-p acceptor)" "t")
  ("kept-p" "(not (says-close-p (hunchentoot:header-out :connection)))" "t" :suites (conformance/connections))
  ("settle-head" "(and framed-p" "(and t" :suites (own-output conformance/streaming))
  ("kept-p" "(not (too-much-unasked-p request head))" "t" :suites (conformance/request-bodies))
  ("begin-reply" "(note-event *exchange* event)" "nil")
  ("begin-reply" "(keep-connection)" "nil")
  ("begin-reply" "(note-headers-sent)" "")
  ("begin-reply" "(hunchentoot:acceptor-log-access acceptor :return-code status)" ""
   :suites (access-log))
  ("settle-headers" "(unless (entry :server)" "(progn")
  ("settle-headers" "(when (entry :date)" "(when nil")
  ("settle-headers" "(put :transfer-encoding coding)" "nil" :suites (own-output))
  ("settle-headers" "(null coding)" "t" :suites (own-output))
  ("settle-headers" "(check-transfer-encoding)" "nil" :suites (content-that-does-not-come))
  ("settle-head" "(body-allowed-p status) said)" "said)" :suites (own-output))
  ("content-kind (content-type external-format)" "(eq (content-kind-content-type kind) content-type)" "t")
  ("content-kind (content-type external-format)" "(eq (content-kind-external-format kind) external-format)" "t")
  ("encode-reply-head" "(setf (cdr header) (unfolded (cdr header)))" "nil")
  ("send-reply-with" "(begin-reply acceptor status event)" "")
  ("send-reply-with" "(note-event *exchange* :reply-end)" "")))

(:file "src/hunchentoot/paths.lisp" :suites (sent-files conformance/static-files)
 :mutants
 (("find-path" "(string= path (known-path-path known))" "t")
  ("find-path" "(equal prefix (known-path-prefix known))" "t")
  ("find-path" "(eq *default-pathname-defaults* (known-path-defaults known))" "t")
  ("find-path" "(copy-seq path)" "path")
  ("known-request-pathname" "(eq function *hunchentoots-request-pathname*)" "t")
  ("known-request-pathname" "(<= (length path) *known-path-limit*)" "t")))

(:file "src/hunchentoot/requests.lisp" :suites (requests conformance/request-facts conformance/sessions)
 :mutants
 (("fill-parameters" "(slot-value request 'hunchentoot:session) hunchentoot:*session*" "")
  ("fill-parameters" "(< path-end (length uri))" "t")))

(:file "src/hunchentoot/access-line.lisp" :suites (access-log conformance/logs)
 :mutants
 (("local-time-text" "year month day hour" "year day month hour")
  ("utc-time-text" "year month day hour" "year day month hour")
  ("user-of" "(error () nil)" "(warning () nil)")
  ("content-octets" "(content-wanted-p (hunchentoot:request-method request) status)" "t")
  ("content-octets" "(content-wanted-p (hunchentoot:request-method request) status)" "nil")
  ("access-facts" "(hunchentoot:request-uri request)" "(hunchentoot:script-name request)")
  ("encode-combined" "(when query" "(progn")
  ("encode-combined" "(when forwarded" "(when nil")
  ("encode-line-in-format" "(return-from encode-line-in-format nil)" "nil")
  ("encode-line-in-format" "(end-line line)" "nil")))

(:file "src/hunchentoot/journals.lisp" :suites (access-log message-log)
 :mutants
 (("replace-journal" "(end-journal predecessor)" "")
  ("replace-journal" "(incf (acceptor-lines-lost acceptor) lost)" "nil")
  ("replace-journal" "(unless (member journal (all-journals acceptor))" "(progn")
  ("journal-for" "(settle-logs acceptor)" "nil"
   :equivalent "Lines are then written by who has them: a matter of speed.")
  ("lines-lost" "(typep acceptor 'parallel-acceptor)" "t")
  ("settle-logs" "(hunchentoot:started-p acceptor)" "t")
  ("settle-logs" "#'end-journal" "#'identity")
  ("reopen-logs" "#'flush-journal" "#'identity")))

(:file "src/hunchentoot/message-log.lisp" :suites (message-log conformance/logs)
 :mutants
 (("throttled-text" "(not (equal control *rare-control*))" "t")
  ("write-message" "((null destination))" "")
  ("write-message" "(some #'departure-p arguments)" "nil")
  ("departure-p" "(cause-of argument)" "argument" :suites (message-log))
  ("hunchentoot:acceptor-log-message" "(if methods" "(if nil" :suites (conformance/subclasses))))

(:file "src/hunchentoot/access-log.lisp" :suites (access-log arguments)
 :mutants
 (("check-access-log-function" "(not (fboundp format))" "nil")
  ("check-access-log-function" "(macro-function format)" "nil")
  ("check-access-log-function" "(not (keywordp format))" "t")
  ("write-access-line" "(lose-line journal condition)" "nil")
  ("write-access-line" "(error (condition)" "(warning (condition)")
  ("hunchentoot:acceptor-log-access" "((null destination))" "")
  ("note-access" "(access-status access) status" "")
  ("timed-p" "(hunchentoot:acceptor-access-log-destination acceptor)" "t"
   :equivalent "FINISH-ACCESS asks for it, too.")
  ("timed-p" "(typep acceptor 'parallel-acceptor)" "t")
  ("timed-p" "(not (eq :combined (access-log-format acceptor)))" "t")
  ("finish-access" "(and destination request)" "request")
  ("finish-access" "(and destination request)" "destination")
  ("finish-access" "(- (microseconds) (access-began access))" "(access-began access)")))

(:file "src/hunchentoot/backtraces.lisp" :suites (conformance/logs conformance/debugging secrets)
 :mutants
 (("short-backtrace" "(typep hunchentoot:*acceptor* 'parallel-acceptor)" "t")
  ("short-backtrace" "(typep hunchentoot:*acceptor* 'parallel-acceptor)" "nil")
  ("*backtrace-print-length*" "100" "nil")))

(:file "src/hunchentoot/taskmaster.lisp" :suites (taskmaster arguments)
 :mutants
 (("check-thread-counts" "(> standby maximum)" "(>= standby maximum)")
  ("check-accept-count" "(> accept maximum)" "(>= accept maximum)")
  ("check-accept-count" "(unless maximum" "(unless t")
  ("default-standby" "(min *default-standby-thread-count* maximum)" "*default-standby-thread-count*")
  ("initialize-instance :after ((taskmaster" "(fill-defaults taskmaster)" "")
  ("reinitialize-instance :before" "(check-arguments" "(list")
  ("reinitialize-instance :after" "(fill-defaults taskmaster)" "")
  ("reinitialize-instance :after" "(resize-engine taskmaster)" "")
  ("resize-engine" ":standby (taskmaster-standby-thread-count taskmaster)" ":standby 1")
  ("setf taskmaster-standby-thread-count" "(resize-engine taskmaster)" "")
  ("setf taskmaster-standby-thread-count" "(resize-engine taskmaster) count" "(resize-engine taskmaster) nil")
  ("setf hunchentoot:taskmaster-max-thread-count) :before"
   "(check-accept-count (hunchentoot:taskmaster-max-accept-count taskmaster) value)" "")
  ("setf hunchentoot:taskmaster-max-thread-count) :after"
   "(setf (slot-value taskmaster 'standby-thread-count) (standby-below value taskmaster))" "")
  ("setf hunchentoot:taskmaster-max-accept-count) :before" "(check-accept-count" "(list")
  ("setf hunchentoot:taskmaster-max-accept-count) :after" "(when (application-engine taskmaster)" "(when nil")
  ("setf hunchentoot:taskmaster-acceptor" "(not (engine-stopped-p engine))" "t" :suites (mistakes))
  ("setf hunchentoot:taskmaster-acceptor" "(not (eq acceptor (hunchentoot:taskmaster-acceptor taskmaster)))"
   "t" :suites (mistakes starting-twice-is-refused-and-harmless))
  ("make-engine" "(taskmaster-parking-p taskmaster)" "t")
  ("make-engine" ":accept-limit (hunchentoot:taskmaster-max-accept-count taskmaster)"
   ":accept-limit :unlimited")
  ("hunchentoot:execute-acceptor" "(taskmaster-rejections taskmaster) (make-rejections)" ""
   :suites (rejections stats-tell-what-happened))
  ("hunchentoot:execute-acceptor" "(note-engine acceptor engine)" "" :suites (mistakes))
  ("hunchentoot:shutdown" "(stop-engine (application-engine taskmaster))" "nil" :suites (acceptor-faults))
  ("hunchentoot:taskmaster-thread-count" "(if engine" "(if nil")
  ("hunchentoot:execute-acceptor" "(taskmaster-failed-handshakes taskmaster) (make-failed-handshakes)" ""
   :suites (failed-handshakes))))

(:file "src/hunchentoot/internals.lisp"
 :suites (own-output exchanges conformance/streaming conformance/errors conformance/connections)
 :mutants
 (("without-reply" "(if (end-reply stream) :reply-end :reply-cut)" ":reply-end")
  ("without-reply" "(note-event exchange" "(progn exchange")
  ("note-what-hunchentoot-did" "(note-event exchange :close)" "nil")
  ("forget-server-name" "(setf *server-name* (list nil))" "nil" :suites (requests))
  ("temporary-pathname" "(eq files hunchentoot::*tmp-files*)" "t" :suites (forms))
  ("temporary-pathname" "(eq files hunchentoot::*tmp-files*)" "nil" :suites (forms))
  ("delete-files" "(when (pathnamep path)" "(when (and (pathnamep path) (probe-file path))" :suites (forms))
  ("note-what-hunchentoot-did" "(eq :idle (our-side (exchange-protocol exchange)))" "nil")
  ("call-with-connection-stream" "(reusable-p :park)" "(t :park)")))

(:file "src/hunchentoot/limits.lisp"
 :suites (limits rejections form-limits acceptor-faults conformance/request-bodies)
 :mutants
 (("answer-refusal" "(note-event *exchange* :request-fault)" "nil")
  ("answer-refusal" "(headers-sent-p)" "nil"
   :suites (limits rejections conformance/streaming exchanges content-that-does-not-come))
  ("answer-refusal" "(unless (withdraw-unless-answered *exchange*)" "(unless nil" :suites (deferred-replies))
  ("withdraw-unless-answered" "(not (withdraw-deferred-response deferred-response))" "t" :suites (deferred-replies))
  ("withdraw-unless-answered" "(deferred-response-unsent-p deferred-response)" "t" :suites (deferred-replies))
  ("settle-refusal" "(count-rejection hunchentoot:*acceptor* status)" "" :suites (rejections))
  ("settle-refusal" "(eql status hunchentoot:+http-service-unavailable+)" "t" :suites (limits rejections))
  ("settle-refusal" "(setf (hunchentoot:header-out :retry-after) *retry-seconds*)" ""
   :suites (limits rejections form-limits))))

(:file "src/hunchentoot/rejections.lisp" :suites (rejections)
 :mutants
 (("count-rejection" "(typep taskmaster 'recycling-taskmaster)" "t"
   :suites (rejections acceptor-faults mistakes))
  ("count-rejection" "(when counter" "(progn"
   :equivalent "Nobody rejects with a status that has no counter.")
  ("counted-statistics" "(list all nil by-key nil)" "'()"
   :suites (stats-work-on-any-acceptor rejections))
  ("counted-statistics" "sum count into sum" "maximize count into sum")
  ("rejection-facts" ":status status" ":status nil")
  ("rejection-facts" ":remote-address address" ":remote-address nil")
  ("rejection-facts" "(and method (princ-to-string method))" "method")
  ("encode-rejected-combined" "(or-dash method)" "method")
  ("encode-rejected-combined" "(when uri" "(progn")
  ("log-rejection" "(and destination (typep acceptor 'parallel-acceptor))" "destination"
   :suites (rejections acceptor-faults))
  ("log-rejection" "(and destination (typep acceptor 'parallel-acceptor))"
   "(typep acceptor 'parallel-acceptor)"
   :suites (rejections limits))
  ("note-rejection" "(count-rejection acceptor status)" "")))

(:file "src/hunchentoot/failed-handshakes.lisp" :suites (failed-handshakes)
 :mutants
 (("handshake-statistics" "taskmaster-failed-handshakes" "taskmaster-rejections")
  ("note-failed-handshake" "(:expired)" "(:gone)")))

(:file "src/hunchentoot/acceptors.lisp" :suites (mistakes arguments)
 :mutants
 (("hunchentoot:accept-connections" "(if *work* (funcall *work*) (hunchentoots))" "(funcall *work*)"
   :suites (our-acceptor-runs-on-hunchentoots-taskmaster))
  ("hunchentoot:acceptor-persistent-connections-p" "(not (persists-p (exchange-protocol *exchange*)))" "nil"
   :suites (own-output))
  ("hunchentoot:acceptor-persistent-connections-p"
   "(winding-down-p (exchange-engine *exchange*))" "nil"
   :suites (the-last-reply-before-a-soft-stop-says-so) :parking nil)
  ("initialize-instance :after" "(when parking-supplied-p" "(when parking"
   :suites (arguments changing threads-interrupt-nobody-unless-the-program-wants-it exchanges
            conformance/connections))
  ("initialize-instance :after" "(unless (typep taskmaster 'recycling-taskmaster)" "(unless t"
   :suites (arguments mistakes listening))
  ("acceptor-engine" "(eq acceptor (hunchentoot:taskmaster-acceptor taskmaster))" "t"
   :suites (mistakes))
  ("hunchentoot:start" "(check-access-log-function acceptor)" "" :suites (arguments))
  ("hunchentoot:start" "(take-successor acceptor)" "" :suites (changing))
  ("hunchentoot:start" "(note-engine acceptor nil)" "" :suites (mistakes))
  ("hunchentoot:start" "(unless was-listening (check-access-log-function" "(progn (check-access-log-function"
   :suites (starting-twice-is-refused-and-harmless mistakes changing))
  ("hunchentoot:start" "(stop-listening acceptor (acceptor-listener acceptor))" ""
   :suites (start-without-threads-leaves-the-port-free))
  ("hunchentoot:start" "(multiple-value-prog1 (call-next-method) (settle-logs acceptor)"
   "(multiple-value-prog1 (call-next-method)" :suites (mistakes access-log))
  ("stop-listening" "(take-listener acceptor listener)" "t"
   :suites (started-p-tells-the-truth stopping-what-is-not-started-is-harmless
            stopping-frees-the-port-a-hundred-times
            soft-stop-waits-for-every-request-and-answers-it
            soft-stop-of-an-acceptor-reports-what-it-leaves
            hard-stop-does-not-wait-for-a-long-request stopping-ends-idle-connections
            a-stop-that-returns-late-leaves-alone-what-was-started-meanwhile))
  ("hunchentoot:stop" "(not (hunchentoot:started-p acceptor))" "nil"
   :suites (started-p-tells-the-truth stopping-what-is-not-started-is-harmless
            stopping-frees-the-port-a-hundred-times
            soft-stop-waits-for-every-request-and-answers-it
            soft-stop-of-an-acceptor-reports-what-it-leaves
            hard-stop-does-not-wait-for-a-long-request stopping-ends-idle-connections
            a-stop-that-returns-late-leaves-alone-what-was-started-meanwhile mistakes))
  ("hunchentoot:stop" ":soft soft :timeout timeout))) (stop-listening"
   ":soft soft))) (stop-listening"
   :suites (started-p-tells-the-truth stopping-what-is-not-started-is-harmless
            stopping-frees-the-port-a-hundred-times
            soft-stop-waits-for-every-request-and-answers-it
            soft-stop-of-an-acceptor-reports-what-it-leaves
            hard-stop-does-not-wait-for-a-long-request stopping-ends-idle-connections
            a-stop-that-returns-late-leaves-alone-what-was-started-meanwhile))
  ("hunchentoot:stop" "(if soft nil 1)" "nil"
   :suites (a-hard-stop-gives-a-long-request-up-by-itself))
  ("hunchentoot:stop" "(values acceptor left)" "acceptor"
   :suites (soft-stop-of-an-acceptor-reports-what-it-leaves mistakes))
  ("hunchentoot:stop" "(settle-logs acceptor) (values acceptor left)" "(values acceptor left)"
   :suites (access-log mistakes))
  ("hunchentoot:stop" "(settle-logs acceptor))) (t" ")) (t" :suites (access-log mistakes))))

(:file "src/hunchentoot/tls.lisp" :suites (tls tls-mistakes tls-reload tls-contexts)
 :mutants
 (("current-tls-setting" "(getf (given-files acceptor) name (hunchentoot:acceptor-ssl-certificate-file acceptor))"
                         "(hunchentoot:acceptor-ssl-certificate-file acceptor)")
  ("current-tls-setting" "(getf (given-files acceptor) name (hunchentoot:acceptor-ssl-privatekey-file acceptor))"
                         "(hunchentoot:acceptor-ssl-privatekey-file acceptor)")
  ("tls-settings" "(if (eq value initargs) (current-tls-setting acceptor name) value)"
                  "(current-tls-setting acceptor name)")
  ("name-where-links-lead" "(ignore-errors (truename file))" "(truename file)" :suites (tls-reload))
  ("note-given-files" "(name-where-links-lead (current-tls-setting acceptor :ssl-certificate-file))"
                      "(hunchentoot:acceptor-ssl-certificate-file acceptor)")
  ("initialize-instance :before" "(warn-of-certificates" "(progn")
  ("new-tls-context" "(and old (tls-context-ticket-keys old))" "nil")
  ("reinitialize-instance :around" "(note-given-files acceptor initargs)" "")
  ("reinitialize-instance :around" "(take-tls-context acceptor context)" "")
  ("reload-certificates" "(note-given-files acceptor '())" "")
  ("reload-certificates" "(take-tls-context acceptor context)" "")
  ("reload-certificates" "(warn-of-certificates warnings)" "")
  ("hunchentoot:start :before" "(take-tls-context acceptor context)" ""
   :equivalent "The first connection makes one.")))

(:file "src/hunchentoot/tls-streams.lisp" :suites (tls-reload)
 :mutants
 (("stream-user-methods" "(member (first theirs) primaries)" "primaries")
  ("stream-user-methods" "(and (set-difference rest own) rest)" "nil")
  ("hunchentoot:initialize-connection-stream" "(append hidden (list *encrypting-method*))"
                                              "(list *encrypting-method*)")
  ("hunchentoot:initialize-connection-stream" "(call-methods rest (list acceptor encrypted))" "encrypted")))

(:file "src/hunchentoot/user-methods.lisp"
 :suites (conformance/connection-methods conformance/subclasses)
 :mutants
 (("note-redefinition" "(incf *redefinitions*)" "")
  ("watch-redefinitions" "(push metaobject *watched*)" ""
   :equivalent "It is watched twice, and counted twice.")
  ("methods-of-program" "'(() (:around) (:after))" "'(() (:around))"
   :equivalent "A method that comes after is of no kind.")
  ("methods-of-program" "(list* 'hunchentoot:acceptor t *own-classes*)" "*own-classes*"
   :suites (stats-tell-of-connections-between-requests nobody-starves-behind-idle-connections))
  ("primaries-after-ours" "(set-difference-in-order (subseq after 0 end) ours)" "(subseq after 0 end)"
   :equivalent "No function has methods of ours on both classes.")
  ("primaries-after-ours" "(subseq after 0 end)" "after")
  ("process-connection-kind" "((some #'primary-p methods) :foreign)" "")
  ("process-connection-kind" "'(:around :before)" "'(:around)")
  ("look-around" "(superclasses (class-of acceptor))" "'()")
  ("look-around" "#'hunchentoot:process-connection #'hunchentoot:acceptor-log-access"
   "#'hunchentoot:process-connection")
  ("look-around" "(primaries-after-ours #'hunchentoot:acceptor-log-access (list acceptor))" "'()")
  ("user-methods-of" "(eql (user-methods-redefinitions known) *redefinitions*)" "t")
  ("call-before-ours" "(append methods (list *innermost-method*))" "methods")
  ("in-place-of-hunchentoots" "(list ,@required ,@more) #'ours)" "(list ,@required) #'ours)")))

(:file "src/hunchentoot/service.lisp" :suites (exchanges acceptor-faults conformance/connection-methods)
 :mutants
 (("check-head" "(unless (method-served-p" "(unless (or t"
   :equivalent "Hunchentoot 1.2 serves all methods; later ones do not.")
  ("process-exchange" "(when (eq :wrapped (exchange-kind exchange))" "(when nil"
   :suites (conformance/connection-methods) :parking nil)
  ("process-exchange" "(plusp (connection-served connection))" "nil"
   :suites (acceptor-faults conformance/connections))
  ("process-exchange" "(limit-waits socket (hunchentoot:acceptor-read-timeout acceptor))" "")
  ("outcome-without-us" "(and (socket-asked-p socket) (lent-open-p io))" "nil")
  ("outcome-without-us" "(and (socket-asked-p socket) (lent-open-p io))" "(lent-open-p io)")
  ("outcome-without-us" "(not (typep acceptor 'parallel-acceptor))" "nil"
   :equivalent "What Hunchentoot has closed may be closed again.")
  ("outcome-without-us" "(and (eq :wrapped kind) (socket-asked-p socket))" "nil"
   :suites (conformance/connection-methods) :parking nil)
  ("idle-seconds" "hunchentoot:acceptor-read-timeout" "hunchentoot:acceptor-write-timeout"
   :suites (exchanges acceptor-faults conformance/defects slow-heads-and-slow-content-are-counted
            read-and-write-timeouts-may-differ))
  ("write-seconds" "hunchentoot:acceptor-write-timeout" "hunchentoot:acceptor-read-timeout"
   :suites (slow-readers slow-replies read-and-write-timeouts-may-differ))
  ("make-engine-thread" "(setf (taskmaster-process taskmaster) (bt:current-thread))" ""
   :suites (acceptor-faults conformance/listener-thread))
  ("make-engine-thread" "place role)" "place 0)" :suites (taskmaster arguments))
  ("make-engine-thread" "hunchentoot-listener-~A" "listener-~A"
   :suites (conformance/listener-thread))
  ("call-as-worker" "(lambda () (hunchentoot:accept-connections acceptor))" "thunk")
  ("note" "level control arguments" ":info control arguments"
   :suites (rejections access-log conformance/logs acceptor-faults))
  ("peer-address" "(error () nil)" "" :suites (rejections acceptor-faults))
  ("refuse" "(hunchentoot:too-many-taskmaster-requests taskmaster socket)" ""
   :suites (rejections taskmaster))
  ("refuse" "(log-rejection acceptor (peer-address socket) hunchentoot:+http-service-unavailable+)" ""
   :suites (rejections))
  ("refuse" "(unless (hunchentoot:acceptor-ssl-p acceptor)" "(progn" :suites (tls))))

(:file "src/hunchentoot/listening.lisp" :suites (listening)
 :mutants
 (("our-end" "(acceptor-sole-name acceptor)" "nil" :equivalent "A matter of speed.")
  ("check-listen-mode" "(integer 0 #o777)" "(integer 0 #o7777)")
  ("check-listen-fd" "(unsigned-byte 31)" "integer")
  ("own-place-p" "(hunchentoot:acceptor-address acceptor)" "nil")
  ("check-place" "(when (acceptor-reuse-port-p acceptor)" "(when nil")
  ("check-listening" "(when (and path descriptor)" "(when nil")
  ("initialize-instance :after" "(set-acceptor-name acceptor nil 0)" "")
  ("open-listener" "(acceptor-listen-mode acceptor)" "nil")
  ("open-listener" "(hunchentoot:acceptor-address acceptor)" "nil")
  ("hunchentoot:start-listening ((acceptor" "(not (hunchentoot:started-p acceptor))" "t"
   :suites (listening starting-twice-is-refused-and-harmless))
  ("hunchentoot:start-listening ((acceptor"
   "(multiple-value-call #'set-acceptor-name acceptor (local-name listener))" "")
  ("defer-accepts-of" "(or (acceptor-listen-path acceptor) (acceptor-listen-fd acceptor))" "nil")
  ("defer-accepts-of" "(or (acceptor-listen-path acceptor) (acceptor-listen-fd acceptor))"
   "(acceptor-listen-path acceptor)")
  ("defer-accepts-of" "(or (acceptor-defer-accept acceptor) 0)" "1")
  ("hunchentoot:start-listening :after"
   "(setf (acceptor-sole-name acceptor) (sole-name (acceptor-listener acceptor)))"
   "(unless (acceptor-sole-name acceptor)
      (setf (acceptor-sole-name acceptor) (sole-name (acceptor-listener acceptor))))")))

(:file "src/hunchentoot/changing.lisp" :suites (changing)
 :mutants
 (("replace-taskmaster" "(unless (chosen-p old)" "(progn")
  ("replace-taskmaster" "(setf (hunchentoot:acceptor-persistent-connections-p acceptor) t)" "")
  ("replace-taskmaster" "(when (typep old 'hunchentoot:single-threaded-taskmaster)" "(when t")
  ("take-successor" "(shiftf successor nil)" "successor")
  ("become-ours" ":slotless t" ":slotless nil")
  ("become-ours" "(get-properties defaults '(:parking))" "nil")
  ("become-ours" "((typep (acceptor-taskmaster* acceptor) 'recycling-taskmaster))" "")
  ("become-ours" "(or (default-taskmaster acceptor) (make-instance 'recycling-taskmaster))"
   "(make-instance 'recycling-taskmaster)")
  ("become-ours" "(hunchentoot:started-p acceptor)" "nil")
  ("update-instance-for-redefined-class :after ((acceptor parallel-acceptor)"
   "(member 'limits added)" "t")
  ("update-instance-for-redefined-class :after ((acceptor parallel-acceptor)"
   "(apply #'shared-initialize acceptor '() (missing-arguments acceptor))" "nil")
  ("become-foreign" "(unless (hunchentoot:started-p acceptor)" "(progn")
  ("update-instance-for-redefined-class :after ((acceptor hunchentoot:acceptor)"
   "(stop-journal journal 0)" "nil")))

(:file "src/hunchentoot/arguments.lisp" :suites (arguments)
 :mutants
 (("access-log-format-p" "(functionp value)" "nil" :suites (arguments access-log))
  ("access-log-format-p" "(not (keywordp value))" "t")
  ("access-log-format-p" "(and value (symbolp value)" "(and (symbolp value)")))

(:file "src/hunchentoot/tls-information.lisp" :suites (tls-facts)
 :mutants
 (("current-tls-handle" "(stream-tls-handle (handler-stream))" "nil"
   :equivalent "Here the server reads all connections, and knows their buffered connections; elsewhere it is needed.")
  ("client-certificate-verified-p" "(null (client-certificate-failure certificate))" "t")))

(:file "src/hunchentoot/channels.lisp" :suites (channels)
 :mutants
 (("subscribe" "(lambda () (unsubscribe channel subscriber))" "(lambda ())")
  ("subscribe" "(forget-when-over shared-queue function)" "nil")
  ("subscribe" "(call-when-over shared-queue function)" "nil")
  ("unsubscribe" "(forget-when-over (subscriber-shared-queue subscriber) function)" "nil")
  ("publish-encoded" "(drop-subscriber subscriber)" "nil")
  ("publish-encoded" "(unsubscribe channel subscriber)" "nil")
  ("publish-encoded" "(go-on-with subscriber)" "nil")
  ("put-in-all" "(push subscriber full)" "nil")
  ("put-in-all" "(incf (channel-skipped channel))" "nil")))

(:file "src/hunchentoot/heartbeats.lisp" :suites (channels)
 :mutants
 (("await-heartbeat" "(setf planned-p t)" "nil")
  ("beats-p" "(setf (heart-engine heart) nil)" "t")
  ("send-heartbeats" "(silent-again-p (outgoing-stream-shared-queue stream))" "t")))

(:file "src/hunchentoot/outgoing-streams.lisp" :suites (outgoing-streams)
 :mutants
 (("write-octets" "(not (shared-queue-over-p (outgoing-stream-shared-queue stream)))" "t")
  ("draft-of" "(setf (hunchentoot:return-code*) (hunchentoot:return-code reply))" "")
  ("draft-of" "(setf (hunchentoot:content-length*) (hunchentoot:content-length reply))" "")
  ("draft-of" "(settle-reply completion)" "")
  ("make-outgoing" "(draft-of reply completion)" "(progn (settle-reply completion) reply)" :suites (deferred-replies))
  ("begin-outgoing" "(settle-start stream)" "")
  ("settle-start" "(error 'reply-failed :reason (princ-to-string condition))" "(error condition)")
  ("left-and-told-p" "(deferred-response-left-p deferred-response)" "t")
  ("refuse-octets" "(unless (left-and-told-p stream) (error 'client-left))" "(error 'client-left)")
  ("call-when-writable" "(shared-queue-shut-p shared-queue)" "t")
  ("call-when-writable" "(shared-queue-shut-p shared-queue)" "(shared-queue-ended-p shared-queue)")
  ("call-when-writable" "(left-and-told-p stream)" "nil")
  ("call-when-writable" "(left-and-told-p stream)" "t")
  ("end-with-head" "(setf (deferred-response-shared-queue deferred-response) nil)" "")
  ("end-with-head" "(end-shared-queue (outgoing-stream-shared-queue stream))" "")
  ("room-came-p" "(not (eq (bt:current-thread) (deferred-response-owner (outgoing-stream-deferred-response stream))))" "t")))
