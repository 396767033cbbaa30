(in-package #:hunchentoot-recycling-taskmaster.websocket)

;;; Codes of close frames: RFC 6455, section 7.4, and the registry of IANA.

(defconstant +no-close-code+ 1005
  "What the program is told as the code of a close frame without one; never sent (RFC 6455, section
7.4.1).")

(defconstant +going-away+ 1001
  "The code of a close frame of a server that stops, or of a browser that leaves the page (RFC 6455,
section 7.4.1).")

(defconstant +abnormal-end+ 1006
  "What the program is told as the code where the connection has ended without a close frame; never
sent (RFC 6455, section 7.4.1).")

(defun close-code-p (code)
  "True if CODE, an integer, may stand in a close frame (RFC 6455, section 7.4): 1000 to 1003, 1007
to 1014, and 3000 to 4999, which are those of libraries and programs."
  ;; 1004, 1005, 1006 and 1015 are reserved; 1012, 1013 and 1014 came after the RFC.
  (or (<= 1000 code 1003)
      (<= 1007 code 1014)
      (<= 3000 code 4999)))

;;; Every reason for which a decoder gives a connection up: the code to close it with, the section
;;; of RFC 6455 that has the rule, and a sentence for the client, short enough for a close frame.

(defparameter *failures*
  '((:reserved-bits 1002 "5.2" "A reserved bit of a frame is set.")
    (:unknown-opcode 1002 "5.2" "The opcode of a frame is reserved.")
    (:fragmented-control 1002 "5.5" "A control frame is fragmented.")
    (:stray-continuation 1002 "5.4" "A continuation continues no message.")
    (:interrupted-message 1002 "5.4" "A message begins before the one before it has ended.")
    (:unmasked-frame 1002 "5.1" "A frame of a client is not masked.")
    (:masked-frame 1002 "5.1" "A frame of a server is masked.")
    (:control-too-long 1002 "5.5" "A control frame has more than 125 octets.")
    (:close-of-one-octet 1002 "5.5.1" "A close frame has half a code.")
    (:invalid-close-code 1002 "7.4" "A close frame has a code that none may have.")
    (:length-not-minimal 1002 "5.2" "The length of a frame is not written the shortest way.")
    (:length-too-large 1002 "5.2" "The length of a frame has more than 63 bits.")
    (:text-not-utf-8 1007 "8.1" "A text is not UTF-8.")
    (:reason-not-utf-8 1007 "8.1" "The reason of a close frame is not UTF-8.")
    (:frame-too-large 1009 "10.4" "A frame is larger than this server takes.")
    (:message-too-large 1009 "10.4" "A message is larger than this server takes.")
    (:no-memory 1013 "10.4" "There is no memory for the message now."))
  "A list of (FAILURE CODE SECTION REASON).")
