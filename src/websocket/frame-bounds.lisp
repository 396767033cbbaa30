(in-package #:hunchentoot-recycling-taskmaster.websocket)

;;;; The bounds of frames, for a server whose program decodes the frames itself (RFC 6455, section
;;;; 5.2).  The functions here check nothing, and read no payload except that of close frames.

(defun length-end (octet)
  "The position after the length in a frame whose second octet is OCTET."
  (+ 2 (case (logand 127 octet) (126 2) (127 8) (t 0))))

(defun head-extent (octet)
  "The number of octets in the head of a frame whose second octet is OCTET."
  (+ (length-end octet) (if (logtest #x80 octet) 4 0)))

(defun announced-size (octets start)
  "The payload size that the head at START in OCTETS announces.  All octets of the length must be in
OCTETS."
  (let* ((number (logand 127 (aref octets (1+ start))))
         (count (case number (126 2) (127 8) (t 0))))
    (if (zerop count)
        number
        (loop with size = 0
              for i from (+ start 2) below (+ start 2 count)
              do (setf size (+ (ash size 8) (aref octets i)))
              finally (return size)))))

(defun frame-extent (octets start end)
  "The minimum number of octets of the frame that begins in OCTETS at START, judged by the octets
below END: an integer up to 2^64 + 14.  The second value is true if that number is exact; the third
value is the number of octets in its head, as far as it is known (RFC 6455, section 5.2)."
  (declare (type octets octets) (type index start end) #.*plain-policy*)
  (check-range octets start end)
  (let ((received (- end start)))
    (if (< received 2)
        (values 2 nil 2)
        (let ((head (head-extent (aref octets (1+ start)))))
          (if (< received (length-end (aref octets (1+ start))))
              (values head nil head)
              (values (+ head (announced-size octets start)) t head))))))

(defun frame-payload-size (frame)
  "The number of octets, an integer, in the payload of FRAME, a vector of octets with one whole
frame (RFC 6455, section 5.2)."
  (multiple-value-bind (extent exact-p head) (frame-extent frame 0 (length frame))
    (declare (ignore exact-p))
    (- extent head)))

(defun whole-frame-p (octets)
  "True if OCTETS, a vector, are exactly one frame (RFC 6455, section 5.2)."
  (multiple-value-bind (extent exact-p) (frame-extent octets 0 (length octets))
    (and exact-p (= extent (length octets)))))

(defun control-frame-p (frame)
  "True if FRAME, a vector of octets, is a control frame, which may come between the frames of a
message (RFC 6455, section 5.4)."
  (logtest #x08 (aref frame 0)))

(defun continuation-frame-p (frame)
  "True if FRAME, a vector of octets, continues a message (RFC 6455, section 5.4)."
  (zerop (logand 15 (aref frame 0))))

(defun final-frame-p (frame)
  "True if FRAME, a vector of octets, is the last frame of a message or a control frame (RFC 6455,
section 5.2)."
  (logtest #x80 (aref frame 0)))

(defun text-frame-p (frame)
  "True if FRAME, a vector of octets, begins a text message (RFC 6455, section 5.6)."
  (= 1 (logand 15 (aref frame 0))))

(defun close-frame-payload (octets)
  "The unmasked payload, a fresh vector of octets, of the close frame in OCTETS, a vector; NIL if
OCTETS are not one whole close frame (RFC 6455, section 5.5.1)."
  (when (and (< 1 (length octets))
             (= #x88 (aref octets 0))
             (whole-frame-p octets))
    (let* ((head (head-extent (aref octets 1)))
           (payload (subseq octets head)))
      (when (logtest #x80 (aref octets 1))
        (dotimes (i (length payload))
          (setf (aref payload i) (logxor (aref payload i) (aref octets (+ head -4 (mod i 4)))))))
      payload)))

(defun close-payload-code (payload)
  "The code, an integer, in PAYLOAD, the octets of a close frame; +NO-CLOSE-CODE+ if there is none
(RFC 6455, section 5.5.1)."
  (if (< (length payload) 2)
      +no-close-code+
      (+ (* 256 (aref payload 0)) (aref payload 1))))

(defun close-payload (code reason)
  "The payload, a fresh vector of octets, of a close frame with CODE, an integer, and REASON, a
string.  CODE may also be +NO-CLOSE-CODE+ or +ABNORMAL-END+, which are never sent (RFC 6455, section
7.4)."
  (if (= +abnormal-end+ code)
      (coerce (list (ash code -8) (logand 255 code)) 'octets)
      (subseq (encode-close code reason) 2)))

(defun client-close-frame (payload)
  "A close frame, a fresh vector of octets, as a client would send it, with PAYLOAD, a vector of
octets.  If PAYLOAD is too long for a close frame, the frame has only its code (RFC 6455, sections
5.5 and 5.5.1)."
  (let* ((size (if (<= (length payload) 125) (length payload) 2))
         (frame (make-octets (+ 6 size))))
    (setf (aref frame 0) #x88
          (aref frame 1) (logior #x80 size))
    (replace frame payload :start1 6)))

(defun failure-code-p (code)
  "True if a side that sends a close frame with CODE, an integer, fails the connection, and so
expects no close frame in return (RFC 6455, sections 7.1.7 and 7.4.1)."
  (and (<= 1002 code 1015)
       (/= +no-close-code+ code)))
