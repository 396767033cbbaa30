(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; Lines for a journal, made in an OUTPUT: text in UTF-8, with what could end a line escaped,
;;;; and JSON.

(defmacro with-line ((line) &body body)
  "Evaluates BODY with LINE bound to an empty OUTPUT that belongs to the worker."
  `(let ((,line (reset-output (if *kit* (kit-line *kit*) (make-output)))))
     ,@body))

(defun end-line (line)
  "Appends the line feed to LINE."
  (encode-octets line (load-time-value (coerce '(10) 'octets))))

(defmacro do-plain-runs ((text start end special-p) plain special)
  "Evaluates PLAIN for each run, from START to END, of characters of TEXT, a text, for which
SPECIAL-P is false, and SPECIAL for each other character, which is at END."
  (let ((size (gensym "SIZE")) (index (gensym "INDEX")))
    `(loop with ,size of-type index = (length ,text)
           for ,start of-type index = 0 then (1+ ,end)
           for ,end of-type index = (loop for ,index of-type index from ,start below ,size
                                          when (,special-p (schar ,text ,index))
                                            return ,index
                                          finally (return ,size))
           when (< ,start ,end) do ,plain
           while (< ,end ,size) do ,special)))

(defun encode-run (line text start end)
  (encode-string line (if (and (zerop start) (= end (length text)))
                          text
                          (subseq text start end))
                 :utf-8))

;;; Lines for people and their tools

(declaim (inline control-p))
(defun control-p (char)
  (let ((code (char-code char)))
    (or (< code 32) (= code 127))))

(defun encode-text (line string)
  (declare #.*plain-policy*)
  (let ((text (coerce string 'text)))
    (declare (type text text))
    (do-plain-runs (text start end control-p)
      (encode-run line text start end)
      (encode-string line (format nil "\\x~2,'0X" (char-code (schar text end))) :utf-8))))

(defun printed (value)
  (if (and (keywordp value) (eq :upcase *print-case*))
      (symbol-name value)
      (let ((*print-base* 10) (*print-radix* nil))
        (princ-to-string value))))

(defun encode-printed (line value)
  "Appends VALUE to LINE as PRINC prints it in base 10, in UTF-8, each control character as \\x and
two hexadecimal digits: whatever a client sends, one line stays one line."
  (declare #.*plain-policy*)
  (typecase value
    (string (encode-text line value))
    (content-size (encode-decimal line value))
    (t (encode-text line (printed value)))))

;;; JSON (RFC 8259)

(declaim (inline escaped-in-json-p))
(defun escaped-in-json-p (char)
  ;; Section 7: quotation mark, reverse solidus, and the control characters.
  (or (char= char #\") (char= char #\\) (< (char-code char) 32)))

(defun json-escape (char)
  (case (char-code char)
    (8 "\\b") (9 "\\t") (10 "\\n") (12 "\\f") (13 "\\r")
    (34 "\\\"") (92 "\\\\")
    (t (format nil "\\u~4,'0X" (char-code char)))))

(defun encode-json-string (line string)
  (declare #.*plain-policy*)
  (let ((text (coerce string 'text)))
    (declare (type text text))
    (encode-string line "\"" :utf-8)
    (do-plain-runs (text start end escaped-in-json-p)
      (encode-run line text start end)
      (encode-string line (json-escape (schar text end)) :utf-8))
    (encode-string line "\"" :utf-8)))

(defun json-name (name)
  "The octets for NAME, a keyword, in a JSON object, with the colon: :USER-AGENT is user_agent.
Kept with NAME."
  (or (get name 'json-name)
      (let ((text (format nil "\"~A\":" (substitute #\_ #\- (string-downcase name)))))
        (setf (get name 'json-name) (map 'octets #'char-code text)))))

(defun encode-json-object (line plist)
  (encode-string line "{" :utf-8)
  (loop for (name value) on plist by #'cddr
        for separator = "" then ","
        do (encode-string line separator :utf-8)
           (encode-octets line (json-name name))
           (encode-json line value))
  (encode-string line "}" :utf-8))

(defun encode-json (line value)
  "Appends VALUE to LINE as JSON (RFC 8259): NIL as null, an integer as a number, a property list
with keywords as an object, in which :USER-AGENT is called user_agent, and anything else as the
string that PRINC prints."
  (declare #.*plain-policy*)
  (typecase value
    (null (encode-string line "null" :utf-8))
    (string (encode-json-string line value))
    (integer (encode-printed line value))
    (cons (encode-json-object line value))
    (t (encode-json-string line (printed value)))))
