(in-package #:hunchentoot-recycling-taskmaster.websocket)

;;;; Messages to octets: RFC 6455, section 5.2.  A frame and its head are one vector, so that a
;;;; program encodes a message for many connections once.
;;;;
;;;; A server does not mask its frames, and MASK is NIL.  Tests play clients, which do: there, MASK
;;;; is 32 bits, and its lowest octet is the first.

(defconstant +most-control-octets+ 125
  "The maximum number of octets in the payload of a control frame (RFC 6455, section 5.5).")

(defun opcode-of (kind)
  "The opcode of frames of KIND."
  (case kind
    (:continuation 0)
    (:text 1)
    (:binary 2)
    (:close 8)
    (:ping 9)
    (:pong 10)
    (t (error "~S is not a kind of frame." kind))))

;;; The head

(defun length-octets (length)
  "The number of octets in the extended length of a frame with LENGTH octets of payload."
  (cond ((<= length +most-control-octets+) 0)
        ((< length #x10000) 2)
        (t 8)))

(defun head-size (length mask)
  "The number of octets in the head of a frame with LENGTH octets of payload and MASK."
  (+ 2 (length-octets length) (if mask 4 0)))

(defun put-big-endian (target position number count)
  "Puts NUMBER into COUNT octets of TARGET from POSITION on, the highest first."
  (declare (type octets target) (type index position) (type (integer 0 8) count)
           (type (unsigned-byte 62) number) #.*plain-policy*)
  (dotimes (i count (+ position count))
    (setf (aref target (+ position i)) (ldb (byte 8 (* 8 (- count i 1))) number))))

(defun put-frame-head (target kind length final-p mask)
  "Puts the head of a frame into TARGET, from 0 on.  Returns its end."
  (declare (type octets target) (type index length) (type (or null mask) mask) #.*plain-policy*)
  (let ((more (length-octets length))
        (mask-bit (if mask #x80 0)))
    (setf (aref target 0) (logior (if final-p #x80 0) (opcode-of kind))
          (aref target 1) (logior mask-bit (ecase more (0 length) (2 126) (8 127))))
    (let ((end (put-big-endian target 2 length more)))
      (when mask
        (dotimes (i 4)
          (setf (aref target (+ end i)) (ldb (byte 8 (* 8 i)) mask))))
      (+ end (if mask 4 0)))))

(defun check-control (kind length final-p)
  "Signals an error for a control frame that is not final or is too long."
  (when (and (<= 8 (opcode-of kind))
             (not (and final-p (<= length +most-control-octets+))))
    (error "A control frame must be final, with at most ~D octets of payload, not ~D."
           +most-control-octets+ length)))

(defun encode-frame-head (kind length &key (final-p t) mask)
  "The head, a fresh vector of octets, of a frame with a payload of LENGTH octets, an integer.  The
caller sends the payload after the head, masked with MASK, 32 bits, unless that is NIL.  KIND is
:TEXT, :BINARY, :PING, :PONG, :CLOSE or, for a further frame of a message, :CONTINUATION.  FINAL-P
is true for the last frame of a message.  Signals an error for a control frame that is not final or
has more than 125 octets (RFC 6455, section 5.2)."
  (check-type length index)
  (check-type mask (or null mask))
  (check-control kind length final-p)
  (let ((octets (make-octets (head-size length mask))))
    (put-frame-head octets kind length final-p mask)
    octets))

;;; The whole frame

(defun payload-size (payload)
  "The number of octets of PAYLOAD, a string or octets."
  (if (stringp payload)
      (encoded-length payload :utf-8)
      (length payload)))

(defun put-payload (target position payload size mask)
  "Puts PAYLOAD, a string or octets, of SIZE octets into TARGET from POSITION to its end, masked
with MASK unless that is NIL."
  (cond ((stringp payload)
         (let ((output (make-output target)))
           (setf (output-fill output) position)
           (encode-string output payload :utf-8 size))
         (when mask
           (unmask-octets target position (length target) target position mask)))
        (t
         (unmask-octets payload 0 size target position (or mask 0)))))

(defun utf-8-p (octets)
  "True if OCTETS are a complete text in UTF-8."
  (declare (type octets octets) #.*plain-policy*)
  (= +between-characters+ (check-utf-8 octets 0 (length octets) +between-characters+)))

(defun encode-frame (kind payload &key mask)
  "A whole frame, a fresh vector of octets: a message of KIND :TEXT or :BINARY, or a :PING or :PONG.
PAYLOAD is a string, which is encoded in UTF-8, or a vector of octets.  It is masked with MASK, 32
bits, unless that is NIL.  Signals an error if the octets of a :TEXT are not UTF-8, or if a :PING or
:PONG has more than 125 octets (RFC 6455, sections 5.5 and 5.6)."
  (check-type kind (member :text :binary :ping :pong))
  (check-type payload (or string (vector octet)))
  (check-type mask (or null mask))
  (let ((payload (if (stringp payload) payload (coerce payload 'octets))))
    (when (and (eq :text kind)
               (not (stringp payload))
               (not (utf-8-p payload)))
      (error "A text of ~D octets is not UTF-8." (length payload)))
    (frame-of kind payload mask)))

(defun frame-of (kind payload mask)
  "The frame of KIND that ENCODE-FRAME returns for PAYLOAD and MASK."
  (let ((size (payload-size payload)))
    (check-control kind size t)
    (let* ((octets (make-octets (+ (head-size size mask) size)))
           (start (put-frame-head octets kind size t mask)))
      (put-payload octets start payload size mask)
      octets)))

;;; Close

(defun cut-reason (octets most)
  "OCTETS, a text in UTF-8; cut after a whole character if they are more than MOST."
  (if (<= (length octets) most)
      octets
      (subseq octets 0 (loop for end downfrom most
                             ;; A continuation octet at END means that END is within a character.
                             while (= #x80 (logand #xC0 (aref octets end)))
                             finally (return end)))))

(defun encode-close (code &optional (reason "") mask)
  "A close frame, a fresh vector of octets, with CODE, an integer for which CLOSE-CODE-P is true,
and REASON, a string, which is cut to 123 octets.  The frame is masked with MASK, 32 bits, unless
that is NIL.  If CODE is +NO-CLOSE-CODE+, as DECODE-MESSAGE returns it, the frame has neither code
nor reason.  Signals an error for any other CODE (RFC 6455, sections 5.5.1 and 7.4)."
  (check-type code (or (eql 1005) (satisfies close-code-p)))
  (check-type reason string)
  (check-type mask (or null mask))
  (if (= +no-close-code+ code)
      (frame-of :close (make-octets 0) mask)
      (let* ((size (payload-size reason))
             (octets (make-octets size)))
        (put-payload octets 0 reason size nil)
        (let* ((cut (cut-reason octets (- +most-control-octets+ 2)))
               (payload (make-octets (+ 2 (length cut)))))
          (put-big-endian payload 0 code 2)
          (replace payload cut :start1 2)
          (frame-of :close payload mask)))))
