(in-package #:hunchentoot-recycling-taskmaster-test)

;;; Test vectors are data; test/http/vectors/README.md describes their format.

(defun read-vectors (name)
  "The vectors in the file called NAME, a list of plists."
  (read-table (format nil "http/vectors/~A.sexp" name)))

(defun caret-octet (text start)
  "The octet for the caret notation in TEXT, whose caret is before START; and the position after
it."
  (let ((char (char text start)))
    (case char
      (#\^ (values 94 (1+ start)))
      (#\? (values 127 (1+ start)))
      (#\x (values (parse-integer text :start (1+ start) :end (+ start 3) :radix 16)
                   (+ start 3)))
      (t (values (- (char-code char) 64) (1+ start))))))

(defun caret-octets (text)
  "A list of the octets in TEXT, which is in caret notation."
  (loop with position = 0
        while (< position (length text))
        collect (let ((char (char text position)))
                  (incf position)
                  (if (char= char #\^)
                      (multiple-value-bind (octet next) (caret-octet text position)
                        (setf position next)
                        octet)
                      (char-code char)))))

(defun input-octets (input)
  "The list of octets of INPUT: a line, (:RAW text), (:TIMES n input) or a list of those."
  (cond ((stringp input)
         (append (caret-octets input) '(13 10)))
        ((eq :raw (first input))
         (caret-octets (second input)))
        ((eq :times (first input))
         (let ((octets (input-octets (third input)))) ; once, since there may be 100,000
           (loop repeat (second input) append octets)))
        (t
         (loop for part in input append (input-octets part)))))

(defun vector-octets (vector)
  "The octets of VECTOR."
  (as-octets (input-octets (getf vector :input))))

(defun vector-limits (vector)
  "The limits under which VECTOR is tried."
  (apply #'http:make-limits (getf vector :limits)))

(defun plain-text (value)
  "VALUE with the caret notation of its strings resolved."
  (typecase value
    (string (octet-text (caret-octets value)))
    (cons (cons (plain-text (car value)) (plain-text (cdr value))))
    (t value)))

(defun event-as-promised-p (promised event)
  "True if EVENT matches PROMISED, which may leave out elements that do not matter."
  (and (eq (first promised) (first event))
       (if (eq :request (first promised))
           (loop for (key value) on (rest promised) by #'cddr
                 always (equal (plain-text value) (getf (rest event) key)))
           (every #'equal (rest promised) (rest event)))))

(defun vector-kept-p (vector events)
  "True if EVENTS are what VECTOR promises."
  (let ((promises (getf vector :gives))
        (events (remove '(:waiting :request 0) events :test #'equal)))
    (and (= (length promises) (length events))
         (every #'event-as-promised-p promises events))))

(defun sample-positions (size)
  "A list of positions at which to split SIZE octets: all positions if they are few."
  (sample-on-slow-lisps
   (loop for position from 1 below size by (if (< size 1500) 1 (floor size 50))
         collect position)))

(defun sample-ends (octets)
  "A list of the ends of many pieces of OCTETS; each piece is one octet if OCTETS are few."
  (append (sample-positions (length octets)) (list (length octets))))

(defun differing-split (octets events limits)
  "A position at which a split of OCTETS gives events other than EVENTS; NIL if there is none."
  (loop for position in (sample-positions (length octets))
        for ends = (list position (length octets))
        unless (and (equal events (events-in-place octets ends limits))
                    (equal events (events-moved octets ends limits)))
          return position))

(defun check-vector (vector)
  "Checks that VECTOR keeps its promises, however its octets are split."
  (let* ((octets (vector-octets vector))
         (limits (vector-limits vector))
         (name (getf vector :name))
         (events (events-whole octets limits)))
    (is (vector-kept-p vector events) "~A: gives ~S" name events)
    ;; The parser reads a head again at each arrival.  Octet by octet, 30,000 octets would take it
    ;; half a billion steps.
    (is (equal events (events-in-place octets (sample-ends octets) limits))
        "~A: differs octet by octet" name)
    (is (null (differing-split octets events limits)) "~A: differs when split" name)))

(defmacro test-vectors (name file documentation)
  "Defines the test NAME: the vectors in FILE keep their promises."
  `(test ,name
     ,documentation
     (dolist (vector (read-vectors ,file))
       (check-vector vector))))
