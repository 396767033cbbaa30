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

(declaim (ftype (function (octets index index octets index mask) t) unmask-octets))

(declaim (inline mask-group))
(defun mask-group (mask)
  "A group filled with repetitions of MASK."
  (declare (type mask mask) #.*hot-policy*)
  (loop with group of-type octet-group = mask
        for shift from 32 below (* 8 +group-size+) by 32
        do (setf group (logior group (ldb (byte (* 8 +group-size+) 0) (ash mask shift))))
        finally (return group)))

(defun unmask-octets (source start end target position mask)
  "Puts SOURCE from START below END into TARGET at POSITION.  Each octet is XORed with the next
octet of MASK, from the lowest on.  SOURCE and START may be TARGET and POSITION."
  (declare (type octets source target) (type index start end position) (type mask mask)
           #.*hot-policy*)
  (let ((group (mask-group mask)))
    (declare (type octet-group group))
    (loop while (<= (+ start +group-size+) end)
          do (setf (octet-group target position) (logxor group (octet-group source start)))
             (setf start (the index (+ start +group-size+))
                   position (the index (+ position +group-size+))))
    (loop while (< start end)
          do (setf (aref target position) (logxor (logand 255 group) (aref source start))
                   group (ash group -8)
                   start (the index (1+ start))
                   position (the index (1+ position))))))

;;; Messages to octets: RFC 6455, section 5.2.  A frame and its head are one vector, so that a
;;; program encodes a message for many connections once.
;;;
;;; A server does not mask its frames, and MASK is NIL.  Otherwise it is 32 bits, and its lowest
;;; octet is the first.

(defconstant +most-control-octets+ 125
  "The maximum number of octets in the payload of a control frame (RFC 6455, section 5.5).")

(defparameter *opcodes* '(:text 1 :binary 2 :close 8 :ping 9 :pong 10)
  "The opcodes of the kinds of frames.")

(defun frame-of (kind payload mask)
  "A frame of KIND, of *OPCODES*, with PAYLOAD, a string or octets, and MASK."
  (let* ((size (if (stringp payload) (encoded-length payload :utf-8) (length payload)))
         (opcode (getf *opcodes* kind))
         (more (cond ((<= size +most-control-octets+) 0) ((< size #x10000) 2) (t 8)))
         (start (+ 2 more (if mask 4 0)))
         (octets (make-octets (+ start size))))
    (declare (type index size start) (type (integer 0 8) more) (type (or null mask) mask)
             #.*plain-policy*)
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
          (t
           (unmask-octets payload 0 size octets start (or mask 0))))
    octets))

(defun encode-frame (kind payload &key mask)
  "A whole frame, a fresh vector of octets: a message of KIND :TEXT or :BINARY, or a :PING or :PONG.
PAYLOAD is a string, which is encoded in UTF-8, or a vector of octets.  It is masked with MASK, 32
bits, unless that is NIL.  Signals an error if the octets of a :TEXT are not UTF-8, or if a :PING or
:PONG has more than 125 octets (RFC 6455, sections 5.5 and 5.6)."
  (check-type kind (member :text :binary :ping :pong))
  (check-type payload (or string (vector octet)))
  (check-type mask (or null mask))
  (let ((payload (if (stringp payload) payload (coerce payload 'octets))))
    (unless (or (not (eq :text kind))
                (stringp payload)
                (eql (length payload) (utf-8-end payload 0 (length payload))))
      (error "A text of ~D octets is not UTF-8." (length payload)))
    (frame-of kind payload mask)))

(defun close-frame (code reason mask)
  "A close frame with CODE, if that is not +NO-CLOSE-CODE+; and REASON, as far as it fits."
  (let* ((octets (utf-8-octets reason))
         (end (min (length octets) (- +most-control-octets+ 2))))
    (when (< end (length octets))       ; it is cut after a whole character
      (loop while (= #x80 (logand #xC0 (aref octets end)))
            do (decf end)))
    (frame-of :close
              (if (= +no-close-code+ code)
                  (make-octets 0)
                  (concatenate 'octets (list (ash code -8) (logand 255 code))
                               (subseq octets 0 end)))
              mask)))

(defun encode-close (code &optional (reason "") mask)
  "A close frame, a fresh vector of octets, with CODE, an integer that a close frame may have, and
REASON, a string, which is cut to 123 octets.  The frame is masked with MASK, 32 bits, unless that
is NIL.  If CODE is +NO-CLOSE-CODE+, as DECODE-MESSAGE returns it, the frame has neither code nor
reason.  Signals an error for any other CODE (RFC 6455, sections 5.5.1 and 7.4)."
  (check-type code (or (eql 1005) (satisfies close-code-p)))
  (check-type reason string)
  (check-type mask (or null mask))
  (close-frame code reason mask))

;;; For programs that read and write frames themselves

(defun whole-frame-p (octets)
  "The position of the payload if OCTETS, a vector, are exactly one frame of a server; else NIL (RFC
6455, section 5.2)."
  (when (< 1 (length octets))
    (let* ((size (aref octets 1))
           (start (case size (126 4) (127 10) (t 2))))
      (when (<= start (length octets))
        (when (< 2 start)
          (setf size (reduce (lambda (number octet) (+ (* 256 number) octet))
                             octets :start 2 :end start :initial-value 0)))
        (and (= (+ start size) (length octets))
             start)))))

(defun close-frame-code (octets)
  "The code, an integer, in OCTETS, a vector, if they are one close frame of a server; +NO-CLOSE-
CODE+ if that has none; else NIL (RFC 6455, section 5.5.1)."
  (let ((start (whole-frame-p octets)))
    (cond ((or (null start) (/= #x88 (aref octets 0))) nil)
          ((< (length octets) (+ 2 start)) +no-close-code+)
          (t (+ (* 256 (aref octets start)) (aref octets (1+ start)))))))
