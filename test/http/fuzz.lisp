(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* http-fuzz :in http
  :description "Any octets, however they are split, give heads, bodies or one kind of error.")

(defparameter *fuzz-count*
  (if (search "SBCL" (lisp-implementation-type)) 100000 2000)
  "The number of inputs that the test tries.  FUZZ accepts any other number.")

;;; Pseudo-random numbers that are the same in every Lisp

(defstruct (dice (:constructor make-dice (state)))
  "A generator of pseudo-random numbers."
  (state 0 :type (unsigned-byte 32)))

(defun roll (dice sides)
  "A number from 0 below SIDES, at most 65536."
  (declare (type dice dice) (type (integer 1 65536) sides) (optimize speed))
  (let ((state (logand #xFFFFFFFF (+ 1013904223 (* 1664525 (dice-state dice))))))
    (setf (dice-state dice) state)
    ;; The high bits are more random than the low ones.
    (ash (* sides (ash state -16)) -16)))

(defun pick (dice choices)
  "One of CHOICES, a simple vector."
  (svref choices (roll dice (length choices))))

;;; The parts of requests.  Each part has usual values, and odd ones that are chosen one time in
;;; thirty-two.

(defun choices (&rest texts)
  "A vector of lists of octets, one for each of TEXTS, in caret notation."
  (map 'simple-vector #'caret-octets texts))

(defparameter *fuzz-parts*
  (list :method (cons (choices "GET" "POST" "PUT" "HEAD" "PATCH")
                      (choices "OPTIONS" "CONNECT" "FROB" "get" "" "G@T"
                               "GETGETGETGETGETGETGETGETGETGETGET"))
        :beginning (cons (choices "")
                         (choices "^M^J" "^M^J^M^J"
                                  "^M^J^M^J^M^J^M^J^M^J^M^J^M^J^M^J^M^J^M^J^M^J^M^J^M^J^M^J"))
        :space (cons (choices " ")
                     (choices "  " "^I" ""))
        :target (cons (choices "/" "/a?b=c" "/%41" "http://h.example/x")
                      (choices "*" "https://h:81" "http://" "h:80" "[::1]:80" "a" "/^xFF" ""))
        :version (cons (choices "HTTP/1.1" "HTTP/1.1" "HTTP/1.1" "HTTP/1.0")
                       (choices "HTTP/1.2" "HTTP/2.0" "HTTP/1.10" "http/1.1" ""))
        :line-end (cons (choices "^M^J")
                        (choices "^J" "^M" "^M^M^J" "^J^M" ""))
        :name (cons (choices "Connection" "Upgrade" "Expect" "Cookie" "Accept" "X-A" "x-a")
                    (choices "Host" "Content-Length" "Transfer-Encoding" " X" "X " "" "X^@"))
        :separator (cons (choices ": " ":")
                         (choices ":^I " " : " ""))
        :value (cons (choices "a" "close" "keep-alive" "upgrade, close" "100-continue" "a=b; c"
                              "websocket" "" " a ^I" "^xFF")
                     (choices "200-ok" "3" "chunked" "^@" "a^Gb" "a@b"))
        :host (cons (choices "h" "h.example:80" "[::1]" "a%41" "")
                    (choices "a@b" "a b" "[::1" "h:x" "a%4" "h:65536"))
        :length (cons (choices "3" "03")
                      (choices "0" "12" "+3" "3,3" "" "99999999999999999999"))
        :coding (cons (choices "chunked" "Chunked")
                      (choices "gzip, chunked" "chunked, gzip" ", chunked" "chunked;a" ""))
        :chunk (cons (choices "1^M^Ja" "2;x=y^M^J^M^J" "3 ;z^M^Jabc" "0A^M^J0123456789")
                     (choices "3^M^Ja" "1^M^Jabc" "x^M^J" "1 ^M^Ja" "1;^@^M^Ja" "1^Ja" "-1^M^J"
                              "1000000000000000000^M^J"))
        :last-chunk (cons (choices "0" "000" "0;x")
                          (choices "" "1")))
  "Property list of (USUAL . ODD), vectors of lists of octets.")

(defun sentence (dice &rest parts)
  "A list of the octets of one choice for each of PARTS."
  (loop for part in parts
        for (usual . odd) = (getf *fuzz-parts* part)
        append (pick dice (if (zerop (roll dice 32)) odd usual))))

(defun field-line (dice name value)
  "A header line.  NAME is a part or a string, VALUE a part."
  (append (if (stringp name) (caret-octets name) (sentence dice name))
          (sentence dice :separator value :line-end)))

(defun some-fields (dice)
  "Some header lines, most of them harmless."
  (loop repeat (roll dice 4) append (field-line dice :name :value)))

(defun chunks (dice)
  "Some chunks, the last chunk and some trailer fields."
  (append (loop repeat (roll dice 4) append (sentence dice :chunk :line-end))
          (sentence dice :last-chunk :line-end)
          (if (zerop (roll dice 4)) (some-fields dice) '())
          (sentence dice :line-end)))

(defun framing-and-body (dice)
  "Header lines for the framing of a body, and as second value such a body."
  (ecase (roll dice 3)
    (0 (values '() '()))
    (1 (values (field-line dice "Content-Length" :length) (caret-octets "abc")))
    (2 (values (field-line dice "Transfer-Encoding" :coding) (chunks dice)))))

(defun assembled-request (dice)
  "A request that follows the grammar, or often nearly does."
  (multiple-value-bind (framing body) (framing-and-body dice)
    (append (sentence dice :beginning :method :space :target :space :version :line-end)
            (if (plusp (roll dice 16)) (field-line dice "Host" :host) '())
            (some-fields dice)
            framing
            (if (zerop (roll dice 16)) (framing-and-body dice) '())
            (sentence dice :line-end)
            body)))

(defparameter *fuzz-corpus*
  (coerce (loop for file in *vector-files*
                append (loop for vector in (read-vectors file)
                             for octets = (vector-octets vector)
                             when (< (length octets) 300)
                               collect octets))
          'simple-vector)
  "Requests worth mutating: the short vectors.")

(defun random-octet (dice)
  "An octet, often one with a meaning in the grammar."
  (if (zerop (roll dice 2))
      (roll dice 256)
      (svref #(0 9 10 13 32 44 48 49 58 59 65 97 127 128 255) (roll dice 15))))

(defun mutated (dice octets)
  "OCTETS with one octet changed, inserted or removed, a part repeated, or the end cut off."
  (let* ((size (length octets))
         (at (roll dice (1+ size)))
         (to (min size (+ at (roll dice 9)))))
    (ecase (roll dice 5)
      (0 (concatenate 'base:octets (subseq octets 0 at) (list (random-octet dice))
                      (subseq octets (min size (1+ at)))))
      (1 (concatenate 'base:octets (subseq octets 0 at) (list (random-octet dice))
                      (subseq octets at)))
      (2 (concatenate 'base:octets (subseq octets 0 at) (subseq octets to)))
      (3 (concatenate 'base:octets (subseq octets 0 to) (subseq octets at)))
      (4 (subseq octets 0 at)))))

(defun fuzz-input (dice)
  "The octets to try next."
  (let ((kind (roll dice 16)))
    (cond ((< kind 6)
           (let ((octets (pick dice *fuzz-corpus*)))
             (loop repeat (1+ (roll dice 3))
                   do (setf octets (mutated dice octets)))
             octets))
          ((< kind 11)
           (as-octets (append (assembled-request dice) (assembled-request dice))))
          ((< kind 15)
           (mutated dice (as-octets (assembled-request dice))))
          (t
           (as-octets (loop repeat (roll dice 60) collect (random-octet dice)))))))

(defparameter *fuzz-limits*
  (let ((few (http:make-limits :request-line-octets 24 :header-octets 90 :header-count 4
                               :body-octets 4))
        (usual (http:make-limits)))
    (vector usual usual usual usual usual few))
  "The limits under which inputs are tried.")

;;; The promise

(defun random-ends (dice size)
  "The ends of arrivals, ascending, that split SIZE octets at random."
  (loop for end = (roll dice 20) then (+ end 1 (roll dice 40))
        while (< end size)
        collect end into ends
        finally (return (append ends (list size)))))

(defun same-however-it-arrives-p (octets limits ends)
  "True if OCTETS give the same events whole, octet by octet, and split at each of ENDS."
  (let ((events (events-whole octets limits)))
    (and (equal events (events-by-octet octets limits))
         (equal events (events-in-place octets ends limits))
         (equal events (events-moved octets ends limits)))))

(defun fuzz-failure (dice)
  "Tries the next input of DICE.  NIL if it kept the promise, else a description of it."
  (let* ((state (dice-state dice))
         (octets (fuzz-input dice))
         (limits (pick dice *fuzz-limits*))
         (ends (random-ends dice (length octets))))
    (handler-case (if (same-however-it-arrives-p octets limits ends)
                      nil
                      (list :differs state octets ends))
      (error (condition)
        (list (princ-to-string condition) state octets ends)))))

(defun fuzz (count &optional (seed (fresh-seed)))
  "Tries COUNT inputs made from SEED, a 32-bit number, which it prints.  Returns descriptions of the
first ten inputs that broke the promise."
  (format t "~&; fuzzing ~:D inputs from seed ~D~%" count seed)
  (finish-output)
  (loop with dice = (make-dice seed)
        repeat count
        for failure = (fuzz-failure dice)
        when failure
          collect failure into failures
        until (= 10 (length failures))
        finally (return failures)))

(test any-octets-mean-the-same-however-they-arrive
  (is (null (fuzz *fuzz-count*))))
