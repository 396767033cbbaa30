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
  "UNIVERSAL-TIME, in seconds, as the date format of HTTP, a fresh string of 29
characters: Sun, 06 Nov 1994 08:49:37 GMT (RFC 9110, section 5.6.7)."
  (multiple-value-bind (second minute hour day month year weekday)
      (decode-universal-time universal-time 0)
    (concatenate 'string
                 (nth weekday *days*) ", " (decimal day 2) " " (nth (1- month) *months*)
                 " " (decimal year 4) " " (decimal hour 2) ":" (decimal minute 2) ":"
                 (decimal second 2) " GMT")))

(defvar *date-line* (cons nil nil)
  "(SECOND . OCTETS): the Date line of a second.  Invariant: neither cons nor octets ever
change; a new second is a new cons, published by this variable's one assignment.  So
whoever reads the variable once has a pair that belongs together.")

(defun date-line (second)
  "The octets of the line Date for the universal time SECOND."
  (let ((current *date-line*))
    (if (eql second (car current))
        (cdr current)
        (let ((line (concatenate 'octets (ascii-octets "Date: ")
                                 (ascii-octets (imf-fixdate second)) '(13 10))))
          (setf *date-line* (cons second line))
          line))))

(defun encode-date (output second)
  "Appends the field Date for SECOND, a universal time, to OUTPUT.  A second is rendered
once, however many threads ask (RFC 9110, section 6.6.1)."
  (declare (type output output) #.*plain-policy*)
  (encode-octets output (date-line second)))
