(in-package #:hunchentoot-recycling-taskmaster.websocket)

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
