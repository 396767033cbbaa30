;;;; Clack applications.  See mutants.lisp for the form.

(:file "src/http/decoding.lisp" :suites (http-decoding)
 :mutants
 (("utf-8-size-by-first" "#xC2" "#xC0")
  ("utf-8-size-by-first" "#xF5" "#xF8")
  ("continues-p" "(#xE0 (<= #xA0 octet #xBF))" "")
  ("continues-p" "(#xED (<= #x80 octet #x9F))" "")
  ("continues-p" "(#xF0 (<= #x90 octet #xBF))" "")
  ("continues-p" "(#xF4 (<= #x80 octet #x8F))" "")
  ("utf-8-code" "(< position end)" "t")
  ("percent-decoded" "(ascii-p text start end)" "t" :suites (http-decoding clack/environments)
   :equivalent "No target has octets beyond ASCII.")
  ("encoded-octets" "(incf start 3)" "(incf start 1)")
  ("uri-path" "(authority-start uri)" "0" :suites (clack/environments))))

(:file "clack/environment.lisp" :suites (clack/environments)
 :mutants
 (("server-name-and-port" "(same-host-p host (first known))" "t")
  ("server-name-and-port" "(set-published (server-known-host server) known)" "" :equivalent "A matter of speed.")
  ("environment" "(= path-start path-end)" "nil")
  ("environment" "(< path-end (length uri))" "t")
  ("content-length-of" "((integerp framing) framing)" "")))

(:file "clack/raw-body.lisp" :suites (clack/raw-bodies)
 :mutants
 (("prepare-window" "(<= (+ (raw-body-taken body) count) *raw-body-memory*)" "t")
  ("keep-taken" "(not (write-file-octets file (raw-body-taken body) (raw-body-octets body) start end))" "nil"
   :equivalent "The disk would have to be full.")
  ("take-more" "(setf (raw-body-content body) nil)" "" :equivalent "Content that is over gives no more.")
  ("load-part" "(set-window body (raw-body-octets body) position count)" "(set-window body (raw-body-octets body) 0 count)")
  ("load-block" "(- (raw-body-taken body) base)" "+block-size+")
  ("block-with-room" "(replace (the octets block) (the octets old) :end2 fill)" "nil")
  ("give-blocks-back" "(shiftf (raw-body-blocks body) '#())" "(raw-body-blocks body)")
  ("close-file" "(close-descriptor file)" "nil")
  ("call-in-reading-turn" "(unless (raw-body-turn body)" "(progn" :suites (clack/raw-bodies clack/later-responses))))

(:file "clack/raw-body-stream.lisp" :suites (clack/raw-bodies)
 :mutants
 (("octets-of-character" "(setf (raw-body-position body) position)" "")
  ("octets-of-character" "(<= (+ index size) (raw-body-count body))" "t")
  ("(setf trivial-gray-streams:stream-file-position)" "(<= 0 position (raw-body-taken stream))" "t")))

(:file "clack/responses.lisp" :suites (clack/responses)
 :mutants
 (("encode-own-headers" "(when allowed-p" "(progn")
  ("encode-own-headers" "when value" "when t")
  ("encode-own-headers" ":transfer-encoding" "")
  ("encode-own-headers" ":date" "")
  ("encode-own-headers" "(setf server-p t)" "")
  ("encode-response-head" "(when allowed-p" "(progn")
  ("kept-p" "(server-persistent-p (exchange-application exchange))" "t")
  ("kept-p" "(not (says-close-p (header :connection headers)))" "t")
  ("drop-unread" ":request-fault" ":request-end" :suites (clack/responses clack/raw-bodies)
   :equivalent "END-CONTENT drops the rest, or fails.")
  ("send-nothing" "(announced-length headers)" "nil")
  ("with-content-type" "(header :content-type headers)" "nil")
  ("send-list" "(some #'stringp elements)" "t")
  ("check-response" "(<= 1 (length response) 3)" "t" :equivalent "Who takes it apart looks, too.")
  ("proper-list-p" "(list-length object)" "t" :suites (clack/failures))
  ("check-response" "(typep (first response) 'final-status)" "t" :suites (clack/failures))
  ("check-response" "(proper-list-p (third response))" "t" :suites (clack/failures))
  ("check-response" "(proper-list-p (second response))" "t" :suites (clack/failures))))

