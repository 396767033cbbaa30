(in-package #:hunchentoot-recycling-taskmaster.websocket)

;;;; SHA-1 (FIPS 180-4, section 6.1), for Sec-WebSocket-Accept only.  There, it shows that a server
;;;; speaks WebSocket; it protects no secret.

(defun rotated (word count)
  "WORD, of 32 bits, rotated to the left by COUNT bits."
  (logior (ldb (byte 32 0) (ash word count)) (ash word (- count 32))))

(defun schedule (octets start)
  "The 80 words of the block at START in OCTETS (section 6.1.2, step 1)."
  (let ((words (make-array 80 :initial-element 0)))
    (dotimes (i 64)
      (setf (aref words (floor i 4))
            (logior (ash (aref words (floor i 4)) 8) (aref octets (+ start i)))))
    (loop for i from 16 below 80
          do (setf (aref words i)
                   (rotated (logxor (aref words (- i 3)) (aref words (- i 8))
                                    (aref words (- i 14)) (aref words (- i 16)))
                            1)))
    words))

(defun digest-after (digest words)
  "The five words of DIGEST, a list, after a block with the schedule WORDS (section 6.1.2, steps 2
to 4)."
  (destructuring-bind (a b c d e) digest
    (loop for word across words
          for round from 0
          ;; The functions and constants of sections 4.1.1 and 4.2.1.
          for mixed = (cond ((< round 20) (+ #x5A827999 (logxor d (logand b (logxor c d)))))
                            ((< round 40) (+ #x6ED9EBA1 (logxor b c d)))
                            ((< round 60)
                             (+ #x8F1BBCDC (logior (logand b c) (logand d (logior b c)))))
                            (t (+ #xCA62C1D6 (logxor b c d))))
          do (psetf a (ldb (byte 32 0) (+ (rotated a 5) mixed e word))
                    b a
                    c (rotated b 30)
                    d c
                    e d))
    (loop for new in (list a b c d e)
          for old in digest
          collect (ldb (byte 32 0) (+ old new)))))

(defun sha-1 (octets)
  "The digest of OCTETS, a vector of 20 octets."
  (let* ((size (length octets))
         ;; OCTETS, a one bit, zeros, and the number of bits in 64 bits (section 5.1.1).
         (padded (make-array (* 64 (ceiling (+ size 9) 64)) :initial-element 0))
         (digest '(#x67452301 #xEFCDAB89 #x98BADCFE #x10325476 #xC3D2E1F0))
         (result (make-octets 20)))
    (replace padded octets)
    (setf (aref padded size) #x80)
    (dotimes (k 8)
      (setf (aref padded (- (length padded) k 1)) (ldb (byte 8 (* 8 k)) (* 8 size))))
    (loop for start from 0 below (length padded) by 64
          do (setf digest (digest-after digest (schedule padded start))))
    (dotimes (i 20 result)
      (setf (aref result i) (ldb (byte 8 (- 24 (* 8 (mod i 4)))) (nth (floor i 4) digest))))))
