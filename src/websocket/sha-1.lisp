(in-package #:hunchentoot-recycling-taskmaster.websocket)

;;;; SHA-1 (FIPS 180-4, section 6.1), for Sec-WebSocket-Accept only.  There, it shows that a server
;;;; speaks WebSocket; it protects no secret.

(deftype word ()
  "The words of 32 bits with which SHA-1 computes."
  '(unsigned-byte 32))

(defmacro word+ (&rest words)
  "The sum of WORDS modulo 2^32."
  `(ldb (byte 32 0) (+ ,@words)))

(declaim (inline rotated))
(defun rotated (word count)
  "WORD rotated to the left by COUNT bits."
  (declare (type word word) (type (integer 0 31) count))
  (logior (ldb (byte 32 0) (ash word count))
          (ash word (- count 32))))

(defun padded-message (octets)
  "OCTETS, a one bit, zeros, and the number of bits in 64 bits: blocks of 64 octets (section
5.1.1)."
  (let* ((size (length octets))
         (padded (make-array (* 64 (ceiling (+ size 9) 64))
                             :element-type 'octet :initial-element 0)))
    (replace padded octets)
    (setf (aref padded size) #x80)
    (loop for position downfrom (1- (length padded))
          for rest = (* 8 size) then (ash rest -8)
          while (plusp rest)
          do (setf (aref padded position) (logand 255 rest)))
    padded))

(defun fill-schedule (words octets start)
  "Fills WORDS, 80 of them, with the schedule of the block at START in OCTETS (section 6.1.2, step
1)."
  (declare (type (simple-array word (80)) words) (type octets octets) (type index start)
           #.*plain-policy*)
  (dotimes (i 16)
    (setf (aref words i)
          (loop with word of-type word = 0
                for k below 4
                do (setf word (logior (ldb (byte 32 0) (ash word 8))
                                      (aref octets (+ start (* 4 i) k))))
                finally (return word))))
  (loop for i from 16 below 80
        do (setf (aref words i)
                 (rotated (logxor (aref words (- i 3)) (aref words (- i 8))
                                  (aref words (- i 14)) (aref words (- i 16)))
                          1))))

(defun mixed-words (round b c d)
  "The function of ROUND for the words B, C and D, plus its constant (sections 4.1.1, 4.2.1)."
  (declare (type (integer 0 79) round) (type word b c d) #.*plain-policy*)
  (cond ((< round 20) (word+ #x5A827999 (logxor d (logand b (logxor c d)))))
        ((< round 40) (word+ #x6ED9EBA1 (logxor b c d)))
        ((< round 60) (word+ #x8F1BBCDC (logior (logand b c) (logand d (logior b c)))))
        (t (word+ #xCA62C1D6 (logxor b c d)))))

(defun add-block (digest words)
  "Updates DIGEST, five words, with WORDS, the schedule of a block (section 6.1.2, steps 2 to 4)."
  (declare (type (simple-array word (5)) digest) (type (simple-array word (80)) words)
           #.*plain-policy*)
  (let ((a (aref digest 0)) (b (aref digest 1)) (c (aref digest 2))
        (d (aref digest 3)) (e (aref digest 4)))
    (declare (type word a b c d e))
    (dotimes (round 80)
      (setf e (word+ (rotated a 5) (mixed-words round b c d) e (aref words round)))
      (rotatef e d c b a)
      (setf c (rotated c 30)))
    (macrolet ((add (&rest words)
                 `(setf ,@(loop for word in words
                                for i from 0
                                append `((aref digest ,i) (word+ (aref digest ,i) ,word))))))
      (add a b c d e))))

(defun sha-1 (octets)
  "The digest of OCTETS, a vector of 20 octets."
  (let ((digest (make-array 5 :element-type 'word
                              :initial-contents '(#x67452301 #xEFCDAB89 #x98BADCFE #x10325476
                                                  #xC3D2E1F0)))
        (words (make-array 80 :element-type 'word :initial-element 0))
        (padded (padded-message octets))
        (result (make-octets 20)))
    (declare (dynamic-extent words))
    (loop for start from 0 below (length padded) by 64
          do (fill-schedule words padded start)
             (add-block digest words))
    (dotimes (i 20 result)
      (setf (aref result i)
            (ldb (byte 8 (- 24 (* 8 (mod i 4)))) (aref digest (floor i 4)))))))
