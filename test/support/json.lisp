(in-package #:hunchentoot-recycling-taskmaster-test)

;;; A strict reader of JSON (RFC 8259), for what the server writes.

(define-condition broken-json (error)
  ((text :initarg :text) (position :initarg :position))
  (:report (lambda (condition stream)
             (with-slots (text position) condition
               (format stream "Not JSON from character ~D on: ~A" position text)))))

(defparameter *json-escape* "\\\\([\"\\\\/bfnrt]|u[0-9a-fA-F]{4})"
  "What stands for a character in a string; a surrogate pair is not known here.")

(defparameter *json-string*
  (cl-ppcre:create-scanner (format nil "\\A\"([^\"\\\\\\x00-\\x1f]|~A)*\"" *json-escape*)))

(defparameter *json-number* (cl-ppcre:create-scanner "\\A-?\\d+(\\.\\d+)?"))

(defun unescape-json (target start end match-start match-end starts ends)
  "The character, as a string, of the match of *JSON-ESCAPE* in TARGET."
  (declare (ignore start end match-end starts ends))
  (let ((char (char target (1+ match-start))))
    (string (case char
              (#\b (code-char 8)) (#\t (code-char 9)) (#\n (code-char 10))
              (#\f (code-char 12)) (#\r (code-char 13))
              (#\u (code-char (parse-integer target :start (+ match-start 2)
                                                    :end (+ match-start 6) :radix 16)))
              (t char)))))

(defun parse-json (text)
  "The value of the string TEXT: an alist for an object, a vector for an array, NIL for null, a
ratio for a number with a fraction.  Signals BROKEN-JSON; exponents and white space are none of what
the server writes."
  (let ((position 0))
    (labels ((next-p (char)
               (and (< position (length text)) (char= char (char text position))))
             (take (end)
               (if (and end (<= end (length text)))
                   (subseq text (shiftf position end) end)
                   (error 'broken-json :text text :position position)))
             (take-string (string)
               (take (let ((end (+ position (length string))))
                       (and (eql (or (mismatch string text :start2 position) (length string))
                                 (length string))
                            end))))
             (elements (open close read)
               (take-string open)
               (prog1 (unless (next-p close)
                        (loop collect (funcall read)
                              while (next-p #\,) do (take-string ",")))
                 (take-string (string close))))
             (read-string ()
               (let ((token (take (nth-value 1 (cl-ppcre:scan *json-string* text
                                                              :start position)))))
                 (cl-ppcre:regex-replace-all *json-escape* (subseq token 1 (1- (length token)))
                                             #'unescape-json)))
             (read-number ()
               (let* ((token (take (nth-value 1 (cl-ppcre:scan *json-number* text
                                                               :start position))))
                      (point (position #\. token)))
                 (/ (parse-integer (remove #\. token))
                    (expt 10 (if point (- (length token) point 1) 0)))))
             (read-value ()
               (cond ((next-p #\{) (elements "{" #\} (lambda ()
                                                       (cons (prog1 (read-string)
                                                               (take-string ":"))
                                                             (read-value)))))
                     ((next-p #\[) (coerce (elements "[" #\] #'read-value) 'vector))
                     ((next-p #\") (read-string))
                     ((next-p #\n) (take-string "null") nil)
                     (t (read-number)))))
      (prog1 (read-value)
        (unless (= position (length text))
          (take nil))))))

(defun fact (name object)
  "The value of the member NAME of OBJECT, an alist."
  (cdr (assoc name object :test #'string=)))
