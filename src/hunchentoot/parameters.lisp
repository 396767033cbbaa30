(in-package #:hunchentoot-recycling-taskmaster)

;;;; The query and the cookies of a request as Hunchentoot's alists of strings, split without its
;;;; regular expressions.  What is not regular, an empty element say, is left to Hunchentoot, so
;;;; that it alone decides what becomes of it.

(defun literal-p (text start end)
  "True when TEXT from START to END is not URL-encoded, in any external format that has ASCII in it."
  (declare (type text text) (type index start end) #.*plain-policy*)
  (loop for position of-type index from start below end
        for char = (schar text position)
        never (or (char= char #\%) (char= char #\+) (char> char #\~))))

(defun decoded-ascii (text start end)
  "What TEXT from START to END, URL-encoded, is, if that is all ASCII; else NIL."
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
                   (#\+ (setf char #\Space))
                   (#\% (setf char (code-char (+ (* 16 (digit (+ position 1)))
                                                 (digit (+ position 2)))))
                    (incf position 2)))
                 (unless (< (char-code char) 128)
                   (return-from decoded-ascii nil))
                 (setf (schar decoded fill) char)
                 (incf fill)
                 (incf position))))
    (text-part decoded 0 fill)))

(defun decoded (text start end external-format)
  "A fresh string of what TEXT from START to END is, URL-encoded in EXTERNAL-FORMAT, which has ASCII in
it."
  (declare (type text text) (type index start end) #.*plain-policy*)
  (if (literal-p text start end)
      (text-part text start end)
      (or (decoded-ascii text start end)
          (hunchentoot:url-decode (text-part text start end) external-format))))

(declaim (inline white-p))
(defun white-p (char)
  (or (char= char #\Space) (char= char #\Tab)))

(defun trimmed-p (text)
  (declare (type text text))
  (not (or (zerop (length text))
           (white-p (schar text 0))
           (white-p (schar text (1- (length text)))))))

(defun without-spaces (name)
  "The string NAME without spaces at its ends."
  (if (and (typep name 'text) (trimmed-p name))
      name
      (string-trim " " name)))

(defun query-alist (query external-format)
  "The names and values in the string QUERY, in EXTERNAL-FORMAT, which has ASCII in it; :IRREGULAR
where an element is empty."
  (declare (type text query) #.*plain-policy*)
  (loop with size = (length query)
        for start of-type index = 0 then (1+ end)
        for end of-type index = (text-position #\& query start size)
        for equals of-type index = (text-position #\= query start end)
        when (= start end)
          do (return :irregular)
        collect (cons (without-spaces (decoded query start equals external-format))
                      (decoded query (min end (1+ equals)) end external-format))
        until (= end size)))

(defun cookie-end (cookies start)
  "Where the cookie that begins COOKIES at START ends: at a comma, a semicolon, or the end."
  (declare (type text cookies) (type index start) #.*plain-policy*)
  (loop for position of-type index from start below (length cookies)
        until (let ((char (schar cookies position)))
                (or (char= char #\;) (char= char #\,)))
        finally (return position)))

(defun cookie-alist (cookies)
  "The names and values in COOKIES, a Cookie header; :IRREGULAR where there is white space that
does not stand beside a comma or a semicolon, or where a cookie has no name."
  (declare (type text cookies) #.*plain-policy*)
  (flet ((skip (position)
           (loop while (and (< position (length cookies)) (white-p (schar cookies position)))
                 do (incf position))
           position)
         (strip (start end)
           (loop while (and (< start end) (white-p (schar cookies (1- end))))
                 do (decf end))
           end))
    (loop initially (unless (trimmed-p cookies) (return :irregular))
          for start = 0 then (skip (1+ stop))
          for stop = (cookie-end cookies start)
          for end = (strip start stop)
          for equals = (text-position #\= cookies start end)
          when (or (= start equals)
                   (white-p (schar cookies (1- equals)))
                   (and (< (1+ equals) end) (white-p (schar cookies (1+ equals)))))
            do (return :irregular)
          collect (cons (text-part cookies start equals)
                        (text-part cookies (min end (1+ equals)) end))
          until (= stop (length cookies)))))
