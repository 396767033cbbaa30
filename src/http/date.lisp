(in-package #:hunchentoot-recycling-taskmaster.http)

;;; The Date field.  All threads share one rendering of the current second.

(defparameter *days* '("Mon" "Tue" "Wed" "Thu" "Fri" "Sat" "Sun")
  "RFC 9110, section 5.6.7: day-name.")

(defparameter *months*
  '("Jan" "Feb" "Mar" "Apr" "May" "Jun" "Jul" "Aug" "Sep" "Oct" "Nov" "Dec")
  "RFC 9110, section 5.6.7: month.")

(defun decimal (number width)
  "The last WIDTH decimal digits of NUMBER, a string."
  (let ((digits (make-string width)))
    (loop for i downfrom (1- width) to 0
          do (multiple-value-bind (rest digit) (floor number 10)
               (setf (char digits i) (digit-char digit)
                     number rest)))
    digits))

(defun imf-fixdate (universal-time)
  "UNIVERSAL-TIME, in seconds, in the date format of HTTP: a fresh string of 29 characters such as
\"Sun, 06 Nov 1994 08:49:37 GMT\" (RFC 9110, section 5.6.7)."
  (multiple-value-bind (second minute hour day month year weekday)
      (decode-universal-time universal-time 0)
    (concatenate 'string
                 (nth weekday *days*) ", " (decimal day 2) " " (nth (1- month) *months*)
                 " " (decimal year 4) " " (decimal hour 2) ":" (decimal minute 2) ":"
                 (decimal second 2) " GMT")))

(defmacro rendered-second (variable second render)
  "The result of RENDER, a form for a function, for the universal time SECOND.  All threads share
one result per second.  VARIABLE, a global variable with the initial value (NIL), caches it."
  ;; Invariant: the pair (SECOND . RENDERED) and its contents never change.  Each second gets a
  ;; new pair, which one assignment publishes.  So a thread that reads VARIABLE once gets a
  ;; consistent pair.
  (let ((pair (gensym "PAIR")) (now (gensym "SECOND")))
    `(let ((,pair ,variable) (,now ,second))
       (unless (eql ,now (car ,pair))
         (setf ,pair (cons ,now (funcall ,render ,now)))
         (set-published ,variable ,pair))
       (cdr ,pair))))

(defvar *date-line* '(nil)
  "The pair of a second and the octets of its Date line; see RENDERED-SECOND.")

(defun render-date-line (second)
  (concatenate 'octets (ascii-octets "Date: ") (ascii-octets (imf-fixdate second)) '(13 10)))

(defun date-line (second)
  "The octets of the Date line for the universal time SECOND."
  (rendered-second *date-line* second 'render-date-line))

(defun encode-date (output second)
  "Appends the Date field for SECOND, a universal time, to OUTPUT.  All threads share one rendering
per second (RFC 9110, section 6.6.1)."
  (declare (type output output) #.*plain-policy*)
  (encode-octets output (date-line second)))
