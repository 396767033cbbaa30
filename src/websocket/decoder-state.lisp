(in-package #:hunchentoot-recycling-taskmaster.websocket)

;;;; The state of a decoder; message-decoder.lisp has its phases.
;;;;
;;;; Invariants:
;;;; - HELD has the octets of the message received so far, FILL of them, unmasked.  Between
;;;;   messages, KIND is NIL and HELD is empty.  Whatever length a frame announces, HELD is never
;;;;   larger than twice the octets received.
;;;; - FILL never exceeds the size of HELD, and CHARACTERS is never less than the number of
;;;;   characters that begin in those octets.  Functions of safety 0 rely on this, even after an
;;;;   interrupt within a phase.  So the order of the assignments matters.
;;;; - CONTROL is the payload of the current control frame, else NIL; its last REMAINING octets have
;;;;   not arrived.

(defparameter *no-octets* (make-octets 0)
  "The empty vector, for a decoder that holds nothing.")

(defconstant +usual-limit+ (* 1024 1024)
  "The default maximum size of a message, in octets.")

(defstruct (message-decoder (:include opaque) (:copier nil) (:predicate nil) (:conc-name decoder-)
                            (:constructor %make-message-decoder
                                (masked-p most-frame-octets most-message-octets reserve)))
  "Finds the messages in the octets of a connection; see DECODE-MESSAGE."
  (masked-p t :type boolean :read-only t) ; frames must be masked
  (most-frame-octets 0 :type index :read-only t)
  (most-message-octets 0 :type index :read-only t)
  (reserve nil :type (or null function) :read-only t)
  (phase 'read-first-octet :type symbol)
  ;; The frame
  (final-p nil :type boolean)
  (opcode 0 :type (unsigned-byte 4))
  (due 0 :type (integer 0 8))
  (least 0 :type index)                 ; the minimum length for this size of length field
  (number 0 :type (unsigned-byte 64))   ; the length as far as it was read
  (mask 0 :type mask)                   ; its lowest octet masks the next octet of the payload
  (remaining 0 :type index)
  (control nil :type (or null octets))
  ;; The message
  (kind nil :type (member nil :text :binary))
  (held *no-octets* :type octets)
  (fill 0 :type index)
  (reserved-p nil :type boolean)        ; memory was reserved for the message
  (text-state +between-characters+ :type utf-8-state)
  (characters 0 :type index))

(defun make-message-decoder (&key (role :server) (message-octets +usual-limit+)
                               (frame-octets message-octets) reserve)
  "A decoder for our side of a connection.  If ROLE is :SERVER it decodes the frames of a client; if
ROLE is :CLIENT, those of a server.  MESSAGE-OCTETS and FRAME-OCTETS, integers, are the maximum
sizes of a message and of one of its frames (RFC 6455, section 10.4).  RESERVE is NIL or a function.
The decoder calls it before it allocates memory for an incomplete message, with the number of
octets, and true if they are for the complete result.  If RESERVE returns NIL, the message becomes a
failure."
  (check-type role (member :server :client))
  (check-type message-octets index)
  (check-type frame-octets index)
  (check-type reserve (or null function))
  (%make-message-decoder (eq :server role) frame-octets message-octets reserve))

(defun decoder-idle-p (decoder)
  "True if DECODER is neither within a frame nor within a message."
  (check-type decoder message-decoder)
  (and (eq 'read-first-octet (decoder-phase decoder))
       (null (decoder-kind decoder))))

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
        (decoder-characters decoder) 0
        (decoder-control decoder) nil))

(defun reserve-for-message (decoder octets whole-p)
  "Reserves a number of OCTETS for the message of DECODER.  WHOLE-P is true if they are for the
complete result.  NIL if there is no memory."
  (let ((reserve (decoder-reserve decoder)))
    (or (null reserve)
        (progn (setf (decoder-reserved-p decoder) t)
               (funcall reserve octets whole-p)))))

(defun end-decoding (decoder)
  "Makes DECODER drop the incomplete message that it holds, and all further octets.  The result has
no meaning."
  (drop-message decoder)
  (setf (decoder-phase decoder) 'skip-rest
        (decoder-remaining decoder) 0))

(defun fail (decoder position failure)
  "Ends a phase that has found FAILURE, a keyword of *FAILURES*, at POSITION; returns its values."
  (destructuring-bind (code section reason) (rest (assoc failure *failures*))
    (declare (ignore section))
    (end-decoding decoder)
    (values position :failure code reason)))
