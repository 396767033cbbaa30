(in-package #:hunchentoot-recycling-taskmaster.http)

;;; hot: the loops that write every octet of a reply.  No function here checks its arguments.  The
;;; functions of reply-buffer.lisp ensure that TARGET has room and that strings have the declared
;;; types.  Each function returns the position after the last octet that it has written.

(deftype simple-text ()
  "The string types of header values.  The function SIMPLE-TEXT converts other strings."
  '(or (simple-array character (*)) simple-base-string))

(defmacro dispatch-text ((text) &body body)
  "Compiles BODY once for each string type that TEXT, a variable, may have."
  `(if (typep ,text '(simple-array character (*)))
       (let ((,text ,text))
         (declare (type (simple-array character (*)) ,text))
         ,@body)
       (let ((,text ,text))
         (declare (type simple-base-string ,text))
         ,@body)))

(declaim (ftype (function (octets index octets index index) index) put-octets)
         (ftype (function (octets index) index) put-line-end)
         (ftype (function (octets index simple-text octet) (or null index)) put-text)
         (ftype (function (octets index simple-text) index) put-capitalized)
         (ftype (function (octets index content-size) index) put-decimal put-hexadecimal)
         (ftype (function (simple-text index) index) codes-end)
         (ftype (function (octets index simple-text index) (or null index)) put-codes)
         (ftype (function (text index) index) utf-8-size)
         (ftype (function (octets index index text) (or null index)) put-utf-8))

(defun put-octets (target position source start end)
  "Puts SOURCE from START below END into TARGET at POSITION."
  (declare (type octets target source) (type index position start end) #.*hot-policy*)
  (let ((count (- end start)))
    (declare (type index count))
    ;; The lines of a head are short.  For them, this loop is faster than a call of REPLACE.
    (if (< count 64)
        (let ((done 0))
          (declare (type index done))
          (loop while (<= done (- count +group-size+))
                do (setf (octet-group target (+ position done)) (octet-group source (+ start done)))
                   (incf done +group-size+))
          (loop while (< done count)
                do (setf (aref target (+ position done)) (aref source (+ start done)))
                   (incf done)))
        (replace target source :start1 position :start2 start :end2 end))
    (the index (+ position count))))

(defun put-line-end (target position)
  "Puts CR and LF into TARGET at POSITION."
  (declare (type octets target) (type index position) #.*hot-policy*)
  (setf (aref target position) 13
        (aref target (1+ position)) 10)
  (the index (+ position 2)))

(defun put-text (target position text class)
  "Puts TEXT in Latin-1 into TARGET at POSITION.  NIL if a character is not in CLASS."
  (declare (type octets target) (type index position) (type octet class)
           (type simple-text text) #.*hot-policy*)
  (dispatch-text (text)
    (dotimes (i (length text) (the index (+ position i)))
      (let ((code (char-code (schar text i))))
        (unless (and (< code 256) (octet-in-class-p code class))
          (return nil))
        (setf (aref target (the index (+ position i))) code)))))

(defun put-capitalized (target position text)
  "Puts TEXT, of token characters, into TARGET at POSITION, capitalized as by STRING-CAPITALIZE."
  (declare (type octets target) (type index position) (type simple-text text)
           #.*hot-policy*)
  (dispatch-text (text)
    (let ((inside-word-p nil))
      (dotimes (i (length text) (the index (+ position i)))
        (let* ((code (char-code (schar text i)))
               (upper-p (<= 65 code 90))
               (lower-p (<= 97 code 122)))
          (setf (aref target (the index (+ position i)))
                (logand 255 (cond ((and upper-p inside-word-p) (+ code 32))
                                  ((and lower-p (not inside-word-p)) (- code 32))
                                  (t code)))
                inside-word-p (or upper-p lower-p (<= 48 code 57))))))))

(declaim (inline put-number))
(defun put-number (target position number radix)
  "Puts the digits of NUMBER in RADIX, a constant, into TARGET at POSITION."
  (declare (type octets target) (type index position) (type content-size number)
           (type (integer 2 16) radix) #.*hot-policy*)
  (let* ((digits (loop for rest of-type content-size = number then (floor rest radix)
                       count t of-type (integer 0 60)
                       while (>= rest radix)))
         (end (+ position digits)))
    (declare (type index end))
    (loop with i of-type index = end
          do (multiple-value-bind (rest digit) (floor number radix)
               (decf i)
               (setf (aref target i) (if (< digit 10) (+ 48 digit) (+ 87 digit))
                     number rest))
          until (zerop number))
    end))

(defun put-decimal (target position number)
  "Puts the decimal digits of NUMBER into TARGET at POSITION."
  (declare (type octets target) (type index position) (type content-size number)
           #.*hot-policy*)
  (put-number target position number 10))

(defun put-hexadecimal (target position number)
  "Puts the hexadecimal digits of NUMBER into TARGET at POSITION."
  (declare (type octets target) (type index position) (type content-size number)
           #.*hot-policy*)
  (put-number target position number 16))

;;; Content.  Most text is ASCII, or nearly so.  The loops take four characters at a time while all
;;; four are ASCII.

(defmacro with-four-codes ((codes text i) &body body)
  "Evaluates BODY with the four variables CODES bound to the character codes of TEXT from I on."
  `(let ,(loop for code in codes
               for k from 0
               collect `(,code (char-code (schar ,text (+ ,i ,k)))))
     ,@body))

(defmacro put-four ((target position) codes)
  "Puts the variables CODES, below 256, into TARGET at POSITION, a variable."
  `(setf ,@(loop for code in codes
                 for k from 0
                 append `((aref ,target (+ ,position ,k)) (the octet ,code)))))

(defun codes-end (text limit)
  "The position of the first character of TEXT whose code is not below LIMIT, a power of 2; or the
length of TEXT."
  (declare (type simple-text text) (type index limit) #.*hot-policy*)
  (dispatch-text (text)
    (let ((i 0) (end (length text)))
      (declare (type index i end))
      (loop while (and (<= (+ i 4) end)
                       (with-four-codes ((a b c d) text i)
                         (< (logior a b c d) limit)))
            do (incf i 4))
      (loop while (and (< i end) (< (char-code (schar text i)) limit))
            do (incf i))
      i)))

(defun put-codes (target position text limit)
  "Puts the codes of TEXT into TARGET at POSITION.  NIL if one is not below LIMIT, 128 or 256."
  (declare (type octets target) (type index position limit) (type simple-text text)
           #.*hot-policy*)
  (dispatch-text (text)
    (let ((i 0) (end (length text)))
      (declare (type index i end))
      (loop while (<= (+ i 4) end)
            do (with-four-codes ((a b c d) text i)
                 (unless (< (logior a b c d) limit)
                   (return-from put-codes nil))
                 (put-four (target position) (a b c d)))
               (setf i (+ i 4)
                     position (the index (+ position 4))))
      (loop while (< i end)
            do (let ((code (char-code (schar text i))))
                 (unless (< code limit)
                   (return-from put-codes nil))
                 (setf (aref target position) (the octet code)
                       i (+ i 1)
                       position (the index (+ position 1)))))
      position)))

;;; UTF-8.  RFC 3629, section 3, excludes surrogates.  In some Lisps strings are UTF-16, so a
;;; surrogate pair becomes the character that it encodes.  Any other surrogate becomes U+FFFD.

(defmacro do-code-points ((code text start) four &body body)
  "Iterates over TEXT from START.  FOUR is (VARIABLES . FORMS): the forms are evaluated for each run
of four ASCII characters, with their codes in the variables.  BODY is evaluated for each other code
point, with CODE bound to it."
  (let ((i (gensym "I")) (end (gensym "END")) (low (gensym "LOW")))
    `(let ((,i ,start) (,end (length ,text)))
       (declare (type index ,i ,end))
       (loop
         (loop while (and (<= (+ ,i 4) ,end)
                          (< (char-code (schar ,text ,i)) #x80)
                          (with-four-codes (,(first four) ,text ,i)
                            (when (< (logior ,@(first four)) #x80)
                              ,@(rest four)
                              t)))
               do (incf ,i 4))
         (unless (< ,i ,end)
           (return))
         (let ((,code (char-code (schar ,text ,i))))
           (declare (type (unsigned-byte 21) ,code))
           (incf ,i)
           (when (<= #xD800 ,code #xDFFF)
             (let ((,low (if (< ,i ,end) (char-code (schar ,text ,i)) 0)))
               (cond ((and (< ,code #xDC00) (<= #xDC00 ,low #xDFFF))
                      (setf ,code (+ #x10000 (ash (- ,code #xD800) 10)
                                     (- ,low #xDC00)))
                      (incf ,i))
                     (t (setf ,code #xFFFD)))))
           ,@body)))))

(defun utf-8-size (text start)
  "The number of octets of TEXT from START on, in UTF-8."
  (declare (type text text) (type index start) #.*hot-policy*)
  (let ((size 0))
    (declare (type index size))
    (do-code-points (code text start)
        ((a b c d) (incf size 4))
      (incf size (cond ((< code #x80) 1)
                       ((< code #x800) 2)
                       ((< code #x10000) 3)
                       (t 4))))
    size))

(defun put-utf-8 (target position limit text)
  "Puts TEXT in UTF-8 into TARGET at POSITION.  NIL if its octets go beyond LIMIT, as they may if
another thread has changed TEXT since its size was computed."
  (declare (type octets target) (type index position limit) (type text text) #.*hot-policy*)
  (macrolet ((check-room (count)
               `(when (> (the index (+ position ,count)) limit)
                  (return-from put-utf-8 nil)))
             (put (&rest octets)
               `(progn
                  (check-room ,(list-length octets))
                  ,@(mapcar (lambda (octet)
                              `(setf (aref target position) ,octet
                                     position (the index (1+ position))))
                            octets)))
             (more (shift)
               `(logior #x80 (ldb (byte 6 ,shift) code))))
    (do-code-points (code text 0)
        ((a b c d)
         (check-room 4)
         (put-four (target position) (a b c d))
         (setf position (the index (+ position 4))))
      (cond ((< code #x80) (put code))
            ((< code #x800) (put (logior #xC0 (ash code -6)) (more 0)))
            ((< code #x10000) (put (logior #xE0 (ash code -12)) (more 6) (more 0)))
            (t (put (logior #xF0 (ash code -18)) (more 12) (more 6) (more 0))))))
  position)
