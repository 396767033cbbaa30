(in-package #:hunchentoot-recycling-taskmaster.websocket)

;;;; Octets to messages: RFC 6455, sections 5 and 8.1.  Like the parsers of HTTP, a decoder is a
;;;; state machine.  It examines each octet once, in order, as soon as the octet arrives.  So the
;;;; messages and the failure of a connection do not depend on how its octets were split.
;;;;
;;;;   phase              waits for                        next phase
;;;;   READ-FIRST-OCTET   the first octet of a frame       READ-SECOND-OCTET
;;;;   READ-SECOND-OCTET  the mask bit and 7-bit length    READ-LENGTH, READ-MASK, TAKE-PAYLOAD
;;;;   READ-LENGTH        DUE octets of the length         READ-MASK, TAKE-PAYLOAD
;;;;   READ-MASK          DUE octets of the mask           TAKE-PAYLOAD
;;;;   TAKE-PAYLOAD       REMAINING octets of the payload  READ-FIRST-OCTET
;;;;   SKIP-REST          nothing, after a close frame or  SKIP-REST
;;;;                      a failure
;;;;
;;;; A frame without payload ends right after its head.

(defmacro define-frame-step (name (decoder octets position end) documentation &body body)
  "Defines NAME as a phase of DECODER that gets OCTETS from POSITION below END, at least one.  BODY
returns the position after the octets that it took; and, if they complete an event, the kind and the
two values of the event, as DECODE-MESSAGE describes them."
  `(defun ,name (,decoder ,octets ,position ,end)
     ,documentation
     (declare (type message-decoder ,decoder) (type octets ,octets) (type index ,position ,end)
              (ignorable ,decoder ,octets ,position ,end) #.*plain-policy*)
     ,@body))

;;; The head.  Section 5.2: FIN RSV1 RSV2 RSV3 opcode; MASK length

(declaim (inline control-p))
(defun control-p (opcode)
  "True if OPCODE is the opcode of a control frame."
  (<= 8 opcode))

(defun first-octet-failure (decoder octet)
  "The failure if OCTET must not be the first octet of a frame; else NIL."
  (let ((opcode (logand 15 octet))
        (final-p (logtest #x80 octet))
        (within-message-p (decoder-kind decoder)))
    (cond ((logtest #x70 octet) :reserved-bits)
          ((not (or (<= opcode 2) (<= 8 opcode 10))) :unknown-opcode)
          ((control-p opcode) (if final-p nil :fragmented-control))
          ((zerop opcode) (if within-message-p nil :stray-continuation))
          (within-message-p :interrupted-message))))

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
  "The failure if OCTET must not be the second octet of a frame; else NIL."
  (let ((length (logand 127 octet))
        (opcode (decoder-opcode decoder)))
    (cond ((not (eq (decoder-masked-p decoder) (logtest #x80 octet)))
           (if (decoder-masked-p decoder) :unmasked-frame :masked-frame))
          ((not (control-p opcode)) nil)
          ((> length +most-control-octets+) :control-too-long)
          ((and (= 8 opcode) (= 1 length)) :close-of-one-octet))))

(define-frame-step read-second-octet (decoder octets position end)
  "Takes the octet with the mask bit, and with the length or the size of an extended length."
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
  "Ends a phase that has read the LENGTH of a frame up to POSITION; returns its values."
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
  "Ends a phase that has read the head of a frame up to POSITION, except for the mask; returns its
values."
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
  "Ends a phase that has read the head of a frame up to POSITION; returns its values."
  (cond ((zerop (decoder-remaining decoder))
         (end-frame decoder position))
        (t
         (setf (decoder-phase decoder) 'take-payload)
         position)))

;;; The payload

(define-frame-step take-payload (decoder octets position end)
  "Takes the octets of the payload that have arrived."
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
  "MASK rotated for the octets that follow the next COUNT octets."
  (declare (type mask mask) (type index count))
  (let ((shift (* 8 (mod count 4))))
    (logior (ash mask (- shift))
            (ldb (byte 32 0) (ash mask (- 32 shift))))))

(defun take-data (decoder octets start end)
  "Adds OCTETS from START below END to the message, and checks them if the message is a text.  NIL
if there is no memory."
  (declare (type message-decoder decoder) (type octets octets) (type index start end)
           #.*plain-policy*)
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
  "The vector of DECODER, with room for SIZE octets, all of which have arrived; NIL if there is no
memory."
  (let* ((held (decoder-held decoder))
         (room (length held)))
    (if (<= size room)
        held
        (let* ((twice (max size (* 2 room)))
               (whole (+ (decoder-fill decoder) (decoder-remaining decoder)))
               ;; Once the last frame has begun, the size of the message is known.
               (grown-size (if (decoder-final-p decoder) (min twice whole) twice)))
          ;; Most messages arrive in one piece and leave at once, so they need no reservation.
          (when (or (and (zerop room) (decoder-final-p decoder) (= size whole))
                    (reserve-for-message decoder (- grown-size room) nil))
            (let ((grown (make-octets grown-size)))
              ;; UNMASK-OCTETS copies groups of octets in every Lisp.
              (unmask-octets held 0 (decoder-fill decoder) grown 0 0)
              (setf (decoder-held decoder) grown)))))))

;;; The end of a frame

(defun end-frame (decoder position)
  "Ends a phase that has read the last octet of a frame before POSITION; returns its values."
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
  "The maximum number of octets of memory for a character of a string.")

(defun reserve-whole (decoder kind fill characters)
  "Reserves memory for the result of the message of DECODER, of KIND, with FILL octets and
CHARACTERS characters, if memory was reserved for the message before.  NIL if there is no memory."
  (cond ((not (decoder-reserved-p decoder)) t)
        ((eq :text kind) (reserve-for-message decoder (* +character-octets+ characters) t))
        ((= fill (length (decoder-held decoder))) t)
        (t (reserve-for-message decoder fill t))))

(defun end-message (decoder position)
  "Ends a phase that has read the last octet of a message before POSITION; returns its values."
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
  "Ends a phase that has read, before POSITION, a close frame with PAYLOAD of 0 or at least 2
octets; returns its values."
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
  "Drops all octets after a close frame or a failure."
  end)

(defun decode-message (decoder octets start end)
  "Continues to decode with DECODER, in OCTETS from START below END, up to the next event.  Returns
four values: the kind of the event, a keyword; the position after it in OCTETS, from which the
caller calls again; and two values that depend on the kind:
  :TEXT     the message, a string
  :BINARY   the message, a vector of octets
  :PING     the payload, at most 125 octets; reply with a :PONG unless a close frame was sent
  :PONG     the payload, at most 125 octets; a client may send it unasked
  :CLOSE    the client's code, or +NO-CLOSE-CODE+; and the reason, a string, often empty
  :FAILURE  the code for the close frame, 1002, 1007, 1009 or 1013; and a sentence for the client
  NIL       none: there is no further event before END, so the decoder needs more octets
DECODER has used all octets up to the second value.  It does not modify OCTETS, and keeps no
reference to it.  After :CLOSE and :FAILURE, DECODER drops all octets and finds no further event
(RFC 6455, sections 5 to 8)."
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
