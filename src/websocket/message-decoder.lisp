(in-package #:hunchentoot-recycling-taskmaster.websocket)

;;;; Octets to messages: RFC 6455, sections 5 and 8.1.  Like the parsers of HTTP a decoder is a
;;;; machine of phases.  It judges each octet once, in order, as soon as it is there, so what a
;;;; connection means, and with which failure it ends, does not depend on how its octets arrive.
;;;;
;;;;   phase              awaits                                      then
;;;;   READ-FIRST-OCTET   the first octet of a frame                  READ-SECOND-OCTET
;;;;   READ-SECOND-OCTET  mask bit and length of 7 bits               READ-LENGTH, READ-MASK, TAKE-PAYLOAD
;;;;   READ-LENGTH        DUE octets of the length                    READ-MASK, TAKE-PAYLOAD
;;;;   READ-MASK          DUE octets of the mask                      TAKE-PAYLOAD
;;;;   TAKE-PAYLOAD       REMAINING octets of the payload             READ-FIRST-OCTET
;;;;   SKIP-REST          nothing: after a close frame or a failure   SKIP-REST
;;;;
;;;; Where a frame has no payload, its end comes at once.

(defmacro define-frame-step (name (decoder octets position end) documentation &body body)
  "Defines NAME as a phase of DECODER that is given OCTETS from POSITION below END, at least one.
BODY answers the position after what it took; and where that completes an event, its kind, its value
and what more is to be said of it."
  `(defun ,name (,decoder ,octets ,position ,end)
     ,documentation
     (declare (type message-decoder ,decoder) (type octets ,octets) (type index ,position ,end)
              (ignorable ,decoder ,octets ,position ,end) #.*plain-policy*)
     ,@body))

;;; The head.  Section 5.2: FIN RSV1 RSV2 RSV3 opcode; MASK length

(declaim (inline control-p))
(defun control-p (opcode)
  "True if OPCODE is that of a control frame."
  (<= 8 opcode))

(defun first-octet-failure (decoder octet)
  "The failure that OCTET is as the first of a frame; NIL if it is none."
  (let ((opcode (logand 15 octet))
        (final-p (logtest #x80 octet))
        (amid-message-p (decoder-kind decoder)))
    (cond ((logtest #x70 octet) :reserved-bits)
          ((not (or (<= opcode 2) (<= 8 opcode 10))) :unknown-opcode)
          ((control-p opcode) (if final-p nil :fragmented-control))
          ((zerop opcode) (if amid-message-p nil :stray-continuation))
          (amid-message-p :interrupted-message))))

(define-frame-step read-first-octet (decoder octets position end)
  "Takes the octet with the opcode."
  (let* ((octet (aref octets position))
         (failure (first-octet-failure decoder octet)))
    (cond (failure
           (fail decoder end failure))
          (t
           (setf (decoder-final-p decoder) (logtest #x80 octet)
                 (decoder-opcode decoder) (logand 15 octet)
                 (decoder-phase decoder) 'read-second-octet)
           (case (decoder-opcode decoder)
             (1 (setf (decoder-kind decoder) :text))
             (2 (setf (decoder-kind decoder) :binary)))
           (1+ position)))))

(defun second-octet-failure (decoder octet)
  "The failure that OCTET is as the second of a frame; NIL if it is none."
  (let ((length (logand 127 octet))
        (opcode (decoder-opcode decoder)))
    (cond ((not (eq (decoder-masked-p decoder) (logtest #x80 octet)))
           (if (decoder-masked-p decoder) :unmasked-frame :masked-frame))
          ((not (control-p opcode)) nil)
          ((> length +most-control-octets+) :control-too-long)
          ((and (= 8 opcode) (= 1 length)) :close-of-one-octet))))

(define-frame-step read-second-octet (decoder octets position end)
  "Takes the octet with the length, or with how long that is."
  (let* ((octet (aref octets position))
         (length (logand 127 octet))
         (next (1+ position))
         (failure (second-octet-failure decoder octet)))
    (cond (failure
           (fail decoder end failure))
          ((<= length +most-control-octets+)
           (settle-length decoder length next end))
          (t
           (setf (decoder-number decoder) 0
                 (decoder-due decoder) (if (= 126 length) 2 8)
                 (decoder-least decoder) (if (= 126 length) 126 #x10000)
                 (decoder-phase decoder) 'read-length)
           next))))

(define-frame-step read-length (decoder octets position end)
  "Takes an octet of the length, the highest first."
  (let ((number (logior (ldb (byte 64 0) (ash (decoder-number decoder) 8))
                        (aref octets position)))
        (next (1+ position)))
    (declare (type (unsigned-byte 64) number))
    (setf (decoder-number decoder) number)
    (cond ((plusp (decf (decoder-due decoder))) next)
          ((< number (decoder-least decoder)) (fail decoder end :length-not-minimal))
          ((logbitp 63 number) (fail decoder end :length-too-large))
          (t (settle-length decoder number next end)))))

(defun settle-length (decoder length position end)
  "What a step returns that has read the LENGTH of a frame up to POSITION."
  (declare (type message-decoder decoder) (type (unsigned-byte 64) length) #.*plain-policy*)
  (cond ((control-p (decoder-opcode decoder))
         (setf (decoder-control decoder) (make-octets length)
               (decoder-remaining decoder) length)
         (await-mask decoder position))
        ((> length (decoder-most-frame-octets decoder))
         (fail decoder end :frame-too-large))
        ((> (+ length (decoder-fill decoder)) (decoder-most-message-octets decoder))
         (fail decoder end :message-too-large))
        (t
         (setf (decoder-remaining decoder) length)
         (await-mask decoder position))))

(defun await-mask (decoder position)
  "What a step returns that has read up to POSITION all of a head but the mask, if there is one."
  (setf (decoder-mask decoder) 0)
  (cond ((decoder-masked-p decoder)
         (setf (decoder-due decoder) 4
               (decoder-phase decoder) 'read-mask)
         position)
        (t
         (await-payload decoder position))))

(define-frame-step read-mask (decoder octets position end)
  "Takes an octet of the mask, the lowest first."
  (let ((due (decoder-due decoder)))
    (declare (type (integer 1 4) due))
    (setf (decoder-mask decoder) (logior (decoder-mask decoder)
                                         (ash (aref octets position) (* 8 (- 4 due))))
          (decoder-due decoder) (1- due))
    (if (= 1 due)
        (await-payload decoder (1+ position))
        (1+ position))))

(defun await-payload (decoder position)
  "What a step returns that has read a head up to POSITION."
  (cond ((zerop (decoder-remaining decoder))
         (end-frame decoder position))
        (t
         (setf (decoder-phase decoder) 'take-payload)
         position)))

;;; The payload

(define-frame-step take-payload (decoder octets position end)
  "Takes what there is of the payload."
  (let* ((remaining (decoder-remaining decoder))
         (count (min remaining (- end position)))
         (next (+ position count))
         (control (decoder-control decoder)))
    (declare (type index remaining count next))
    (cond (control
           (unmask-octets octets position next control (- (length control) remaining)
                          (decoder-mask decoder)))
          ((not (take-data decoder octets position next))
           (return-from take-payload (fail decoder end :no-memory))))
    (setf (decoder-mask decoder) (turned-mask (decoder-mask decoder) count)
          (decoder-remaining decoder) (- remaining count))
    (cond ((= +not-utf-8+ (decoder-text-state decoder)) (fail decoder end :text-not-utf-8))
          ((= count remaining) (end-frame decoder next))
          (t next))))

(defun turned-mask (mask count)
  "MASK for what comes after COUNT octets."
  (declare (type mask mask) (type index count))
  (let ((shift (* 8 (mod count 4))))
    (logior (ash mask (- shift))
            (ldb (byte 32 0) (ash mask (- 32 shift))))))

(defun take-data (decoder octets start end)
  "Adds OCTETS from START below END to the message, and judges them if that is a text.  NIL where
there is no memory."
  (declare (type message-decoder decoder) (type octets octets) (type index start end) #.*plain-policy*)
  (let* ((fill (decoder-fill decoder))
         (after (+ fill (- end start)))
         (held (room-for decoder after)))
    (declare (type index fill after) (type (or null octets) held))
    (when held
      (unmask-octets octets start end held fill (decoder-mask decoder))
      (when (eq :text (decoder-kind decoder))
        (multiple-value-bind (state characters)
            (check-utf-8 held fill after (decoder-text-state decoder))
          (setf (decoder-text-state decoder) state)
          (incf (decoder-characters decoder) characters)))
      (setf (decoder-fill decoder) after)
      t)))

(defun room-for (decoder size)
  "The vector of DECODER, with room for SIZE octets, which have come; NIL where there is no memory."
  (let* ((held (decoder-held decoder))
         (room (length held)))
    (if (<= size room)
        held
        (let* ((twice (max size (* 2 room)))
               (whole (+ (decoder-fill decoder) (decoder-remaining decoder)))
               ;; The last frame tells how large the message is: no more is needed.
               (grown-size (if (decoder-final-p decoder) (min twice whole) twice)))
          ;; Most messages come whole, are handed over at once, and take no account.
          (when (or (and (zerop room) (decoder-final-p decoder) (= size whole))
                    (reserve-for-message decoder (- grown-size room) nil))
            (let ((grown (make-octets grown-size)))
              ;; Copies by words in every Lisp.
              (unmask-octets held 0 (decoder-fill decoder) grown 0 0)
              (setf (decoder-held decoder) grown)))))))

;;; The end of a frame

(defun end-frame (decoder position)
  "What a step returns that has read the last octet of a frame before POSITION."
  (let ((control (decoder-control decoder)))
    (setf (decoder-phase decoder) 'read-first-octet
          (decoder-control decoder) nil)
    (ecase (decoder-opcode decoder)
      (8 (end-close decoder control position))
      (9 (values position :ping control))
      (10 (values position :pong control))
      ((0 1 2) (if (decoder-final-p decoder)
                   (end-message decoder position)
                   position)))))

(defconstant +character-octets+ 4
  "How many octets a character of a string takes, or fewer.")

(defun reserve-whole (decoder kind fill characters)
  "Reserves memory for what is made of the message of DECODER, of KIND, with FILL octets that are so
many CHARACTERS, if there is an account of it.  NIL where there is no memory."
  (cond ((not (decoder-reserved-p decoder)) t)
        ((eq :text kind) (reserve-for-message decoder (* +character-octets+ characters) t))
        ((= fill (length (decoder-held decoder))) t)
        (t (reserve-for-message decoder fill t))))

(defun end-message (decoder position)
  "What a step returns that has read the last octet of a message before POSITION."
  (declare (type message-decoder decoder) #.*plain-policy*)
  (let ((kind (decoder-kind decoder))
        (held (decoder-held decoder))
        (fill (decoder-fill decoder))
        (characters (decoder-characters decoder)))
    (cond ((/= +between-characters+ (decoder-text-state decoder))
           (fail decoder position :text-not-utf-8))
          ((not (reserve-whole decoder kind fill characters))
           (fail decoder position :no-memory))
          (t
           (drop-message decoder)
           (values position kind
                   (cond ((eq :text kind) (utf-8-text held 0 fill characters))
                         ((= fill (length held)) held)
                         (t (subseq held 0 fill))))))))

(defun end-close (decoder payload position)
  "What a step returns that has read a close frame with PAYLOAD, not of one octet, before POSITION."
  (declare (type octets payload) #.*plain-policy*)
  (end-decoding decoder)
  (if (zerop (length payload))
      (values position :close +no-close-code+ "")
      (let ((code (+ (* 256 (aref payload 0)) (aref payload 1)))
            (end (length payload)))
        (multiple-value-bind (state characters)
            (check-utf-8 payload 2 end +between-characters+)
          (cond ((not (close-code-p code)) (fail decoder position :invalid-close-code))
                ((/= +between-characters+ state) (fail decoder position :reason-not-utf-8))
                (t (values position :close code (utf-8-text payload 2 end characters))))))))

(define-frame-step skip-rest (decoder octets position end)
  "Takes whatever comes after a close frame or a failure."
  end)

(defun decode-message (decoder octets start end)
  "Reads on with DECODER in OCTETS from START below END, up to the next event.  Returns four values:
the kind of the event, and where in OCTETS it ends; call again from there for the next.  Then what
depends on the kind:
  :TEXT     a message, a string
  :BINARY   a message, a vector of octets
  :PING     its payload, at most 125 octets, to be sent back as :PONG, unless close was sent
  :PONG     its payload, likewise octets; often nobody has asked for it
  :CLOSE    the client's code, or +NO-CLOSE-CODE+; and its reason, a string, often empty
  :FAILURE  the code to close with, 1002, 1007, 1009 or 1013; and why, a sentence for the client
  NIL       nothing: END has come before the next event, and more octets are awaited.
All octets up to the second value are done, and nothing refers to OCTETS, which is not changed.  After
:CLOSE and :FAILURE, DECODER takes whatever comes, and finds no event any more (RFC 6455, sections 5
to 8)."
  (declare (type message-decoder decoder) (type index start end) #.*plain-policy*)
  (check-range octets start end)
  (loop
    (when (= start end)
      (return (values nil end nil nil)))
    (multiple-value-bind (position kind value more)
        (funcall (decoder-phase decoder) decoder octets start end)
      (declare (type index position))
      (when kind
        (return (values kind position value more)))
      (setf start position))))
