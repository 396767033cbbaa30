(in-package #:hunchentoot-recycling-taskmaster.websocket)

;;; hot: the loops that touch every octet of a message.  No function here checks its arguments.  The
;;; functions of message-decoder.lisp and websocket-frames.lisp ensure that every range lies within
;;; its vector.

(deftype mask ()
  "A masking key, with its first octet in the lowest bits (RFC 6455, section 5.3)."
  '(unsigned-byte 32))

(deftype utf-8-state ()
  "The position within the octets of a character; see *UTF-8-ROWS*."
  '(integer 0 8))

(declaim (ftype (function (octets index index octets index mask) t) unmask-octets)
         (ftype (function (octets index index) index) ascii-end)
         (ftype (function (octets index index utf-8-state) utf-8-state) check-utf-8)
         (ftype (function (octets index index) text) text-of-octets))

;;; Masks

(declaim (inline mask-group))
(defun mask-group (mask)
  "A group filled with repetitions of MASK."
  (declare (type mask mask) #.*hot-policy*)
  (loop with group of-type octet-group = mask
        for shift from 32 below (* 8 +group-size+) by 32
        do (setf group (logior group (ldb (byte (* 8 +group-size+) 0) (ash mask shift))))
        finally (return group)))

(defun unmask-octets (source start end target position mask)
  "Puts SOURCE from START below END into TARGET at POSITION.  Each octet is XORed with the next
octet of MASK, from the lowest on.  SOURCE and START may be TARGET and POSITION."
  (declare (type octets source target) (type index start end position) (type mask mask)
           #.*hot-policy*)
  (let ((group (mask-group mask)))
    (declare (type octet-group group))
    (loop while (<= (+ start +group-size+) end)
          do (setf (octet-group target position) (logxor group (octet-group source start)))
             (setf start (the index (+ start +group-size+))
                   position (the index (+ position +group-size+))))
    (loop while (< start end)
          do (setf (aref target position) (logxor (logand 255 group) (aref source start))
                   group (ash group -8)
                   start (the index (1+ start))
                   position (the index (1+ position))))))

;;; UTF-8: RFC 3629, section 4.  The check goes octet by octet, so that a text is refused at its
;;; first invalid octet, however its octets are split.

(eval-when (:compile-toplevel :load-toplevel :execute)

  (defconstant +between-characters+ 0)
  (defconstant +not-utf-8+ 8)

  (defparameter *utf-8-rows*
    ;; state       octets, and the state after them
    '((0           (#x00 #x7F 0) (#xC2 #xDF 1) (#xE0 #xE0 4) (#xE1 #xEC 2) (#xED #xED 5)
                   (#xEE #xEF 2) (#xF0 #xF0 6) (#xF1 #xF3 3) (#xF4 #xF4 7))
      (1           (#x80 #xBF 0))       ; one more octet
      (2           (#x80 #xBF 1))       ; two more octets
      (3           (#x80 #xBF 2))       ; three more octets
      (4           (#xA0 #xBF 1))       ; excludes overlong forms of two octets
      (5           (#x80 #x9F 1))       ; excludes surrogates
      (6           (#x90 #xBF 2))       ; excludes overlong forms of three octets
      (7           (#x80 #x8F 2)))      ; excludes code points above U+10FFFF
    "The states of a text: a list of (STATE (FIRST LAST AFTER) ...).")

  (defun utf-8-steps ()
    "A vector of the state after each octet in each state, 256 elements for each state."
    (let ((steps (make-array (* 8 256) :element-type 'octet :initial-element +not-utf-8+)))
      (loop for (state . ranges) in *utf-8-rows*
            do (loop for (first last after) in ranges
                     do (fill steps after :start (+ first (* 256 state))
                                          :end (+ last 1 (* 256 state)))))
      steps)))

(declaim (type (octets 2048) *utf-8-steps*))
(defparameter *utf-8-steps* (utf-8-steps)
  "The table of UTF-8-STEPS.")

(declaim (inline ascii-end))
(defun ascii-end (octets start end)
  "The position of the first group from START, in steps of a group, that is not all ASCII; or the
position where less than a group is left before END."
  (declare (type octets octets) (type index start end) #.*hot-policy*)
  (loop while (and (<= (+ start +group-size+) end)
                   (not (logtest (ldb (byte (* 8 +group-size+) 0) #x8080808080808080)
                                 (octet-group octets start))))
        do (setf start (the index (+ start +group-size+))))
  start)

(defun check-utf-8 (octets start end state)
  "Checks OCTETS from START below END, a part of a text, in STATE.  Returns the state after them,
which is +NOT-UTF-8+ if they are not UTF-8."
  (declare (type octets octets) (type index start end) (type utf-8-state state) #.*hot-policy*)
  (let ((steps *utf-8-steps*))
    (declare (type (octets 2048) steps))
    (loop
      (when (= state +between-characters+)
        (setf start (the index (ascii-end octets start end))))
      (unless (< start end)
        (return state))
      (setf state (aref steps (logior (ash state 8) (aref octets start)))
            start (the index (1+ start)))
      (when (= state +not-utf-8+)
        (return state)))))

(defmacro put-group (group text position)
  "Puts the octets of GROUP, a variable, all of them ASCII, into TEXT from POSITION on."
  `(setf ,@(loop for k below +group-size+
                 append `((schar ,text (the index (+ ,position ,k)))
                          (code-char (ldb (byte 8 ,(* 8 k)) ,group))))))

(defun text-of-octets (octets start end)
  "A fresh string of OCTETS, UTF-8, from START below END, which CHECK-UTF-8 has checked."
  (declare (type octets octets) (type index start end) #.*hot-policy*)
  (let ((stop (ascii-end octets start end)) (position 0))
    (declare (type index stop position))
    (if (loop for place of-type index from stop below end
              thereis (<= #x80 (aref octets place)))
        (utf-8-text octets start end)
        (let ((text (make-string (- end start))))
          (loop while (< start stop)
                do (let ((group (octet-group octets start)))
                     (declare (type octet-group group))
                     (put-group group text position)
                     (setf start (the index (+ start +group-size+))
                           position (the index (+ position +group-size+)))))
          (loop while (< start end)
                do (setf (schar text position) (code-char (aref octets start))
                         start (the index (1+ start))
                         position (the index (1+ position))))
          text))))
