(in-package #:hunchentoot-recycling-taskmaster.websocket)

;;;; Octets to messages: RFC 6455, sections 5 and 8.1.  A decoder takes each octet once, in order,
;;;; as soon as it arrives, and judges it then.  So the messages and the failure of a connection do
;;;; not depend on how its octets were split.
;;;;
;;;;   while             it takes                           by
;;;;   -                 the head of a frame                TAKE-HEAD
;;;;   PAYLOAD-P         REMAINING octets of the payload    TAKE-PAYLOAD
;;;;   OVER-P            all: a close frame or a failure has come
;;;;
;;;; Invariants:
;;;; - HELD has the octets of the message received so far, FILL of them, unmasked.  Between
;;;;   messages, KIND is NIL and HELD is empty.  Whatever length a frame announces, HELD is never
;;;;   larger than twice the octets received.
;;;; - CONTROL is the payload of the current control frame, else NIL; its last REMAINING octets have
;;;;   not arrived.

(defparameter *no-octets* (make-octets 0)
  "The empty vector, for a decoder that holds nothing.")

(defstruct (message-decoder (:include opaque) (:copier nil) (:predicate nil) (:conc-name decoder-)
                            (:constructor %make-message-decoder
                                (masked-p strings-p most-frame-octets most-message-octets reserve)))
  "Finds the messages in the octets of a connection; see DECODE-MESSAGE."
  (masked-p t :type boolean :read-only t) ; frames must be masked
  (strings-p t :type boolean :read-only t) ; texts become strings
  (most-frame-octets 0 :type index :read-only t)
  (most-message-octets 0 :type index :read-only t)
  (reserve nil :type (or null function) :read-only t)
  (over-p nil)
  ;; The frame
  (head (make-octets 14) :type octets :read-only t)
  (head-fill 0 :type (integer 0 14))
  (mask 0 :type mask)                   ; its lowest octet masks the next octet of the payload
  (payload-p nil)
  (remaining 0 :type index)
  (control nil :type (or null octets))
  ;; The message
  (kind nil :type (member nil :text :binary))
  (held *no-octets* :type octets)
  (fill 0 :type index)
  (reserved-p nil :type boolean)        ; memory was reserved for the message
  (text-state +between-characters+ :type utf-8-state))

(defun make-message-decoder (&key (role :server) (strings-p t) (message-octets (* 1024 1024))
                               (frame-octets message-octets) reserve)
  "A decoder for our side of a connection.  If ROLE is :SERVER it decodes the frames of a client; if
ROLE is :CLIENT, those of a server.  Texts become strings if STRINGS-P, else octets.  MESSAGE-OCTETS
and FRAME-OCTETS, integers, are the maximum sizes of a message and of one of its frames (RFC 6455,
section 10.4).  RESERVE is NIL or a function.  The decoder calls it before it allocates memory for
an incomplete message, with the number of octets, and true if they are for the complete result.  If
RESERVE returns NIL, the message becomes a failure."
  (check-type role (member :server :client))
  (check-type message-octets index)
  (check-type frame-octets index)
  (check-type reserve (or null function))
  (%make-message-decoder (eq :server role) (and strings-p t) frame-octets message-octets reserve))

(defun decoder-idle-p (decoder)
  "True if DECODER is neither within a frame nor within a message."
  (check-type decoder message-decoder)
  (and (zerop (decoder-head-fill decoder))
       (null (decoder-kind decoder))
       (not (decoder-over-p decoder))))

(defun octets-held (decoder)
  "The number of octets of memory, an integer, that DECODER holds for an incomplete frame or
message."
  (check-type decoder message-decoder)
  (+ (length (decoder-held decoder)) (length (decoder-control decoder))))

(defun drop-message (decoder)
  "Frees the message that DECODER holds, and makes DECODER ready for the next one."
  (setf (decoder-fill decoder) 0
        (decoder-held decoder) *no-octets*
        (decoder-reserved-p decoder) nil
        (decoder-kind decoder) nil
        (decoder-text-state decoder) +between-characters+
        (decoder-control decoder) nil))

(defun end-decoding (decoder)
  "Makes DECODER drop the incomplete message that it holds, and all further octets.  The result has
no meaning."
  (drop-message decoder)
  (setf (decoder-over-p decoder) t))

(defun reserve-for-message (decoder octets whole-p)
  "Reserves a number of OCTETS for the message of DECODER.  WHOLE-P is true if they are for the
complete result.  NIL if there is no memory."
  (let ((reserve (decoder-reserve decoder)))
    (or (null reserve)
        (progn (setf (decoder-reserved-p decoder) t)
               (funcall reserve octets whole-p)))))

(defun fail (decoder position failure)
  "Ends a step that has found FAILURE, a keyword of *FAILURES*, at POSITION; returns its values."
  (destructuring-bind (code section reason) (rest (assoc failure *failures*))
    (declare (ignore section))
    (end-decoding decoder)
    (values position :failure code reason)))

;;; The head.  Section 5.2: FIN RSV1 RSV2 RSV3 opcode; MASK length; extended length; mask

(defun head-failure (decoder head fill)
  "The failure of the first or the second octet of HEAD, of which FILL octets have come; else NIL."
  (let* ((first (aref head 0))
         (opcode (logand 15 first))
         (final-p (logtest #x80 first)))
    (if (= 1 fill)
        (cond ((logtest #x70 first) :reserved-bits)
              ((not (or (<= opcode 2) (<= 8 opcode 10))) :unknown-opcode)
              ((<= 8 opcode) (if final-p nil :fragmented-control))
              ((zerop opcode) (if (decoder-kind decoder) nil :stray-continuation))
              ((decoder-kind decoder) :interrupted-message))
        (let ((length (logand 127 (aref head 1))))
          (cond ((not (eq (decoder-masked-p decoder) (logtest #x80 (aref head 1))))
                 (if (decoder-masked-p decoder) :unmasked-frame :masked-frame))
                ((< opcode 8) nil)
                ((> length +most-control-octets+) :control-too-long)
                ((and (= 8 opcode) (= 1 length)) :close-of-one-octet))))))

(defun settle-length (decoder head length-end)
  "Settles how many octets of payload the frame with HEAD has, whose length ends at LENGTH-END.
Returns a failure, or NIL."
  (let ((size (if (= 2 length-end)
                  (logand 127 (aref head 1))
                  (loop with size of-type (unsigned-byte 64) = 0
                        for i from 2 below length-end
                        do (setf size (logior (ldb (byte 64 0) (ash size 8)) (aref head i)))
                        finally (return size))))
        (control-p (<= 8 (logand 15 (aref head 0)))))
    (declare (type (unsigned-byte 64) size))
    (cond ((< size (ecase length-end (2 0) (4 126) (10 #x10000))) :length-not-minimal)
          ((logbitp 63 size) :length-too-large)
          ((and (not control-p) (> size (decoder-most-frame-octets decoder))) :frame-too-large)
          ((and (not control-p)
                (> (+ size (decoder-fill decoder)) (decoder-most-message-octets decoder)))
           :message-too-large)
          (t
           (when control-p
             (setf (decoder-control decoder) (make-octets size)))
           (setf (decoder-remaining decoder) size)
           nil))))

(defun take-head (decoder octets position end)
  "Takes octets of the head of a frame.  Returns the position after them; and, if they complete an
event, its kind and its two values, as DECODE-MESSAGE describes them."
  (declare (type message-decoder decoder) (type octets octets) (type index position end)
           #.*plain-policy*)
  (let ((head (decoder-head decoder))
        (fill (decoder-head-fill decoder))
        (mask-size (if (decoder-masked-p decoder) 4 0)))
    (declare (type (integer 0 14) fill))
    (loop
      (when (= position end)
        (setf (decoder-head-fill decoder) fill)
        (return position))
      (setf (aref head fill) (aref octets position)
            fill (1+ fill)
            position (1+ position))
      (let* ((length-end (if (< 1 fill)
                             (case (logand 127 (aref head 1)) (126 4) (127 10) (t 2))
                             10))
             (failure (or (and (<= fill 2) (head-failure decoder head fill))
                          (and (= fill length-end) (settle-length decoder head length-end)))))
        (when failure
          (return (fail decoder end failure)))
        (when (= fill (+ length-end mask-size))
          (setf (decoder-head-fill decoder) fill
                (decoder-mask decoder) 0)
          (dotimes (i mask-size)
            (setf (ldb (byte 8 (* 8 i)) (decoder-mask decoder)) (aref head (+ length-end i))))
          (case (logand 15 (aref head 0))
            (1 (setf (decoder-kind decoder) :text))
            (2 (setf (decoder-kind decoder) :binary)))
          (return (cond ((zerop (decoder-remaining decoder))
                         (end-frame decoder position))
                        (t
                         (setf (decoder-payload-p decoder) t)
                         position))))))))

;;; The payload

(defun take-payload (decoder octets position end)
  "Takes the octets of the payload that have arrived; returns the same as TAKE-HEAD."
  (declare (type message-decoder decoder) (type octets octets) (type index position end)
           #.*plain-policy*)
  (let* ((remaining (decoder-remaining decoder))
         (count (min remaining (- end position)))
         (next (+ position count))
         (control (decoder-control decoder))
         (mask (decoder-mask decoder))
         (turn (* 8 (mod count 4))))
    (declare (type index remaining count next))
    (cond (control
           (unmask-octets octets position next control (- (length control) remaining) mask))
          (t
           (let* ((fill (decoder-fill decoder))
                  (after (+ fill count))
                  (held (room-for decoder after)))
             (declare (type index fill after) (type (or null octets) held))
             (unless held
               (return-from take-payload (fail decoder end :no-memory)))
             (unmask-octets octets position next held fill mask)
             (when (and (eq :text (decoder-kind decoder))
                        (= +not-utf-8+
                           (setf (decoder-text-state decoder)
                                 (check-utf-8 held fill after (decoder-text-state decoder)))))
               (return-from take-payload (fail decoder end :text-not-utf-8)))
             (setf (decoder-fill decoder) after))))
    (setf (decoder-mask decoder) (logior (ash mask (- turn)) ; for the octets that follow
                                         (ldb (byte 32 0) (ash mask (- 32 turn))))
          (decoder-remaining decoder) (- remaining count))
    (if (= count remaining)
        (end-frame decoder next)
        next)))

(defun room-for (decoder size)
  "The vector of DECODER, with room for SIZE octets, all of which have arrived; NIL if there is no
memory."
  (let* ((held (decoder-held decoder))
         (room (length held))
         (final-p (logtest #x80 (aref (decoder-head decoder) 0))))
    (if (<= size room)
        held
        (let* ((twice (max size (* 2 room)))
               (whole (+ (decoder-fill decoder) (decoder-remaining decoder)))
               ;; Once the last frame has begun, the size of the message is known.
               (grown-size (if final-p (min twice whole) twice)))
          ;; Most messages arrive in one piece and leave at once, so they need no reservation.
          (when (or (and (zerop room) final-p (= size whole))
                    (reserve-for-message decoder (- grown-size room) nil))
            (let ((grown (make-octets grown-size)))
              ;; UNMASK-OCTETS copies groups of octets in every Lisp.
              (unmask-octets held 0 (decoder-fill decoder) grown 0 0)
              (setf (decoder-held decoder) grown)))))))

;;; The end of a frame

(defun end-frame (decoder position)
  "Ends a step that has taken the last octet of a frame before POSITION; returns its values."
  (let ((control (decoder-control decoder))
        (first (aref (decoder-head decoder) 0)))
    (setf (decoder-head-fill decoder) 0
          (decoder-payload-p decoder) nil
          (decoder-control decoder) nil)
    (ecase (logand 15 first)
      (8 (end-close decoder control position))
      (9 (values position :ping control))
      (10 (values position :pong control))
      ((0 1 2) (if (logtest #x80 first)
                   (end-message decoder position)
                   position)))))

(defun end-message (decoder position)
  "Ends a step that has taken the last octet of a message before POSITION; returns its values."
  (let* ((kind (decoder-kind decoder))
         (held (decoder-held decoder))
         (fill (decoder-fill decoder))
         (string-p (and (eq :text kind) (decoder-strings-p decoder)))
         ;; Octets of memory for the result; a character of a string has four.
         (memory (cond (string-p (* 4 fill))
                       ((= fill (length held)) 0)
                       (t fill))))
    (cond ((/= +between-characters+ (decoder-text-state decoder))
           (fail decoder position :text-not-utf-8))
          ((not (or (not (decoder-reserved-p decoder))
                    (zerop memory)
                    (reserve-for-message decoder memory t)))
           (fail decoder position :no-memory))
          (t
           (drop-message decoder)
           (values position kind
                   (cond (string-p (text-of-octets held 0 fill))
                         ((zerop memory) held)
                         (t (subseq held 0 fill))))))))

(defun end-close (decoder payload position)
  "Ends a step that has taken, before POSITION, a close frame with PAYLOAD of 0 or at least 2
octets; returns its values."
  (declare (type octets payload) #.*plain-policy*)
  (end-decoding decoder)
  (let ((end (length payload)))
    (if (zerop end)
        (values position :close +no-close-code+ "")
        (let ((code (+ (* 256 (aref payload 0)) (aref payload 1))))
          (cond ((not (close-code-p code)) (fail decoder position :invalid-close-code))
                ((/= +between-characters+ (check-utf-8 payload 2 end +between-characters+))
                 (fail decoder position :reason-not-utf-8))
                (t (values position :close code (text-of-octets payload 2 end))))))))

(defun decode-message (decoder octets start end)
  "Continues to decode with DECODER, in OCTETS from START below END, up to the next event.  Returns
four values: the kind of the event, a keyword; the position after it in OCTETS, from which the
caller calls again; and two values that depend on the kind:
  :TEXT     the message, a string; octets if DECODER makes no strings
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
        (cond ((decoder-over-p decoder) end)
              ((decoder-payload-p decoder) (take-payload decoder octets start end))
              (t (take-head decoder octets start end)))
      (declare (type index position))
      (when kind
        (return (values kind position value more)))
      (setf start position))))
