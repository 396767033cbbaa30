(in-package #:hunchentoot-recycling-taskmaster-test)

;;; A strict reader of JSON (RFC 8259), for what the server writes.

(define-condition broken-json (error)
  ((text :initarg :text) (position :initarg :position))
  (:report (lambda (condition stream)
             (with-slots (text position) condition
               (format stream "Not JSON from character ~D on: ~A" position text)))))

(defvar *json*)
(defvar *json-position*)

(defun json-peek ()
  (if (< *json-position* (length *json*)) (char *json* *json-position*) #\Nul))

(defun json-fail ()
  (error 'broken-json :text *json* :position *json-position*))

(defun json-expect (text)
  "Reads TEXT."
  (let ((end (+ *json-position* (length text))))
    (unless (and (<= end (length *json*))
                 (string= text *json* :start2 *json-position* :end2 end))
      (json-fail))
    (setf *json-position* end)))

(defun read-json-escape ()
  "Reads what follows a reverse solidus; a surrogate pair is not known here."
  (let ((char (json-peek)))
    (incf *json-position*)
    (case char
      ((#\" #\\ #\/) char)
      (#\b (code-char 8)) (#\t (code-char 9)) (#\n (code-char 10))
      (#\f (code-char 12)) (#\r (code-char 13))
      (#\u (prog1 (code-char (or (ignore-errors
                                  (parse-integer *json* :start *json-position*
                                                        :end (+ 4 *json-position*) :radix 16))
                                 (json-fail)))
             (incf *json-position* 4)))
      (t (json-fail)))))

(defun read-json-string ()
  (json-expect "\"")
  (with-output-to-string (out)
    (loop for char = (json-peek)
          until (char= char #\")
          do (when (< (char-code char) 32) (json-fail))
             (incf *json-position*)
             (write-char (if (char= char #\\) (read-json-escape) char) out))
    (incf *json-position*)))

(defun read-json-integer ()
  (multiple-value-bind (value end)
      (parse-integer *json* :start *json-position* :junk-allowed t)
    (unless value (json-fail))
    (setf *json-position* end)
    value))

(defun read-json-number ()
  "An integer, or a ratio for a number with a fraction."
  (let* ((sign (if (char= #\- (json-peek)) -1 1))
         (whole (read-json-integer)))
    (cond ((char= #\. (json-peek))
           (json-expect ".")
           (let ((start *json-position*))
             (unless (digit-char-p (json-peek)) (json-fail))
             (+ whole (* sign (read-json-integer) (expt 10 (- start *json-position*))))))
          (t whole))))

(defun read-json-array ()
  "A vector of values."
  (json-expect "[")
  (coerce (if (char= #\] (json-peek))
              '()
              (loop collect (read-json-value)
                    while (char= (json-peek) #\,)
                    do (json-expect ",")))
          'vector))

(defun read-json-object ()
  "An alist of names and values."
  (json-expect "{")
  (loop collect (let ((name (read-json-string)))
                  (json-expect ":")
                  (cons name (read-json-value)))
        while (char= (json-peek) #\,)
        do (json-expect ",")
        finally (json-expect "}")))

(defun read-json-value ()
  (case (json-peek)
    (#\{ (read-json-object))
    (#\[ (prog1 (read-json-array) (json-expect "]")))
    (#\" (read-json-string))
    (#\n (json-expect "null") nil)
    (t (read-json-number))))

(defun parse-json (text)
  "The value of the string TEXT: an alist for an object, a vector for an array, NIL for null.
Signals BROKEN-JSON; exponents and white space are none of what the server writes."
  (let ((*json* text) (*json-position* 0))
    (prog1 (read-json-value)
      (unless (= *json-position* (length text)) (json-fail)))))
