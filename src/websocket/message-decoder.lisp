(in-package #:hunchentoot-recycling-taskmaster.websocket)

;;;; Octets to messages: RFC 6455, sections 5 and 8.1.  A decoder takes each octet once, in order.
;;;; So the messages and the failure of a connection do not depend on how its octets were split.
;;;;
;;;;   while             it takes                           by
;;;;   -                 the head of a frame                TAKE-HEAD
;;;;   0 < REMAINING     REMAINING octets of the payload    TAKE-PAYLOAD
;;;;   OVER-P            all: a close frame or a failure has come
;;;;
;;;; Invariants:
;;;; - HELD has the octets of the message received so far, FILL of them, unmasked.  Between
;;;;   messages, KIND is NIL and HELD is empty.  Whatever length a frame announces, HELD is never
;;;;   larger than twice the octets received.
;;;; - CONTROL is the payload of the current control frame, else NIL; its last REMAINING octets have
;;;;   not arrived.

(defstruct (message-decoder (:include opaque) (:copier nil) (:predicate nil) (:conc-name decoder-)
                            (:constructor %make-message-decoder (masked-p most-octets reserve)))
  "Finds the messages in the octets of a connection; see DECODE-MESSAGE."
  (masked-p t :type boolean :read-only t) ; frames must be masked
  (most-octets 0 :type index :read-only t) ; of a message
  (reserve nil :type (or null function) :read-only t)
  (over-p nil)
  ;; The frame
  (head (make-octets 14) :type octets :read-only t)
  (head-fill 0 :type (integer 0 14))
  (mask 0 :type mask)                   ; its lowest octet masks the next octet of the payload
  (remaining 0 :type index)
  (control nil :type (or null octets))
  ;; The message
  (kind nil :type (member nil :text :binary))
  (held (make-octets 0) :type octets)
  (fill 0 :type index)
  (reserved-p nil :type boolean))       ; memory was reserved for the message

(defun make-message-decoder (&key (role :server) (message-octets (* 1024 1024)) reserve)
  "A decoder for our side of a connection.  If ROLE is :SERVER it decodes the frames of a client; if
ROLE is :CLIENT, those of a server.  MESSAGE-OCTETS is the maximum size of a message, an integer
(RFC 6455, section 10.4).  RESERVE is NIL or a function.  The decoder calls it before it allocates
memory for an incomplete message, with the number of octets, and true if they are for the complete
result.  If RESERVE returns NIL, the message becomes a failure."
  (check-type message-octets index)
  (%make-message-decoder (eq :server role) message-octets reserve))

(defun drop-message (decoder)
  "Frees the message that DECODER holds, and makes DECODER ready for the next one."
  (setf (decoder-fill decoder) 0
        (decoder-held decoder) (make-octets 0)
        (decoder-reserved-p decoder) nil
        (decoder-kind decoder) nil
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
  (destructuring-bind (code reason) (rest (assoc failure *failures*))
    (end-decoding decoder)
    (values position :failure code reason)))

(defun take-head (decoder octets position end)
  "Takes octets of the head of a frame.  Returns the position after them; and, if they complete an
event, its kind and its two values, as DECODE-MESSAGE describes them."
  (declare (type message-decoder decoder) (type octets octets) (type index position end)
           #.*plain-policy*)
  (let ((head (decoder-head decoder))
        (fill (decoder-head-fill decoder)))
    (declare (type (integer 0 14) fill))
    (flet ((take-up-to (size)
             (loop while (< fill size)
                   do (when (= position end)
                        (setf (decoder-head-fill decoder) fill)
                        (return-from take-head position))
                      (setf (aref head fill) (aref octets position)
                            fill (1+ fill)
                            position (1+ position)))))
      ;; Section 5.2: FIN RSV1 RSV2 RSV3 opcode; MASK length; extended length; mask
      (take-up-to 2)
      (take-up-to (nth-value 1 (payload-size head)))
      (multiple-value-bind (size length-end) (payload-size head)
        (let* ((first (aref head 0))
               (opcode (logand 15 first))
               (control-p (<= 8 opcode))
               (mask-size (if (logtest #x80 (aref head 1)) 4 0))
               (failure
                 (cond ((logtest #x70 first) :reserved-bits)
                       ((not (or (<= opcode 2) (<= 8 opcode 10))) :unknown-opcode)
                       ((and control-p (not (logtest #x80 first))) :fragmented-control)
                       ((and (zerop opcode) (null (decoder-kind decoder))) :stray-continuation)
                       ((and (<= 1 opcode 2) (decoder-kind decoder)) :interrupted-message)
                       ((not (eq (decoder-masked-p decoder) (plusp mask-size)))
                        (if (decoder-masked-p decoder) :unmasked-frame :masked-frame))
                       ((and control-p (< +most-control-octets+ size)) :control-too-long)
                       ((and (= 8 opcode) (= 1 size)) :close-of-one-octet)
                       ((< size (ecase length-end (2 0) (4 126) (10 #x10000)))
                        :length-not-minimal)
                       ((logbitp 63 size) :length-too-large)
                       ((and (not control-p)
                             (< (decoder-most-octets decoder) (+ size (decoder-fill decoder))))
                        :message-too-large))))
          (when failure
            (return-from take-head (fail decoder end failure)))
          (take-up-to (+ length-end mask-size))
          (setf (decoder-head-fill decoder) 0
                (decoder-remaining decoder) size
                (decoder-mask decoder) 0)
          (dotimes (i mask-size)
            (setf (ldb (byte 8 (* 8 i)) (decoder-mask decoder)) (aref head (+ length-end i))))
          (cond (control-p (setf (decoder-control decoder) (make-octets size)))
                ((plusp opcode) (setf (decoder-kind decoder) (if (= 1 opcode) :text :binary))))
          (if (zerop size)
              (end-frame decoder position)
              position))))))

(defun take-payload (decoder octets position end)
  "Takes the octets of the payload that have arrived; returns the same as TAKE-HEAD."
  (declare (type message-decoder decoder) (type octets octets) (type index position end)
           #.*plain-policy*)
  (let* ((remaining (decoder-remaining decoder))
         (count (min remaining (- end position)))
         (next (+ position count))
         (control (decoder-control decoder))
         (mask (decoder-mask decoder))
         (fill (decoder-fill decoder))
         (after (+ fill count))
         (held (decoder-held decoder))
         (room (length held)))
    (declare (type index remaining count next fill after room))
    (cond (control
           (setf mask (unmask-octets octets position next
                                     control (- (length control) remaining) mask)))
          (t
           (when (< room after)
             (let* ((final-p (logtest #x80 (aref (decoder-head decoder) 0)))
                    (whole (+ fill remaining))
                    ;; Once the last frame has begun, the size of the message is known.
                    (size (min (max after (* 2 room))
                               (if final-p whole (decoder-most-octets decoder)))))
               ;; Most messages arrive in one piece and leave at once, so they need no reservation.
               (unless (or (and (zerop room) final-p (= after whole))
                           (reserve-for-message decoder (- size room) nil))
                 (return-from take-payload (fail decoder end :no-memory)))
               (setf held (replace (make-octets size) held :end2 fill)
                     (decoder-held decoder) held)))
           (setf mask (unmask-octets octets position next held fill mask)
                 (decoder-fill decoder) after)))
    (setf (decoder-mask decoder) mask
          (decoder-remaining decoder) (- remaining count))
    (if (= count remaining)
        (end-frame decoder next)
        next)))

(defun end-frame (decoder position)
  "Ends a step that has taken the last octet of a frame before POSITION; returns its values."
  (declare (type message-decoder decoder) #.*plain-policy*)
  (let* ((control (shiftf (decoder-control decoder) nil))
         (first (aref (decoder-head decoder) 0))
         (opcode (logand 15 first))
         (kind (decoder-kind decoder))
         (held (decoder-held decoder))
         (fill (decoder-fill decoder)))
    (cond ((= 9 opcode) (values position :ping control))
          ((= 10 opcode) (values position :pong control))
          ((= 8 opcode)
           (end-decoding decoder)
           (let* ((end (length (the octets control)))
                  (code (if (zerop end)
                            +no-close-code+
                            (+ (* 256 (aref control 0)) (aref control 1))))
                  (reason (utf-8-text control (min 2 end) end t)))
             (cond ((not (or (zerop end) (close-code-p code)))
                    (fail decoder position :invalid-close-code))
                   ((null reason) (fail decoder position :reason-not-utf-8))
                   (t (values position :close code reason)))))
          ((not (logtest #x80 first)) position)
          ((not (or (not (decoder-reserved-p decoder))
                    (reserve-for-message decoder
                                         (cond ((eq :text kind) (* 4 fill)) ; of its characters
                                               ((= fill (length held)) 0)
                                               (t fill))
                                         t)))
           (fail decoder position :no-memory))
          (t
           (let ((message (cond ((eq :text kind) (utf-8-text held 0 fill t))
                                ((= fill (length held)) held)
                                (t (subseq held 0 fill)))))
             (drop-message decoder)
             (if message
                 (values position kind message)
                 (fail decoder position :text-not-utf-8)))))))

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
        (cond ((decoder-over-p decoder) end)
              ((plusp (decoder-remaining decoder)) (take-payload decoder octets start end))
              (t (take-head decoder octets start end)))
      (declare (type index position))
      (when kind
        (return (values kind position value more)))
      (setf start position))))
