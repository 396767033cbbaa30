(in-package #:hunchentoot-recycling-taskmaster)

;;;; The query and the cookies of a request as Hunchentoot's alists of strings, split without its
;;;; regular expressions.  What is not regular, an empty element say, is left to Hunchentoot, so
;;;; that it alone decides what becomes of it.

(defun url-encoding-of (text start end)
  "How TEXT from START to END is encoded, in any external format that has ASCII in it: not at all,
:LITERAL; with plus signs for spaces, :SPACES; or in a way that URL-DECODE knows, :OTHER."
  (declare (type text text) (type index start end) #.*plain-policy*)
  (loop with encoding = :literal
        for position of-type index from start below end
        for char = (schar text position)
        do (cond ((or (char= char #\%) (char> char #\~)) (return :other))
                 ((char= char #\+) (setf encoding :spaces)))
        finally (return encoding)))

(defun decoded (text start end external-format)
  (declare #.*plain-policy*)
  (let ((part (subseq (the text text) start end)))
    (ecase (url-encoding-of part 0 (length part))
      (:literal part)
      (:spaces (nsubstitute #\Space #\+ (the text part)))
      (:other (hunchentoot:url-decode part external-format)))))

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
        collect (cons (string-trim " " (decoded query start equals external-format))
                      (decoded query (min end (1+ equals)) end external-format))
        until (= end size)))

(declaim (inline white-p))
(defun white-p (char)
  (or (char= char #\Space) (char= char #\Tab)))

(defun cookie-end (cookies start)
  "Where the cookie that begins COOKIES at START ends: at a comma, a semicolon, or the end."
  (declare (type text cookies) (type index start) #.*plain-policy*)
  (loop for position of-type index from start below (length cookies)
        until (let ((char (schar cookies position)))
                (or (char= char #\;) (char= char #\,)))
        finally (return position)))

(defun trimmed-p (text)
  (declare (type text text))
  (not (or (zerop (length text))
           (white-p (schar text 0))
           (white-p (schar text (1- (length text)))))))

(defun cookie-alist (cookies)
  "The names and values in COOKIES, a Cookie header; :IRREGULAR where there is white space that
does not stand beside a comma or a semicolon, or where a cookie has no name."
  (declare (type text cookies) #.*plain-policy*)
  (flet ((skip (position)
           (or (position-if-not #'white-p cookies :start position) (length cookies)))
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
          collect (cons (subseq cookies start equals)
                        (subseq cookies (min end (1+ equals)) end))
          until (= stop (length cookies)))))