(:file "clack/media-types.lisp" :suites (clack/files)
 :mutants
 (("type-of-named-file" " \"application/octet-stream\")" ")")))

(:file "clack/file-responses.lisp" :suites (clack/files)
 :mutants
 (("version-headers" "(unless (header name headers)" "(progn")
  ("send-version" "(= 416 status)" "t")
  ("send-version" "(if (= 200 status)" "(if t")))

(:file "clack/delayed-responses.lisp"
 :suites (clack/delayed-responses clack/later-responses clack/written-responses clack/failures)
 :mutants
 (("check-body" "(or list pathname (vector octet))" "t")
  ("give-response" "(drop-written written)" "nil")
  ("give-response" "(within-p (send-within-function delayed written))" "")
  ("send-within-function" "(reopen-deferred-response (delayed-deferred-response delayed))" "nil" :suites (clack/response-mishaps))
  ("cut-delayed" "(drop-answer written)" "nil" :suites (clack/response-mishaps))
  ("cut-delayed" "(note-event (delayed-exchange delayed) :reply-cut)" "nil" :suites (clack/response-mishaps))
  ("take-rest-of-content" "(take-rest body *unasked-limit*)" "nil")
  ("takable-p" "(not (too-much-to-come-p content))" "t")
  ("takable-p" "(not (eq :held (client-side protocol)))" "t")
  ("settle-delayed" "(written-to-end-p (delayed-written delayed))" "t")
  ("withdraw-response" "(drop-answer (take-answer (delayed-deferred-response delayed)))" "nil" :suites (clack/response-mishaps))
  ("give-up-delayed" "(drop-written (delayed-written delayed))" "nil")))

(:file "clack/written-responses.lisp"
 :suites (clack/delayed-responses clack/written-responses clack/later-responses)
 :mutants
 (("begin-written" "(not (eq :plain framing))" "t")
  ("end-written" "(if (end-reply stream) :reply-end :reply-cut)" "(progn (end-reply stream) :reply-end)")
  ("end-written" "(note-sent-beside stream (written-shared-queue written))" "nil")
  ("written-to-end-p" "(eq :none (written-framing written))" "nil")
  ("send-queued-in-turn" "(full-p shared-queue)" "nil")
  ("send-queued-in-turn" "(io-unsent io)" "nil")
  ("put-piece" "(:room (send-within written))" "(:room)")
  ("put-piece" "(unless amid-turn-p (await-room-in written))" "nil")
  ("put-piece" "(unless amid-turn-p (await-room-in written))" "(await-room-in written)")
  ("put-piece" "(put-in-shared-queue shared-queue octets amid-turn-p)" "(put-in-shared-queue shared-queue octets)")
  ("put-piece" "(resume (written-deferred-response written))" "nil")
  ("write-piece" "(shared-queue-over-p (written-shared-queue written))" "nil" :equivalent "The shared send queue refuses it, too.")
  ("write-piece" "((and close-p (zerop (length octets))))" "")
  ("refuse-piece" "(written-closed-p written)" "nil")
  ("room-awaited-p" "(written-stream written)" "t" :suites (clack/response-mishaps))
  ("await-room-in" "(engine-sends-p (delayed-io (written-delayed written)))" "nil" :suites (clack/response-mishaps))
  ("await-room-in" "(written-stream written)" "t" :suites (clack/response-mishaps))
  ("await-room-in" "(shared-queue-ended-p (written-shared-queue written))" "nil" :equivalent "The next piece is refused.")))

