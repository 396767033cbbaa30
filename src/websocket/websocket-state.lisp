(in-package #:hunchentoot-recycling-taskmaster.websocket)

;;;; The states of a WebSocket: RFC 6455, sections 5.5.1 and 7.  A state tells what each side may
;;;; still send, and whether we close the TCP connection.  The first state is :OPEN, after 101
;;;; (Switching Protocols) was sent.
;;;;
;;;;   state               history                              we send      we read  we close TCP
;;;;   :OPEN               neither side has sent close          anything     yes      no
;;;;   :CLOSING            we sent close, the client did not    nothing      yes      on timeout
;;;;   :CLOSED-BY-CLIENT   the client sent close                close, once  no       no
;;;;   :FAILED             the client broke a rule              close, once  no       no
;;;;   :CLOSED             we sent close, and expect no other   nothing      no       at once
;;;;   :GONE               the TCP connection has ended         nothing      no       -
;;;;
;;;; The server closes the TCP connection first, so that the client does not keep its port in
;;;; TIME_WAIT (section 7.1.1).  The server ignores all octets after the client's close frame or
;;;; failure.  After its own close frame, a side may discard messages or still accept them.

(defparameter *websocket-steps*
  '((:open             (:send-close :closing) (:receive-close :closed-by-client) (:fail :failed)
                       (:end :gone))
    (:closing          (:receive-close :closed) (:fail :closed) (:end :gone))
    (:closed-by-client (:send-close :closed) (:end :gone))
    (:failed           (:send-close :closed) (:end :gone))
    (:closed           (:end :gone))
    (:gone             (:end :gone)))
  "A list of (STATE (STEP AFTER) ...).  In the steps :SEND-CLOSE and :RECEIVE-CLOSE, a close frame
is sent or was received; in :FAIL, the client has broken a rule; in :END, either side has ended the
TCP connection.  A step that is not in the entry of a state is illegal in it.")

(defun next-websocket-state (state step)
  "The state, a keyword, after STEP, a keyword, in STATE; see *WEBSOCKET-STEPS*.  Signals an error
if STEP is illegal in STATE, a defect of the caller (RFC 6455, sections 5.5.1 and 7.1)."
  (or (second (assoc step (rest (assoc state *websocket-steps*))))
      (error "~S cannot happen to a WebSocket that is ~S." step state)))

(defun sending-p (state)
  "True if messages, pings and pongs may be sent in STATE, a keyword (RFC 6455, section 5.5.1)."
  (eq :open state))

(defun receiving-p (state)
  "True if the server still reads frames in STATE, a keyword (RFC 6455, section 5.5.1)."
  (and (member state '(:open :closing)) t))

(defun close-owed-p (state)
  "True if the server has to send a close frame next in STATE, a keyword, since the client has sent
one or has broken a rule (RFC 6455, sections 5.5.1 and 7.1.7)."
  (and (member state '(:closed-by-client :failed)) t))

(defun over-p (state)
  "True if the TCP connection has ended in STATE, a keyword, or the server has to close it at once
(RFC 6455, section 7.1.1)."
  (and (member state '(:closed :gone)) t))

;;; Codes of close frames: RFC 6455, section 7.4, and the registry of IANA.

(defconstant +no-close-code+ 1005
  "The code that the program gets for a close frame without a code.  It is never sent (RFC 6455,
section 7.4.1).")

(defconstant +going-away+ 1001
  "The code in a close frame of a server that stops, or of a browser that leaves the page (RFC 6455,
section 7.4.1).")

(defconstant +abnormal-end+ 1006
  "The code that the program gets if the connection ends without a close frame.  It is never sent
(RFC 6455, section 7.4.1).")

(defun close-code-p (code)
  "True if a close frame may have CODE, an integer: 1000 to 1003, 1007 to 1014, or 3000 to 4999,
which are for libraries and programs (RFC 6455, section 7.4)."
  ;; 1004, 1005, 1006 and 1015 are reserved.  1012, 1013 and 1014 were registered after the RFC.
  (or (<= 1000 code 1003)
      (<= 1007 code 1014)
      (<= 3000 code 4999)))

(defun failure-code-p (code)
  "True if a side that sends a close frame with CODE, an integer, fails the connection, and so
expects no close frame in return (RFC 6455, sections 7.1.7 and 7.4.1)."
  (and (<= 1002 code 1015)
       (/= +no-close-code+ code)))

;;; Every reason for which a decoder fails a connection: the code for the close frame, the section
;;; of RFC 6455 with the rule, and a sentence for the client that fits into a close frame.

(defparameter *failures*
  '((:reserved-bits 1002 "5.2" "A reserved bit of a frame is set.")
    (:unknown-opcode 1002 "5.2" "The opcode of a frame is reserved.")
    (:fragmented-control 1002 "5.5" "A control frame is fragmented.")
    (:stray-continuation 1002 "5.4" "A continuation frame continues no message.")
    (:interrupted-message 1002 "5.4" "A message begins before the previous one has ended.")
    (:unmasked-frame 1002 "5.1" "A frame of a client is not masked.")
    (:masked-frame 1002 "5.1" "A frame of a server is masked.")
    (:control-too-long 1002 "5.5" "A control frame has more than 125 octets.")
    (:close-of-one-octet 1002 "5.5.1" "A close frame has half a code.")
    (:invalid-close-code 1002 "7.4" "A close frame has an invalid code.")
    (:length-not-minimal 1002 "5.2" "The length of a frame is not in the shortest form.")
    (:length-too-large 1002 "5.2" "The length of a frame has more than 63 bits.")
    (:text-not-utf-8 1007 "8.1" "A text is not UTF-8.")
    (:reason-not-utf-8 1007 "8.1" "The reason of a close frame is not UTF-8.")
    (:frame-too-large 1009 "10.4" "A frame is larger than this server takes.")
    (:message-too-large 1009 "10.4" "A message is larger than this server takes.")
    (:no-memory 1013 "10.4" "The server has no memory for the message at the moment."))
  "A list of (FAILURE CODE SECTION REASON).")
