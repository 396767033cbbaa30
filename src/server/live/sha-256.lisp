(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; SHA-256 (FIPS 180-4, section 6.2), for the Content-Security-Policy of the live page, which
;;;; names its script and its style sheet.  Computed once, when this is loaded.

(defparameter *sha-256-primes*
  (loop for number from 2
        unless (loop for divisor from 2 to (isqrt number)
                       thereis (zerop (mod number divisor)))
          collect number into primes
        when (= 64 (length primes))
          return primes)
  "The first 64 primes, of whose roots the constants are made (sections 4.2.2, 5.3.3).")

(defun first-bits-of-root (prime power)
  "The first 32 bits of the fraction of the root of PRIME: the square root if POWER is 2, the cube
root if it is 3."
  (let* ((scaled (ash prime (* 32 power)))
         (root (loop with low = 0 and high = (ash 1 40)
                     while (< (1+ low) high)
                     do (let ((middle (ash (+ low high) -1)))
                          (if (<= (expt middle power) scaled)
                              (setf low middle)
                              (setf high middle)))
                     finally (return low))))
    (ldb (byte 32 0) root)))

(defparameter *sha-256-constants*
  (mapcar (lambda (prime) (first-bits-of-root prime 3)) *sha-256-primes*)
  "A word for each step (section 4.2.2).")

(defun rotated-right (word count)
  "WORD, of 32 bits, rotated to the right by COUNT bits."
  (logior (ash word (- count))
          (ldb (byte 32 0) (ash word (- 32 count)))))

(defun sum-of-rotations (word &rest counts)
  "The exclusive or of WORD, rotated to the right by each of COUNTS."
  (reduce #'logxor (mapcar (lambda (count) (rotated-right word count)) counts)))

(defun words-of-block (octets start)
  "The 64 words of the schedule of the block at START in OCTETS (section 6.2.2, step 1)."
  (let ((words (make-array 64)))
    (dotimes (i 16)
      (setf (aref words i)
            (loop with word = 0
                  for place from (+ start (* 4 i)) repeat 4
                  do (setf word (logior (ash word 8) (aref octets place)))
                  finally (return word))))
    (loop for i from 16 below 64
          for early = (aref words (- i 15))
          for late = (aref words (- i 2))
          do (setf (aref words i)
                   (ldb (byte 32 0)
                        (+ (logxor (sum-of-rotations late 17 19) (ash late -10))
                           (aref words (- i 7))
                           (logxor (sum-of-rotations early 7 18) (ash early -3))
                           (aref words (- i 16))))))
    words))

(defun hashed-block (state words)
  "The state, a list of eight words, that follows STATE after the block with the schedule WORDS
(section 6.2.2, steps 2 to 4)."
  (destructuring-bind (a b c d e f g h) state
    (loop for word across words
          for constant in *sha-256-constants*
          do (let ((one (+ h (sum-of-rotations e 6 11 25)
                           (logxor (logand e f) (logandc1 e g))
                           constant word))
                   (two (+ (sum-of-rotations a 2 13 22)
                           (logxor (logand a b) (logand a c) (logand b c)))))
               (setf h g g f f e e (ldb (byte 32 0) (+ d one))
                     d c c b b a a (ldb (byte 32 0) (+ one two)))))
    (mapcar (lambda (old new) (ldb (byte 32 0) (+ old new)))
            state (list a b c d e f g h))))

(defun sha-256 (octets)
  "The SHA-256 digest of OCTETS, a vector: 32 octets."
  (let* ((size (length octets))
         (padded (make-array (* 64 (ceiling (+ size 9) 64)) :initial-element 0))
         (state (loop for prime in *sha-256-primes* repeat 8
                      collect (first-bits-of-root prime 2))))
    (replace padded octets)
    (setf (aref padded size) #x80)
    (loop for place downfrom (1- (length padded)) repeat 8
          for rest = (* 8 size) then (ash rest -8)
          do (setf (aref padded place) (logand 255 rest)))
    (loop for start from 0 below (length padded) by 64
          do (setf state (hashed-block state (words-of-block padded start))))
    (coerce (loop for word in state
                  append (loop for shift from 24 downto 0 by 8
                               collect (ldb (byte 8 shift) word)))
            'octets)))
