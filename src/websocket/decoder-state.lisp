(in-package #:hunchentoot-recycling-taskmaster.websocket)

;;;; What a decoder remembers; message-decoder.lisp has its phases.
;;;;
;;;; Invariants:
;;;; - HELD has the octets of the message so far, FILL of them, unmasked; KIND is NIL between messages,
;;;;   and HELD is empty then.  It is never larger than twice what has come, whatever a frame announces.
;;;; - FILL is never more than HELD has room for, nor CHARACTERS less than the characters that begin in
;;;;   those octets, even where a thread is interrupted amid a step: functions that check nothing rely on
;;;;   it.  So the order matters in which they are set.
;;;; - CONTROL is the payload of the control frame that is being read, else NIL; its last REMAINING
;;;;   octets have not come.

(defparameter *no-octets* (make-octets 0)
  "What is held of nothing.")

(defconstant +usual-limit+ (* 1024 1024)
  "The most octets that a message may have if nobody says otherwise.")

(defstruct (message-decoder (:include opaque) (:copier nil) (:predicate nil) (:conc-name decoder-)
                            (:constructor %make-message-decoder
                                (masked-p most-frame-octets most-message-octets reserve)))
  "Finds the messages in what a connection receives; see DECODE-MESSAGE."
  (masked-p t :type boolean :read-only t) ; frames have to be masked
  (most-frame-octets 0 :type index :read-only t)
  (most-message-octets 0 :type index :read-only t)
  (reserve nil :type (or null function) :read-only t)
  (phase 'read-first-octet :type symbol)
  ;; The frame
  (final-p nil :type boolean)
  (opcode 0 :type (unsigned-byte 4))
  (due 0 :type (integer 0 8))
  (least 0 :type index)                 ; the least length that may be written in this way
  (number 0 :type (unsigned-byte 64))   ; the length as far as it was read
  (mask 0 :type mask)                   ; the octet for the next of the payload is the lowest
  (remaining 0 :type index)
  (control nil :type (or null octets))
  ;; The message
  (kind nil :type (member nil :text :binary))
  (held *no-octets* :type octets)
  (fill 0 :type index)
  (reserved-p nil :type boolean)        ; memory was reserved for it
  (text-state +between-characters+ :type utf-8-state)
  (characters 0 :type index))

(defun make-message-decoder (&key (role :server) (message-octets +usual-limit+)
                               (frame-octets message-octets) reserve)
  "A decoder of what a client sends, or if ROLE is :CLIENT, and not :SERVER, of what a server sends.
No message may have more than MESSAGE-OCTETS, and no frame of one more than FRAME-OCTETS, integers
(RFC 6455, section 10.4).  RESERVE, unless it is NIL, is called before memory is taken for a message
of which not all has come: with a number of octets, and whether that is to hand over a whole
message.  Where it returns NIL, the message is a failure."
  (check-type role (member :server :client))
  (check-type message-octets index)
  (check-type frame-octets index)
  (check-type reserve (or null function))
  (%make-message-decoder (eq :server role) frame-octets message-octets reserve))

(defun decoder-idle-p (decoder)
  "True if DECODER has seen no octet of a frame, nor of a message, that has not ended."
  (check-type decoder message-decoder)
  (and (eq 'read-first-octet (decoder-phase decoder))
       (null (decoder-kind decoder))))

(defun octets-held (decoder)
  "How many octets of memory DECODER holds for a frame or a message that has not ended."
  (check-type decoder message-decoder)
  (+ (length (decoder-held decoder)) (length (decoder-control decoder))))

(defun drop-message (decoder)
  "Makes DECODER hold nothing, between two messages."
  (setf (decoder-fill decoder) 0
        (decoder-held decoder) *no-octets*
        (decoder-reserved-p decoder) nil
        (decoder-kind decoder) nil
        (decoder-text-state decoder) +between-characters+
        (decoder-characters decoder) 0
        (decoder-control decoder) nil))

(defun reserve-for-message (decoder octets whole-p)
  "Reserves OCTETS for the message of DECODER, which is whole if WHOLE-P.  NIL where there is no
memory."
  (let ((reserve (decoder-reserve decoder)))
    (or (null reserve)
        (progn (setf (decoder-reserved-p decoder) t)
               (funcall reserve octets whole-p)))))

(defun end-decoding (decoder)
  "Makes DECODER skip whatever comes."
  (drop-message decoder)
  (setf (decoder-phase decoder) 'skip-rest
        (decoder-remaining decoder) 0))

(defun fail (decoder position failure)
  "What a step returns at POSITION that has found FAILURE, a keyword of *FAILURES*."
  (destructuring-bind (code section reason) (rest (assoc failure *failures*))
    (declare (ignore section))
    (end-decoding decoder)
    (values position :failure code reason)))