(:file "clack/later-responses.lisp"
 :suites (clack/delayed-responses clack/written-responses clack/later-responses clack/raw-bodies)
 :mutants
 (("drop-deferred" "(release-body (forget-body delayed))" "nil" :suites (clack/response-mishaps clack/raw-bodies))
  ("send-deferred-response" "(error (condition) (drop-answer answer)" "(error (condition)" :suites (clack/response-mishaps))
  ("conclude-delayed" "(release-body (forget-body delayed))" "nil")
  ("limit-unused-writer" "(when (used-by-function-only-p delayed) (close-written written))" "nil"
                         :suites (clack/delayed-responses))
  ("limit-unused-writer" "(when (used-by-function-only-p delayed) (close-written written))"
                         "(close-written written)" :suites (clack/written-responses))
  ("limit-unused-writer" "(call-when-over (written-shared-queue written) (lambda () (cancel timer)))" "nil"
                         :suites (clack/written-responses))))

(:file "clack/requests-served.lisp" :suites (clack/failures clack/raw-bodies clack/delayed-responses clack/later-responses)
 :mutants
 (("body-of" "(<= size (content-at-hand content))" "t" :suites (clack/raw-bodies))
  ("client-gone-p" "((or descriptor-broken stream-timeout) t)" "")
  ("client-gone-p" "(and socket" "(and t" :suites (clack/sockets))
  ("client-gone-p" "(eq socket (exchange-upgrade exchange))" "t" :suites (clack/sockets))
  ("client-gone-p" "(client-left-within-p condition)" "nil" :suites (clack/response-mishaps))
  ("client-gone-p" "(eq (stream-error-stream condition) (raw-body-source body))" "nil")
  ("send-failure" "(eq :idle (our-side (exchange-protocol exchange)))" "t")
  ("call-debugging" "(unless (client-fault-p condition exchange body)" "(progn"
   :equivalent "Nobody fails while others debug, in the tests.")
  ("answer-request" "(release-body body)" "nil")
  ("conclude-request" "(eq :done (our-side (exchange-protocol exchange)))" "t"
   :equivalent "What was cut is not reusable either.")
  ("conclude-request" "(if (reusable-p (exchange-protocol exchange)) :park :close)" ":park"
   :suites (clack/responses))))

(:file "clack/options.lisp" :suites (clack/running)
 :mutants
 (("thread-counts" "(setf most least)" "nil")
  ("thread-counts" "(min least most)" "least")
  ("check-place" "(and (getf arguments :listen) (getf arguments :fd))" "nil")
  ("tls-wanted-p" "(or (getf arguments :ssl-cert-file) (getf arguments :ssl-key-file))" "nil"
   :suites (clack/tls))))

(:file "clack/clack-server.lisp" :suites (clack/failures)
 :mutants
 (("note ((server clack-server)" "(equal control *rare-control*)" "t")
  ("note ((server clack-server)" "(when text" "(progn")
  ("server-statistics" "(journal-unwritten (server-journal server))" "0")))

(:file "clack/running.lisp" :suites (clack/running)
 :mutants
 (("open-clack-listener" "(tell-where address port condition)" "nil")
  ("stop-server" "(stop-listening server)" "nil")
  ("stop-server" "(end-journal (server-journal server))" "" :suites (clack/failures))
  ("start-server" "(start-journal (server-journal server))" "" :suites (clack/failures))
  ("run" "(stop server)" "nil")
  ("run" "(uninterruptibly" "(progn")
  ("make-engine-for" "(getf (server-place server) :parking t)" "t" :equivalent "It is all the same for clients.")))

;;; Connections that applications take over

(:file "clack/socket.lisp" :suites (clack/sockets)
 :mutants
 (("websocket-request-p" "(string-equal \"websocket\" upgrade)" "nil")
  ("websocket-request-p" "(string-equal \"websocket\" upgrade)" "t"
   :equivalent "The tests ask for no other protocol by that header.")
  ("untouched-p" "(eq exchange *answered*)" "t")
  ("untouched-p" "(eq :idle (our-side protocol))" "t")
  ("untouched-p" "(eq :done (client-side protocol))" "t")
  ("take-over-if-listened-to" "(program-socket-reader socket)" "nil")
  ("take-over" "(note-event exchange :switch)" "nil")
  ("settle-takeover" "(end-websocket socket)" "nil")
  ("fresh-octets" "(replace (make-octets (length octets)) octets)" "octets")
  ("join-clack-socket" "(eval definition)" "definition")))

