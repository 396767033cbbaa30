(defpackage #:hunchentoot-recycling-taskmaster.websocket
  (:documentation "Private.  The WebSocket protocol, RFC 6455, without I/O: the opening handshake;
octets to messages; messages to octets; and the states of a connection.  This layer uses no socket,
stream, thread or clock.")
  (:use #:common-lisp #:hunchentoot-recycling-taskmaster.base)
  (:import-from #:hunchentoot-recycling-taskmaster.http
                #:check-range #:list-elements #:token-p
                #:make-output #:output-fill #:encoded-length #:encode-string
                #:utf-8-octets #:utf-8-text)
  (:export
   ;; the opening handshake
   #:accept-handshake #:handshake-headers #:accept-key
   #:handshake-refused #:handshake-refused-status #:handshake-refused-reason
   #:handshake-refused-headers
   ;; octets to messages
   #:make-message-decoder #:decode-message #:end-decoding
   ;; messages to octets
   #:encode-frame #:encode-close
   ;; frames of programs
   #:close-frame-code #:close-frame #:failure-code-p
   ;; codes of close frames
   #:+no-close-code+ #:+going-away+ #:+abnormal-end+
   ;; the states of a connection
   #:next-websocket-state #:sending-p #:receiving-p #:close-owed-p #:over-p))

(in-package #:hunchentoot-recycling-taskmaster.websocket)

(defparameter *hot-files* '("websocket-frames")
  "The files of src/websocket/ that may use *HOT-POLICY*.  Their functions trust their arguments:
every caller has checked types and bounds under *PLAIN-POLICY*.")
