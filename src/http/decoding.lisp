(in-package #:hunchentoot-recycling-taskmaster.http)

;;; Decoding of UTF-8 and of percent-encoded text.  The functions here refuse nothing: they replace
;;; invalid UTF-8 by U+FFFD, and leave a percent sign without two digits as it is.

(defconstant +replacement+ #xFFFD)

(defun utf-8-size-by-first (octet)
  "The number of octets, an integer, of a UTF-8 sequence that begins with OCTET; 1 if no longer
sequence begins with it (RFC 3629, section 3)."
  (cond ((< octet #xC2) 1)
        ((< octet #xE0) 2)
        ((< octet #xF0) 3)
        ((< octet #xF5) 4)
        (t 1)))

(declaim (inline continues-p))
(defun continues-p (octet first nth)
  "True if OCTET may be the NTH octet, from 1, after FIRST, which begins a UTF-8 sequence."
  ;; RFC 3629, section 4, excludes overlong forms, surrogates, and code points above U+10FFFF.
  (if (= 1 nth)
      (case first
        (#xE0 (<= #xA0 octet #xBF))
        (#xED (<= #x80 octet #x9F))
        (#xF0 (<= #x90 octet #xBF))
        (#xF4 (<= #x80 octet #x8F))
        (t (<= #x80 octet #xBF)))
      (<= #x80 octet #xBF)))

(defun utf-8-code (octets start end)
  "The code point, an integer, that OCTETS have in UTF-8 at START, below END; and the position after
it.  The code point is U+FFFD for an octet that begins no sequence, and for the octets of a sequence
that breaks off."
  (declare (type octets octets) (type index start end) #.*plain-policy*)
  (let* ((first (aref octets start))
         (size (utf-8-size-by-first first)))
    (cond ((< first #x80) (values first (1+ start)))
          ((= 1 size) (values +replacement+ (1+ start)))
          (t
           (loop with code of-type (unsigned-byte 32) = (logand first (ash #x7F (- size)))
                 for nth from 1 below size
                 for position of-type index = (+ start nth)
                 unless (and (< position end)
                             (continues-p (aref octets position) first nth))
                   return (values +replacement+ position)
                 do (setf code (logior (ash code 6) (logand #x3F (aref octets position))))
                 finally (return (values code (+ start size))))))))

(defun put-code-point (text position code)
  "Puts the character of CODE, an integer, into TEXT at POSITION, as two characters if this Lisp's
strings are UTF-16.  Returns the position after it."
  (declare (type text text) (type index position) (type (unsigned-byte 21) code) #.*plain-policy*)
  (cond ((< code char-code-limit)
         (setf (schar text position) (code-char code))
         (1+ position))
        (t
         (let ((offset (- code #x10000)))
           (setf (schar text position) (code-char (+ #xD800 (ash offset -10)))
                 (schar text (1+ position)) (code-char (+ #xDC00 (logand #x3FF offset))))
           (+ position 2)))))

(defun utf-8-text (octets &optional (start 0) (end (length octets)))
  "A fresh string: OCTETS from START below END decoded as UTF-8.  U+FFFD replaces each invalid
sequence."
  (declare (type octets octets) (type index start end) #.*plain-policy*)
  (check-range octets start end)
  ;; A sequence never has more characters than octets.
  (let ((text (make-string (- end start)))
        (fill 0))
    (declare (type index fill))
    (loop while (< start end)
          do (multiple-value-bind (code next) (utf-8-code octets start end)
               (setf fill (put-code-point text fill code)
                     start next)))
    (if (= fill (length text)) text (text-part text 0 fill))))

;;; RFC 3986, section 2.1

(defun encoded-octets (text start end)
  "TEXT, all Latin-1, from START below END, with percent-encoded octets decoded: a vector of octets,
and the number of octets in it."
  (declare (type text text) (type index start end) #.*plain-policy*)
  (let ((octets (make-octets (- end start)))
        (fill 0))
    (declare (type index fill))
    (loop while (< start end)
          do (cond ((percent-encoding-p text start end)
                    (setf (aref octets fill)
                          (+ (* 16 (digit-char-p (schar text (+ start 1)) 16))
                             (digit-char-p (schar text (+ start 2)) 16)))
                    (incf start 3))
                   (t
                    (setf (aref octets fill) (logand 255 (char-code (schar text start))))
                    (incf start)))
             (incf fill))
    (values octets fill)))

(defun ascii-p (text start end)
  (declare (type text text) (type index start end) #.*plain-policy*)
  (loop for position from start below end
        always (< (char-code (schar text position)) 128)))

(defun percent-decoded (text start end)
  "TEXT, all Latin-1, from START below END, with percent-encoded octets decoded and the result read
as UTF-8: a string.  It is TEXT itself if that is the same."
  (declare (type text text) (type index start end) #.*plain-policy*)
  (assert (<= start end (length text)) (start end) "[~S, ~S) is not a range of a text." start end)
  (cond ((not (and (= end (text-position #\% text start end))
                   (ascii-p text start end)))
         (multiple-value-bind (octets count) (encoded-octets text start end)
           (utf-8-text octets 0 count)))
        ((and (= 0 start) (= end (length text))) text)
        (t (text-part text start end))))
