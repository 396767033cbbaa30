(defpackage #:hunchentoot-recycling-taskmaster.platform
  (:documentation "Private.  The interface to the operating system and to the Lisp: the only layer
with reader conditionals, foreign calls and file descriptors.  sbcl.lisp, ecl.lisp and
abcl.lisp have the same operators for each Lisp; linux/ has what SBCL does on Linux alone, and
usockets.lisp the same by usocket, as far as it goes.")
  (:use #:common-lisp #:hunchentoot-recycling-taskmaster.base)
  (:export
   ;; clock, machine, threads
   #:milliseconds #:as-milliseconds #:universal-milliseconds #:microseconds #:processor-count
   #:uninterruptibly #:interruptibly #:end-after #:milliseconds-left #:wait-until #:wait-on
   #:clear-stack #:destroy-thread #:join-thread #:unwind-protect-whole #:call-making-thread
   #:process-exits-p #:call-at-exit #:call-on-signal #:exit-process
   ;; listeners
   #:prepare-listener #:accept-connection #:pending-connection-p #:wake-listener #:admit-held
   #:stop-arrivals #:close-listener #:accept-failed #:accept-error-kind
   ;; listeners that usocket cannot make
   #:listen-failed #:access-denied-p #:inherited-designator
   #:inherited-descriptor #:open-path-listener #:open-inherited-listener
   #:open-shared-port-listener
   ;; what a service tells its manager
   #:process-number #:take-variable #:take-number #:send-notification
   ;; connections
   #:await-input #:limit-waits #:wait-timed-out-p #:shut-down #:socket-open-p #:close-socket
   #:peer-name #:peer-gone #:local-name #:socket-octet-stream #:socket-asked-p #:watch-socket
   #:close-gently #:read-stream-octets #:write-stream-octets #:receive-before-stream
   ;; readiness: non-blocking descriptors, and pollers
   #:readiness-supported-p #:descriptor #:token #:would-block-p #:+would-block+ #:error-text
   #:+ebadf+ #:+eio+ #:+no-descriptor+ #:socket-descriptor #:descriptor-peer-name
   #:receive-octets #:drop-octets #:+most-dropped+ #:send-octets
   #:accept-descriptor #:close-descriptor #:shut-descriptor
   ;; streams of the Lisp on descriptors
   #:descriptor-usocket #:lend-stream #:lisp-stream-descriptor
   #:lisp-stream-milliseconds #:put-read-ahead #:set-blocking #:first-octet
   #:defer-accepts #:await-descriptor #:unsent-octets
   #:poller #:make-poller #:close-poller #:watch #:rearm
   #:wake-one #:await-ready #:token-hangup-p #:plain-token #:make-timer-descriptor
   #:arm-timer-descriptor
   ;; streams of client libraries
   #:await-stream-input #:call-within
   ;; addresses as octets
   #:address-string
   ;; functions of other libraries, and the heap
   #:functions-can-be-wrapped-p #:wrap-function #:call-for-backtrace
   #:heap-octets #:heap-used #:collection-seconds #:frames-of-thread
   #:collect-garbage
   ;; TLS: certificates, keys and settings
   #:tls-context #:make-tls-context #:make-tls-stream #:tls-mistake
   #:tls-mistake-subject #:tls-mistake-words
   #:tls-failure-words #:stream-tls-handle #:tls-facts #:peer-certificate-facts
   ;; octets through TLS
   #:make-tls-session #:tls-session-pointer #:call-with-tls-handle #:shake-hands #:end-tls-session
   #:receive-tls #:send-tls #:tls-awaits #:tls-session-drained-p
   #:tls-session-protocol
   ;; compressors
   #:coding-library-p #:make-compressor #:reset-compressor #:run-compressor #:end-compressor
   #:compressor-content
   ;; files as descriptors
   #:prepare-process #:native-name #:open-file #:file-facts #:read-file-octets #:write-file-octets
   #:send-file #:open-temporary-file #:private-folder
   ;; threads as the system schedules them, and the sentinel's tick
   #:thread-identity #:thread-state #:thread-run-time #:processor-stall #:processor-idle-time
   #:online-processors #:schedule-as-batch #:let-timers-be-late #:nap #:finalize-classes
   ;; locks, and atomics
   #:with-lock-briefly #:set-published #:compare-and-set
   #:make-counter #:counter-add #:counter-add-up-to #:counter-count))

(in-package #:hunchentoot-recycling-taskmaster.platform)

(defparameter *hot-files* '("linux/descriptors" "linux/epoll")
  "The files of src/platform/ that may use *HOT-POLICY*.  Their functions trust their arguments:
every caller has checked types and bounds.")
