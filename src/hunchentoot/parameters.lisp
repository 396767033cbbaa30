(in-package #:hunchentoot-recycling-taskmaster)

;;;; What the head of a request says, as Hunchentoot's strings and alists of strings: its path, its
;;;; query, its cookies.  Hunchentoot splits by regular expressions, of which that for cookies takes
;;;; time with the square of a client's white space.  Here each character is looked at a fixed
;;;; number of times, and what comes out is the same.

(defun literal-p (text start end)
  "True when TEXT from START to END is not URL-encoded, in any external format that has ASCII in
it."
  (declare (type text text) (type index start end) #.*plain-policy*)
  (loop for position of-type index from start below end
        for char = (schar text position)
        never (or (char= char #\%) (char= char #\+) (char> char #\~))))

(defun decoded-ascii (text start end plus-p)
  "What TEXT from START to END, URL-encoded, is, if that is all ASCII; else NIL.  A plus is a space
if PLUS-P."
  (declare (type text text) (type index start end) #.*plain-policy*)
  (let ((decoded (make-string (- end start)))
        (position start)
        (fill 0))
    (declare (type index position fill))
    (flet ((digit (position)
             (or (and (< position end) (digit-char-p (schar text position) 16))
                 (return-from decoded-ascii nil))))
      (loop while (< position end)
            do (let ((char (schar text position)))
                 (case char
                   (#\+ (when plus-p (setf char #\Space)))
                   (#\% (setf char (code-char (+ (* 16 (digit (+ position 1)))
                                                 (digit (+ position 2)))))
                    (incf position 2)))
                 (unless (< (char-code char) 128)
                   (return-from decoded-ascii nil))
                 (setf (schar decoded fill) char)
                 (incf fill)
                 (incf position))))
    (text-part decoded 0 fill)))

(defun decoded (text start end external-format ascii-p &optional (plus-p t))
  "A fresh string of what TEXT from START to END is, URL-encoded in EXTERNAL-FORMAT, which has ASCII
in it if ASCII-P.  A plus is a space if PLUS-P."
  (declare (type text text) (type index start end) #.*plain-policy*)
  (or (and ascii-p
           (if (literal-p text start end)
               (text-part text start end)
               (decoded-ascii text start end plus-p)))
      (url-decoded (text-part text start end) external-format plus-p)))

(declaim (inline white-p))
(defun white-p (char)
  "True for what separates words in a line."
  (or (char= char #\Space) (char= char #\Tab)))

(defun without-spaces (name)
  "The string NAME without spaces at its ends."
  (let ((size (length name)))
    (if (and (plusp size)
             (or (char= #\Space (char name 0)) (char= #\Space (char name (1- size)))))
        (string-trim " " name)
        name)))

(defun query-alist (query external-format ascii-p)
  "The names and values in the string QUERY, in EXTERNAL-FORMAT, which has ASCII in it if ASCII-P.
Empty elements count, but not at the end."
  (declare (type text query) #.*plain-policy*)
  (let ((size (1+ (or (position #\& query :test #'char/= :from-end t) -1)))
        (start 0)
        (alist '()))
    (declare (type index size start))
    (loop while (< start size)
          do (let* ((end (text-position #\& query start size))
                    (equals (text-position #\= query start end)))
               (declare (type index end equals))
               (push (cons (without-spaces (decoded query start equals external-format ascii-p))
                           (decoded query (min end (1+ equals)) end external-format ascii-p))
                     alist)
               (setf start (1+ end))))
    (nreverse alist)))

;;; Lists in header fields

(defun white-start (text start end)
  "Where the white space begins that ends TEXT from START at END."
  (declare (type text text) (type index start end) #.*plain-policy*)
  (loop for position of-type index from end above start
        while (white-p (schar text (1- position)))
        finally (return position)))

(defun end-of-list (text separator other)
  "Where the last element of TEXT ends that is not empty: before SEPARATOR and OTHER, characters,
and the white space beside them."
  (declare (type text text) (type character separator other) #.*plain-policy*)
  (let ((end (length text)))
    (declare (type index end))
    (loop for start of-type index = (white-start text 0 end)
          while (and (plusp start)
                     (let ((char (schar text (1- start))))
                       (or (char= char separator) (char= char other))))
          do (setf end (white-start text 0 (1- start)))
          finally (return end))))

(defun map-list-elements (function text separator &optional (other separator))
  "A list of what FUNCTION returns for each element of TEXT, from a start to an end.  Elements stand
between the characters SEPARATOR and OTHER; white space beside these is theirs, that at both ends of
TEXT is not.  Empty elements count, but not at the end."
  (declare (type function function) (type text text) (type character separator other)
           #.*plain-policy*)
  (let ((size (end-of-list text separator other)) (start 0) (results '()))
    (declare (type index size start))
    (loop while (< start size)
          do (let ((stop (loop for position of-type index from start below size
                               until (let ((char (schar text position)))
                                       (or (char= char separator) (char= char other)))
                               finally (return position))))
               (declare (type index stop))
               (push (funcall function start (if (= stop size) size (white-start text start stop)))
                     results)
               (setf start (loop for position of-type index from (1+ stop) below size
                                 while (white-p (schar text position))
                                 finally (return position)))))
    (nreverse results)))

(defun cookie-alist (cookies)
  "The names and values in COOKIES, a text, as Hunchentoot has them."
  (declare (type text cookies) #.*plain-policy*)
  (flet ((cookie (start end)
           (let ((equals (text-position #\= cookies start end)))
             (declare (type index equals))
             (cons (without-spaces (text-part cookies start equals))
                   (text-part cookies (min end (1+ equals)) end)))))
    (declare (dynamic-extent #'cookie))
    (map-list-elements #'cookie cookies #\, #\;)))

(defun list-of-elements (value)
  "The elements of VALUE, a string that is a comma-separated list, empty ones as well, but not at
its end."
  (let ((text (coerce value 'text)))
    (map-list-elements (lambda (start end) (text-part text start end)) text #\,)))

;;; The charset of content

(defun encoding-of (external-format)
  "How ENCODE-STRING calls EXTERNAL-FORMAT; NIL where it does not know it."
  (and (eq (flexi-streams:external-format-eol-style external-format) :lf)
       (case (flexi-streams:external-format-name external-format)
         (:utf-8 :utf-8)
         (:iso-8859-1 :latin-1))))

(defun format-named (charset)
  "The external format that CHARSET, a string, names, or NIL; nothing that a client sends is
interned."
  (handler-case (flexi-streams:make-external-format charset :eol-style :lf)
    (error () nil)))

(defun known-format (charset)
  "What FORMAT-NAMED returns for CHARSET; with a warning where that is NIL."
  (or (format-named charset)
      (progn (warn-of-charset (beginning-of charset))
             nil)))

(defconstant +most-told+ 40
  "How many characters of what a client sent are told where it means nothing to us.")

(defun beginning-of (text)
  "TEXT, or its beginning where that is long."
  (if (<= (length text) +most-told+)
      text
      (concatenate 'string (subseq text 0 +most-told+) "...")))

(defun external-format-of-type (type)
  "The external format of content of TYPE, the value of a Content-Type or NIL; as with Hunchentoot,
NIL unless that is a text and names a charset that is known.  Signals MALFORMED-MEDIA-TYPE for what
is no Content-Type."
  (let ((charset (and type (media-type-parameter "charset" type "text"))))
    (and charset
         (known-format charset))))
