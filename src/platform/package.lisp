(defpackage #:hunchentoot-recycling-taskmaster.platform
  (:documentation "Private.  The door to the operating system and to the Lisp
beneath us: the only place with reader conditionals, foreign calls and file
descriptors.  One file for each Lisp defines the few operators that differ
\(those with a % in their names); sockets.lisp builds what the engine calls on top of them.")
  (:use #:common-lisp #:hunchentoot-recycling-taskmaster.base)
  (:export
   ;; clock and machine
   #:milliseconds #:processor-count #:uninterruptibly #:wait-on
   ;; listeners
   #:accept-connection #:pending-connection-p #:wake-listener #:close-listener
   #:accept-failed #:listener-closed #:descriptors-exhausted
   ;; connections
   #:await-input #:limit-waits #:shut-down #:close-socket #:send-without-delay
   #:peer-name #:local-name #:socket-octet-stream #:close-gently))
