(in-package #:hunchentoot-recycling-taskmaster.websocket)

;;;; hot: frames, and the masks that touch every octet of a message.
;;;;
;;;; The states of a WebSocket: RFC 6455, sections 5.5.1 and 7.  A state tells what each side may
;;;; still send, and whether we close the TCP connection.  The first state is :OPEN, after 101
;;;; (Switching Protocols) was sent.
;;;;
;;;;   state               history                              we send      we read  we close TCP
;;;;   :OPEN               neither side has sent close          anything     yes      no
;;;;   :CLOSING            we sent close, the client did not    nothing      yes      on timeout
;;;;   :CLOSED-BY-CLIENT   the client sent close, or broke a rule   close, once  no   no
;;;;   :CLOSED             we sent close, and expect no other   nothing      no       at once
;;;;   :GONE               the TCP connection has ended         nothing      no       -
;;;;
;;;; The server closes the TCP connection first, so that the client does not keep its port in
;;;; TIME_WAIT (section 7.1.1).  The server ignores all octets after the client's close frame or
;;;; failure.  After its own close frame, a side may discard messages or still accept them.

(defun next-websocket-state (state step)
  "The state, a keyword, after STEP, a keyword, in STATE.  In the steps :SEND-CLOSE and
:RECEIVE-CLOSE, a close frame is sent, or was received or owed by a client that has broken a rule;
in :END, either side has ended the TCP connection.  Signals an error if STEP is illegal in STATE, a
defect of the caller (RFC 6455, sections 5.5.1 and 7.1)."
  (ecase step
    (:send-close (ecase state (:open :closing) (:closed-by-client :closed)))
    (:receive-close (ecase state (:open :closed-by-client) (:closing :closed)))
    (:end :gone)))

(defun sending-p (state)
  "True if messages, pings and pongs may be sent in STATE, a keyword (RFC 6455, section 5.5.1)."
  (eq :open state))

(defun receiving-p (state)
  "True if the server still reads frames in STATE, a keyword (RFC 6455, section 5.5.1)."
  (and (member state '(:open :closing)) t))

(defun close-owed-p (state)
  "True if the server has to send a close frame next in STATE, a keyword, since the client has sent
one or has broken a rule (RFC 6455, sections 5.5.1 and 7.1.7)."
  (eq :closed-by-client state))

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

;;; Every reason for which a decoder fails a connection: the code for the close frame, and a
;;; sentence for the client that fits into it (RFC 6455, sections 5.1 to 5.5, 7.4, 8.1 and 10.4).

(defparameter *failures*
  '((:reserved-bits 1002 "A reserved bit of a frame is set.")
    (:unknown-opcode 1002 "The opcode of a frame is reserved.")
    (:fragmented-control 1002 "A control frame is fragmented.")
    (:stray-continuation 1002 "A continuation frame continues no message.")
    (:interrupted-message 1002 "A message begins before the previous one has ended.")
    (:unmasked-frame 1002 "A frame of a client is not masked.")
    (:masked-frame 1002 "A frame of a server is masked.")
    (:control-too-long 1002 "A control frame has more than 125 octets.")
    (:close-of-one-octet 1002 "A close frame has half a code.")
    (:invalid-close-code 1002 "A close frame has an invalid code.")
    (:length-not-minimal 1002 "The length of a frame is not in the shortest form.")
    (:length-too-large 1002 "The length of a frame has more than 63 bits.")
    (:text-not-utf-8 1007 "A text is not UTF-8.")
    (:reason-not-utf-8 1007 "The reason of a close frame is not UTF-8.")
    (:message-too-large 1009 "A message is larger than this server takes.")
    (:no-memory 1013 "The server has no memory for the message at the moment."))
  "A list of (FAILURE CODE REASON).")

;;; Masks: RFC 6455, section 5.3.  No function here checks its arguments: their callers ensure that
;;; every range lies within its vector.

(deftype mask ()
  "A masking key, with its first octet in the lowest bits (RFC 6455, section 5.3)."
  '(unsigned-byte 32))

(declaim (ftype (function (octets index index octets index mask) mask) unmask-octets))
(defun unmask-octets (source start end target position mask)
  "Puts SOURCE from START below END into TARGET at POSITION, each octet XORed with the next octet of
MASK, from the lowest on.  SOURCE and START may be TARGET and POSITION.  Returns the mask for the
octets that follow."
  (declare (type octets source target) (type index start end position) (type mask mask)
           #.*hot-policy*)
  (loop for index of-type index from start below end
        do (setf (aref target position) (logxor (logand 255 mask) (aref source index))
                 position (the index (1+ position))
                 mask (logior (ash mask -8) (ash (logand 255 mask) 24)))
        finally (return mask)))

;;; The head of a frame: RFC 6455, section 5.2

(defconstant +most-control-octets+ 125
  "The maximum number of octets in the payload of a control frame (RFC 6455, section 5.5).")

(defun payload-size (head)
  "The size of the payload that HEAD, at least two octets of a frame, announces, if all octets of
the length have come; and the position after them (RFC 6455, section 5.2)."
  (declare (type octets head) #.*plain-policy*)
  (let ((size (logand 127 (aref head 1))))
    (if (<= size +most-control-octets+)
        (values size 2)
        (let ((end (if (= 126 size) 4 10)))
          (values (reduce (lambda (number octet) (+ (* 256 number) octet))
                          head :start 2 :end (min end (length head)) :initial-value 0)
                  end)))))

;;; Messages to octets: RFC 6455, section 5.2.  A frame and its head are one vector, so that a
;;; program encodes a message for many connections once.
;;;
;;; A server does not mask its frames, and MASK is NIL.  Otherwise it is 32 bits, and its lowest
;;; octet is the first.

(defun encode-frame (kind payload &key mask)
  "A whole frame, a fresh vector of octets: a message of KIND :TEXT or :BINARY, or a :PING, :PONG or
:CLOSE.  PAYLOAD is a string, which is encoded in UTF-8, or a vector of octets.  It is masked with
MASK, 32 bits, unless that is NIL.  Signals an error if the payload of a control frame has more than
125 octets (RFC 6455, sections 5.5 and 5.6)."
  (check-type payload (or string (vector octet)))
  (check-type mask (or null mask))
  (let* ((payload (if (stringp payload) payload (coerce payload 'octets)))
         (size (if (stringp payload) (encoded-length payload :utf-8) (length payload)))
         (opcode (ecase kind (:text 1) (:binary 2) (:close 8) (:ping 9) (:pong 10)))
         (more (cond ((<= size +most-control-octets+) 0) ((< size #x10000) 2) (t 8)))
         (start (+ 2 more (if mask 4 0)))
         (octets (make-octets (+ start size))))
    (declare (type index size start) (type (integer 0 8) more) #.*plain-policy*)
    (when (and (<= 8 opcode) (plusp more))
      (error "A control frame must have at most ~D octets of payload, not ~D."
             +most-control-octets+ size))
    (setf (aref octets 0) (logior #x80 opcode)
          (aref octets 1) (logior (if mask #x80 0) (ecase more (0 size) (2 126) (8 127))))
    (dotimes (i more)                   ; the highest octet of the length first
      (setf (aref octets (+ 2 i)) (ldb (byte 8 (* 8 (- more i 1))) size)))
    (when mask
      (dotimes (i 4)
        (setf (aref octets (+ start -4 i)) (ldb (byte 8 (* 8 i)) mask))))
    (cond ((stringp payload)
           (let ((output (make-output octets)))
             (setf (output-fill output) start)
             (encode-string output payload :utf-8 size))
           (when mask
             (unmask-octets octets start (length octets) octets start mask)))
          (mask (unmask-octets payload 0 size octets start mask))
          (t (replace octets payload :start1 start)))
    octets))

(defun close-frame (code reason mask)
  "A close frame with CODE, if that is not +NO-CLOSE-CODE+; and REASON, as far as it fits."
  (let* ((octets (utf-8-octets reason))
         (end (min (length octets) (- +most-control-octets+ 2))))
    (when (< end (length octets))       ; it is cut after a whole character
      (loop while (= #x80 (logand #xC0 (aref octets end)))
            do (decf end)))
    (encode-frame :close
                  (if (= +no-close-code+ code)
                      (make-octets 0)
                      (concatenate 'octets (list (ash code -8) (logand 255 code))
                                   (subseq octets 0 end)))
                  :mask mask)))

(defun encode-close (code &optional (reason "") mask)
  "A close frame, a fresh vector of octets, with CODE, an integer that a close frame may have, and
REASON, a string, which is cut to 123 octets.  The frame is masked with MASK, 32 bits, unless that
is NIL.  If CODE is +NO-CLOSE-CODE+, as DECODE-MESSAGE returns it, the frame has neither code nor
reason.  Signals an error for any other CODE (RFC 6455, sections 5.5.1 and 7.4)."
  (check-type code (or (eql 1005) (satisfies close-code-p)))
  (close-frame code reason mask))

;;; For programs that read and write frames themselves

(defun close-frame-code (octets)
  "The code, an integer, in OCTETS, a vector, if they are one close frame of a server; +NO-CLOSE-
CODE+ if that has none; else NIL (RFC 6455, section 5.5.1)."
  (and (< 1 (length octets))
       (= #x88 (aref octets 0))
       (= (length octets) (+ 2 (aref octets 1)))
       (if (< (length octets) 4)
           +no-close-code+
           (+ (* 256 (aref octets 2)) (aref octets 3)))))