(:file "src/server/upgrade/program-socket.lisp" :suites (clack/sockets)
 :mutants
 (("due-p" "(<= position (- (program-socket-put socket) (shared-queue-size shared-queue)))" "t")
  ("due-p" "(:data (not ended-p))" "(:data t)")
  ("due-p" "(not (program-socket-held-p socket))" "t")
  ("due-p" "(eq (bt:current-thread) (program-socket-teller socket))" "nil")
  ("become-caller-p" "(unless (program-socket-caller socket)" "(progn")
  ("fail-program-socket" "(setf (program-socket-failed-p socket) t)" "nil")
  ("fail-program-socket" "(count-failure (suspended-exchange-engine socket))" "nil")
  ("note-close-written" "(when (failure-code-p code)" "(when nil")
  ("note-close-written" "(when (over-p (websocket-state socket))" "(when nil")
  ("note-close-written" "(program-socket-held-p socket) t" "(program-socket-held-p socket) nil")
  ("put-close" "(close-owed-p (websocket-state socket))" "nil")
  ("ends-at-boundary-p" "(whole-frame-p octets)" "nil")
  ("ends-at-boundary-p" "#(13 10 13 10)" "#(13 10 13 13)")
  ("put-octets" "(farewell-said-p socket)" "nil")
  ("put-octets" "(plusp (length octets))" "t" :equivalent "A vector without octets is no more than one more to be sent.")
  ("put-written" "(incf (program-socket-put socket) (length octets))" "nil")
  ("put-written" "(or (eq :dropped result) (program-socket-held-p socket))" "nil")
  ("write-to-program-socket" "(call-written socket)" "nil")
  ("write-to-program-socket" "(end-websocket socket)" "nil")
  ("finish-program-socket" "(unless (eq :closing (websocket-state socket))" "(progn")
  ("finish-program-socket" "(setf (program-socket-finished-p socket) t)" "nil")
  ("finish-program-socket" "(flush-program-socket socket)" "nil")
  ("listen-to-program-socket" "(setf (program-socket-worker-wanted-p socket) t)" "nil")))

(:file "src/server/upgrade/program-input.lisp" :suites (clack/sockets)
 :mutants
 (("too-long-p" "(> size (program-socket-most-octets socket))" "nil")
  ("take-frame" "(too-long-p socket (- extent head))" "(too-long-p socket extent)" :suites (clack/socket-mishaps))
  ("count-in-message" "(incf (program-socket-message-size socket) (frame-payload-size frame))"
                      "(incf (program-socket-message-size socket) (length frame))" :suites (clack/socket-mishaps))
  ("hold-input" "(min (- extent fill) (- (io-end io) (io-start io)))" "(- (io-end io) (io-start io))")
  ("take-held" "(if (= extent (length held)) held (subseq held 0 extent))" "held")
  ("take-frame" "(= extent (program-socket-fill socket))" "t")
  ("count-in-message" "((control-frame-p frame))" "")
  ("count-in-message" "((continuation-frame-p frame)" "(t")
  ("count-in-message" "((continuation-frame-p frame)" "(nil")
  ("memory-for-frame" "((zerop (account-size memory)) 0)" "" :equivalent "It only counts more.")
  ("release-for-frame" "(not (control-frame-p frame))" "t")
  ("tell-program" "(not (program-socket-finished-p socket))" "t")
  ("tell-program" "(not (program-socket-failed-p socket))" "t")
  ("hand-to-program" "(lend-no-buffers io)" "nil" :equivalent "It costs memory only.")
  ("hand-close-over" "(step-websocket socket :receive-close)" "nil")
  ("reads-on-p" "(not (shared-queue-over-p (program-socket-shared-queue socket)))" "t"
   :equivalent "What is read then is not handed over, and the connection is closed next.")
  ("continue-over" "(written-called-p socket http)" "nil")
  ("continue-over" "((program-socket-worker-wanted-p socket)" "(nil")
  ("tell-of-end" "(if said-p 2 1)" "2")
  ("tell-of-end" "(if said-p 2 1)" "1")
  ("end-with-program" "(say-farewell socket)" "nil")
  ("end-with-program" "(tell-of-end socket)" "nil")))
