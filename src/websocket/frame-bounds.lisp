(in-package #:hunchentoot-recycling-taskmaster.websocket)

;;;; Where frames end, for who leaves it to a program to read them (RFC 6455, section 5.2): nothing
;;;; is judged here, and no payload is looked at but that of close frames.

(defun length-end (octet)
  "Where in a frame whose second octet is OCTET its length ends."
  (+ 2 (case (logand 127 octet) (126 2) (127 8) (t 0))))

(defun head-extent (octet)
  "How many octets the head of a frame has whose second one is OCTET."
  (+ (length-end octet) (if (logtest #x80 octet) 4 0)))

(defun announced-size (octets start)
  "How many octets of payload the head at START in OCTETS announces, whose length has come."
  (let* ((number (logand 127 (aref octets (1+ start))))
         (count (case number (126 2) (127 8) (t 0))))
    (if (zerop count)
        number
        (loop with size = 0
              for i from (+ start 2) below (+ start 2 count)
              do (setf size (+ (ash size 8) (aref octets i)))
              finally (return size)))))

(defun frame-extent (octets start end)
  "How many octets the frame has at least that begins in OCTETS at START, as far as those below END
tell; an integer, at most 2^64 and 14.  The second value is true when it has no more; the third is
how many of them its head has, an integer
(RFC 6455, section 5.2)."
  (declare (type octets octets) (type index start end) #.*plain-policy*)
  (check-range octets start end)
  (let ((come (- end start)))
    (if (< come 2)
        (values 2 nil 2)
        (let ((head (head-extent (aref octets (1+ start)))))
          (if (< come (length-end (aref octets (1+ start))))
              (values head nil head)
              (values (+ head (announced-size octets start)) t head))))))

(defun frame-payload-size (frame)
  "How many octets of payload FRAME has, a vector of octets that are a whole one (RFC 6455, section
5.2)."
  (multiple-value-bind (extent exact-p head) (frame-extent frame 0 (length frame))
    (declare (ignore exact-p))
    (- extent head)))

(defun whole-frame-p (octets)
  "True when OCTETS are one frame, and no more (RFC 6455, section 5.2)."
  (multiple-value-bind (extent exact-p) (frame-extent octets 0 (length octets))
    (and exact-p (= extent (length octets)))))

(defun control-frame-p (frame)
  "True when FRAME, a vector of octets, is one that may come between those of a message (RFC 6455,
section 5.4)."
  (logtest #x08 (aref frame 0)))

(defun continuation-frame-p (frame)
  "True when FRAME, a vector of octets, goes on with a message (RFC 6455, section 5.4)."
  (zerop (logand 15 (aref frame 0))))

(defun final-frame-p (frame)
  "True when FRAME, a vector of octets, is the last of a message, or a control frame (RFC 6455,
section 5.2)."
  (logtest #x80 (aref frame 0)))

(defun text-frame-p (frame)
  "True when FRAME, a vector of octets, begins a message that is a text (RFC 6455, section 5.6)."
  (= 1 (logand 15 (aref frame 0))))

(defun close-frame-payload (octets)
  "The payload, a fresh vector of octets, unmasked, of the close frame that OCTETS are; NIL where
they are none (RFC 6455, section 5.5.1)."
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
  "The code in PAYLOAD, of a close frame; +NO-CLOSE-CODE+ where that has none (RFC 6455, section
5.5.1)."
  (if (< (length payload) 2)
      +no-close-code+
      (+ (* 256 (aref payload 0)) (aref payload 1))))

(defun close-payload (code reason)
  "The payload, a fresh vector of octets, of a close frame with CODE, an integer, also one that is
never sent, and REASON, a string (RFC 6455, section 7.4)."
  (if (= +abnormal-end+ code)
      (coerce (list (ash code -8) (logand 255 code)) 'octets)
      (subseq (encode-close code reason) 2)))

(defun client-close-frame (payload)
  "The close frame, a fresh vector of octets, with PAYLOAD, a vector of octets, as it would come
from a client; with the code only that this begins with where it is longer than such a frame may be
(RFC 6455, sections 5.5 and 5.5.1)."
  (let* ((size (if (<= (length payload) 125) (length payload) 2))
         (frame (make-octets (+ 6 size))))
    (setf (aref frame 0) #x88
          (aref frame 1) (logior #x80 size))
    (replace frame payload :start1 6)))

(defun failure-code-p (code)
  "True when an end that sends a close frame with CODE, an integer, fails the connection, and so
awaits no other (RFC 6455, sections 7.1.7 and 7.4.1)."
  (and (<= 1002 code 1015)
       (/= +no-close-code+ code)))
