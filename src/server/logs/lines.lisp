(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; Lines for a journal, composed in an OUTPUT: text in UTF-8, with line ends escaped, and JSON.

(defmacro with-line ((line) &body body)
  "Evaluates BODY with LINE bound to an empty OUTPUT that belongs to the worker."
  `(let ((,line (reset-output (if *worker-buffers*
                                  (worker-buffers-line *worker-buffers*)
                                  (make-output)))))
     ,@body))

(defun end-line (line)
  "Appends the line feed to LINE."
  (encode-octets line (load-time-value (coerce '(10) 'octets))))

;;; Escaping
;;;
;;; One function, ENCODE-ESCAPED, writes all text that a client may have sent to either log.  A
;;; character that could end a line, move the cursor of a terminal, or hide its neighbours, becomes
;;; \x and two hexadecimal digits, or \u and four.  So does a quotation mark, a reverse solidus or a
;;; bracket that would have a meaning in the format of the line.  Other characters beyond ASCII stay
;;; as they are: the logs are in UTF-8.

(defun encode-escaped (line string &optional (where :quoted))
  "Appends STRING to LINE, an OUTPUT, in UTF-8, with special characters escaped.  WHERE is :QUOTED,
between quotation marks; :BRACKETED, a field without them, in or beside brackets; :FREE, where a
line has no structure but its end, and may have tabs; or :JSON, in a string of that (RFC 8259,
section 7)."
  (declare #.*plain-policy*)
  (let ((text (coerce string 'text)))
    (declare (type text text))
    (flet ((special-p (char)
             (let ((code (char-code char)))
               (cond ((< code 32) (not (and (= code 9) (eq :free where)))) ; C0
                     ((< code 127)
                      (case char
                        ((#\" #\\) (not (eq :free where)))
                        ((#\( #\) #\[ #\]) (eq :bracketed where))))
                     (t (or (< code 160) ; DEL and C1
                            ;; What separates lines, or changes the direction of text.
                            (<= #x2028 code #x202E)
                            (<= #x2066 code #x2069)))))))
      (declare (inline special-p))
      (loop with size of-type index = (length text)
            for start of-type index = 0 then (1+ end)
            for end of-type index = (loop for index of-type index from start below size
                                          until (special-p (schar text index))
                                          finally (return index))
            do (when (< start end)
                 (encode-string line (subseq text start end) :utf-8))
            while (< end size)
            do (let ((char (schar text end)))
                 (encode-string line
                                (cond ((not (eq :json where))
                                       (format nil (if (< (char-code char) 256)
                                                       "\\x~2,'0X"
                                                       "\\u~4,'0X")
                                               (char-code char)))
                                      ((find char "\"\\") (format nil "\\~C" char))
                                      ((char= #\Newline char) "\\n")
                                      (t (format nil "\\u~4,'0X" (char-code char))))
                                :utf-8))))))

;;; Lines for people and their tools

(defun encode-printed (line value &optional (where :quoted))
  "Appends VALUE to LINE as PRINC prints it, escaped for WHERE as ENCODE-ESCAPED does.  So one line
stays one line, and a field one field, in spite of anything that a client sends."
  (declare #.*plain-policy*)
  (typecase value
    (string (encode-escaped line value where))
    (content-size (encode-decimal line value))
    (t (encode-escaped line (princ-to-string value) where))))

;;; Numbers

(defun decimal-text (number)
  "NUMBER, a real from 0, in decimal digits, rounded to a millionth: as JSON and Prometheus read
it."
  (multiple-value-bind (whole millionths) (floor (round (* 1000000 (rational number))) 1000000)
    (format nil "~D~:[.~A~;~]" whole (zerop millionths)
            (string-right-trim "0" (format nil "~6,'0D" millionths)))))

;;; JSON (RFC 8259)

(defun json-name (name)
  "The octets for NAME, a keyword, in a JSON object, with the colon: :USER-AGENT is user_agent.
They are kept on the property list of NAME."
  (or (get name 'json-name)
      (let ((text (format nil "\"~A\":" (substitute #\_ #\- (string-downcase name)))))
        (setf (get name 'json-name) (map 'octets #'char-code text)))))

(defun encode-json (line value)
  "Appends VALUE to LINE as JSON (RFC 8259): NIL as null; a real from 0 as a number, to a
millionth; a property list with keywords or numbers as an object, in which :USER-AGENT is called
user_agent; a vector that is no string as an array; and anything else as the string that PRINC
prints."
  (declare #.*plain-policy*)
  (typecase value
    (null (encode-string line "null" :utf-8))
    (integer (encode-printed line value))
    (real (encode-string line (decimal-text value) :utf-8))
    (cons
     (loop for (name part) on value by #'cddr
           for separator = "{" then ","
           do (encode-string line separator :utf-8)
              (if (realp name)
                  (encode-string line (format nil "\"~A\":" (decimal-text name)) :utf-8)
                  (encode-octets line (json-name name)))
              (encode-json line part))
     (encode-string line "}" :utf-8))
    ((and vector (not string))
     (encode-string line "[" :utf-8)
     (loop for element across value
           for separator = "" then ","
           do (encode-string line separator :utf-8)
              (encode-json line element))
     (encode-string line "]" :utf-8))
    (t
     (encode-string line "\"" :utf-8)
     (encode-escaped line (princ-to-string value) :json)
     (encode-string line "\"" :utf-8))))

;;; Times

(defun time-text (second zone control)
  "The text by CONTROL, for FORMAT, of the date and time SECOND in ZONE, or NIL for local time."
  (multiple-value-bind (second minute hour day month year)
      (if zone (decode-universal-time second zone) (decode-universal-time second))
    (format nil control year month day hour minute second)))

(defvar *utc-time* '(nil) "For RENDERED-SECOND.")

(defun utc-now ()
  "The current time in milliseconds, a string, a date-time of RFC 3339, section 5.6, in UTC."
  (multiple-value-bind (second milliseconds) (floor (universal-milliseconds) 1000)
    (format nil "~A.~3,'0DZ"
            (rendered-second *utc-time* second
                             (lambda (second)
                               (time-text second 0 "~4,'0D-~2,'0D-~2,'0DT~2,'0D:~2,'0D:~2,'0D")))
            milliseconds)))

(defvar *local-time* '(nil) "For RENDERED-SECOND.")

(defun local-now ()
  "The current second as a string, in local time, as in Hunchentoot's logs."
  (rendered-second *local-time* (get-universal-time)
                   (lambda (second)
                     (time-text second nil "~4,'0D-~2,'0D-~2,'0D ~2,'0D:~2,'0D:~2,'0D"))))
