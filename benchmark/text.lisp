(in-package #:hunchentoot-recycling-taskmaster-benchmark)

;;; Words

(defun split (string &optional (separators '(#\Space #\Tab)))
  "The non-empty parts of STRING between SEPARATORS, a list of characters."
  (remove "" (uiop:split-string string :separator separators) :test #'string=))

(defun first-line (string)
  "STRING up to its first line break."
  (string-right-trim '(#\Return) (subseq string 0 (position #\Newline string))))

(defun fields (line separator)
  "All parts of LINE between SEPARATOR characters, the empty ones too."
  (uiop:split-string line :separator (list separator)))

(defun capitalized (text)
  "TEXT with its first letter, and only that, in upper case."
  (format nil "~a~a" (char-upcase (char text 0)) (subseq text 1)))

;;; Numbers

(defun grouped (number)
  "NUMBER rounded to an integer, its digits in threes: 61,022."
  (format nil "~:d" (round number)))

(defun significant (number)
  "NUMBER for people: three significant digits, or all those before the point."
  (let ((size (abs number)))
    (cond ((>= size 100) (grouped number))
          ((>= size 10) (format nil "~,1f" number))
          (t (format nil "~,2f" number)))))

(defun duration (seconds)
  "SECONDS as people say it: 45 s, or 12 min 5 s."
  (multiple-value-bind (minutes rest) (floor (round seconds) 60)
    (if (zerop minutes)
        (format nil "~d s" rest)
        (format nil "~d min ~d s" minutes rest))))

(defun parse-number (text)
  "The number that TEXT writes in plain decimals, or NIL when it is no number."
  (let ((*read-default-float-format* 'double-float)
        (*read-eval* nil))
    (when (and (plusp (length text))
               (every (lambda (character) (find character "0123456789.-")) text))
      (let ((value (ignore-errors (read-from-string text))))
        (and (realp value) value)))))

(defun median (numbers)
  "The middle one of NUMBERS, or the mean of the two in the middle; NIL of none."
  (let* ((sorted (sort (copy-list numbers) #'<))
         (count (length sorted)))
    (cond ((zerop count) nil)
          ((oddp count) (nth (floor count 2) sorted))
          (t (/ (+ (nth (1- (/ count 2)) sorted) (nth (/ count 2) sorted)) 2)))))

;;; Tables: fields between tabs, a header line first

(defun tsv-field (value)
  "VALUE as the text of one field: no tabs, no line breaks, NIL is empty."
  (typecase value
    (null "")
    (integer (princ-to-string value))
    (real (format nil "~,3f" value))
    (t (substitute-if #\Space (lambda (character) (find character '(#\Tab #\Newline #\Return)))
                      (princ-to-string value)))))

(defun write-tsv-row (values stream)
  "Write VALUES as one line of a table to STREAM."
  (format stream "~{~a~^	~}~%" (mapcar #'tsv-field values)))

(defun write-tsv (path header rows)
  "Make PATH a table of ROWS, lists of values, under HEADER, a list of names."
  (with-open-file (stream path :direction :output :if-exists :supersede)
    (write-tsv-row header stream)
    (dolist (row rows)
      (write-tsv-row row stream))))

(defun append-tsv-row (path header row)
  "Add ROW to the table at PATH; begin the table with HEADER if it is not there."
  (unless (probe-file path)
    (write-tsv path header '()))
  (with-open-file (stream path :direction :output :if-exists :append)
    (write-tsv-row row stream)))

(defun read-tsv (path)
  "The rows of the table at PATH, each a list of strings, without the header; and the header.
No file is an empty table."
  (when (probe-file path)
    (let ((rows (loop for line in (uiop:read-file-lines path)
                      collect (fields line #\Tab))))
      (values (rest rows) (first rows)))))
