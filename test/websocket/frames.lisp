(in-package #:hunchentoot-recycling-taskmaster-test)

;;; Frames from a description, and the events that a decoder finds in octets, however they are
;;; split.

(def-suite websocket
  :in all
  :description "The WebSocket protocol without I/O.")

;;; Octets of a client, made by code other than the library's

(defun hex-octets (hex)
  "The octets with the hexadecimal digits HEX, which may have blanks anywhere."
  (let ((digits (remove-if-not #'alphanumericp hex)))
    (as-octets (loop for i from 0 below (length digits) by 2
                     collect (parse-integer digits :start i :end (+ i 2) :radix 16)))))

(defun payload-octets (payload)
  "The octets of PAYLOAD: a string, in UTF-8; (:HEX digits), (:TIMES n payload), or (:ALL payload
...)."
  (cond ((stringp payload) (encode payload))
        ((eq :hex (first payload)) (hex-octets (second payload)))
        ((eq :times (first payload))
         (let* ((part (payload-octets (third payload)))
                (octets (make-array (* (second payload) (length part))
                                    :element-type '(unsigned-byte 8))))
           (loop for start from 0 below (length octets) by (max 1 (length part))
                 do (copy-octets octets start part))
           octets))
        (t (apply #'octets (mapcar #'payload-octets (rest payload))))))

(defun length-field (size form)
  "The octets of the length SIZE, without the mask bit.  FORM is the number of octets of the
extended length, 0, 2 or 8; NIL is for the shortest form."
  (let ((form (or form (cond ((< size 126) 0) ((< size 65536) 2) (t 8)))))
    (cons (ecase form (0 size) (2 126) (8 127))
          (loop for i from (1- form) downto 0 collect (ldb (byte 8 (* 8 i)) size)))))

(defun masked-octets (octets key)
  "OCTETS masked with KEY, a list of four octets."
  (let ((masked (make-array (length octets) :element-type '(unsigned-byte 8))))
    (dotimes (i (length octets) masked)
      (setf (aref masked i) (logxor (aref octets i) (nth (mod i 4) key))))))

(defun make-frame (opcode payload &key (fin t) (rsv 0) (mask '(#x37 #xFA #x21 #x3D)) form)
  "The octets of a frame of OPCODE with the octets PAYLOAD.  MASK is a list of four octets, or NIL."
  (let ((field (length-field (length payload) form)))
    (octets (as-octets (list* (logior (if fin #x80 0) (ash rsv 4) opcode)
                              (logior (if mask #x80 0) (first field))
                              (rest field)))
            (if mask (as-octets mask) '())
            (if mask (masked-octets payload mask) payload))))

(defun frame-head (opcode size &key (fin t))
  "The head of a frame of OPCODE with SIZE octets of payload, masked with zeros."
  (let ((field (length-field size nil)))
    (as-octets `(,(logior (if fin #x80 0) opcode) ,(logior #x80 (first field)) ,@(rest field)
                 0 0 0 0))))

(defun close-payload (&optional code (reason ""))
  (if code
      (octets (as-octets (list (ash code -8) (logand 255 code))) (payload-octets reason))
      (octets)))

(defun described-octets (description)
  "The octets for DESCRIPTION, of a frame or of other octets; see vectors/README.md."
  (destructuring-bind (kind . arguments) description
    (flet ((of-opcode (opcode)
             (apply #'make-frame opcode (payload-octets (or (first arguments) ""))
                    (rest arguments))))
      (ecase kind
        (:more (of-opcode 0))
        (:text (of-opcode 1))
        (:binary (of-opcode 2))
        (:ping (of-opcode 9))
        (:pong (of-opcode 10))
        (:close (make-frame 8 (apply #'close-payload arguments)))
        (:frame (apply #'make-frame (first arguments) (payload-octets (second arguments))
                       (cddr arguments)))
        (:octets (hex-octets (first arguments)))
        (:again (apply #'octets (loop repeat (first arguments)
                                      append (mapcar #'described-octets (rest arguments)))))))))

(defun character-octets (code)
  "The octets of the character of CODE; for an invalid code, the octets by the same rule."
  (as-octets
   (cond ((< code #x80) (list code))
         ((< code #x800) (list (+ #xC0 (ash code -6)) (+ #x80 (mod code 64))))
         ((< code #x10000) (list (+ #xE0 (ash code -12)) (+ #x80 (mod (ash code -6) 64))
                                 (+ #x80 (mod code 64))))
         (t (list (+ #xF0 (ash code -18)) (+ #x80 (mod (ash code -12) 64))
                  (+ #x80 (mod (ash code -6) 64)) (+ #x80 (mod code 64)))))))

(defun octets-text (octets)
  "The string that a decoder makes of OCTETS, in UTF-8."
  (let ((frame (make-frame 1 octets :mask nil)))
    (nth-value 2 (websocket:decode-message (websocket:make-message-decoder :role :client)
                                           frame 0 (length frame)))))

;;; The events of a decoder

(defun text-octets (text)
  "The octets of the string TEXT in UTF-8, also where strings are UTF-16."
  (let ((output (http:make-output)))
    (http:encode-string output text :utf-8)
    (subseq (http:output-octets output) 0 (http:output-fill output))))

(defun comparable-event (kind value more)
  "The event of KIND with VALUE and MORE as a list that EQUALP compares by octets."
  (ecase kind
    (:text (assert (typep value 'base:text)) (list :text (text-octets value)))
    ((:binary :ping :pong) (assert (typep value 'base:octets)) (list kind value))
    (:close (list :close value (text-octets more)))
    (:failure (assert (typep more 'base:text)) (list :failure value))))

(defun found-events (decoder octets start end)
  "The events that DECODER finds in OCTETS from START below END."
  (let ((events '()))
    (loop
      (multiple-value-bind (kind next value more)
          (websocket:decode-message decoder octets start end)
        (assert (<= start next end))
        (unless kind
          (assert (= next end))
          (return (nreverse events)))
        (push (comparable-event kind value more) events)
        (setf start next)))))

(defun event-at-end (decoder events limits)
  "A list of (:WAITING) if DECODER, made with LIMITS, which has found EVENTS, is within a frame or a
message, so that a text that comes next is none; else NIL."
  (let ((text (make-frame 1 (octets) :mask (if (eq :client (getf limits :role)) nil '(1 2 3 4)))))
    (if (or (member (first (first (last events))) '(:close :failure))
            (equalp (list (list :text (octets)))
                    (found-events decoder text 0 (length text))))
        '()
        '((:waiting)))))

(defun events-in-pieces (octets ends &rest limits)
  "The events when OCTETS arrive up to each of ENDS, each time in a new buffer, which gets other
octets after the decoder has used it."
  (let ((decoder (apply #'websocket:make-message-decoder limits)) (start 0) (events '()))
    (dolist (end ends)
      (let* ((offset (mod (* 7 end) 13))
             (size (- end start))
             (buffer (make-array (+ offset size 3) :element-type '(unsigned-byte 8)
                                                   :initial-element 129)))
        (copy-octets buffer offset (subseq octets start end))
        (setf events (append events (found-events decoder buffer offset (+ offset size)))
              start end)
        (fill buffer 10)))
    (append events (event-at-end decoder events limits))))

(defun events-of-whole (octets &rest limits)
  "The events when OCTETS arrive at once.  The decoder must not change OCTETS."
  (let* ((decoder (apply #'websocket:make-message-decoder limits))
         (before (copy-seq octets))
         (events (found-events decoder octets 0 (length octets))))
    (assert (equalp before octets))
    (append events (event-at-end decoder events limits))))

(defun events-of-octets (octets &rest limits)
  "The events when OCTETS arrive one by one, in one buffer."
  (let ((decoder (apply #'websocket:make-message-decoder limits)) (events '()))
    (dotimes (position (length octets))
      (let ((found (found-events decoder octets position (1+ position))))
        (when found
          (setf events (append events found)))))
    (append events (event-at-end decoder events limits))))
