(in-package #:hunchentoot-recycling-taskmaster-test)

;;; UTF-8 against a reference that computes, without a table.

(def-suite* websocket-utf-8 :in websocket
  :description "Every character, and the position at which invalid octets fail.")

(defun character-octets (code)
  "The octets of the character of CODE; for an invalid code, the octets by the same rule."
  (as-octets
   (cond ((< code #x80) (list code))
         ((< code #x800) (list (+ #xC0 (ash code -6)) (+ #x80 (mod code 64))))
         ((< code #x10000) (list (+ #xE0 (ash code -12)) (+ #x80 (mod (ash code -6) 64))
                                 (+ #x80 (mod code 64))))
         (t (list (+ #xF0 (ash code -18)) (+ #x80 (mod (ash code -12) 64))
                  (+ #x80 (mod (ash code -6) 64)) (+ #x80 (mod code 64)))))))

(defun octets-text (octets)
  "The string that a decoder makes of OCTETS, in UTF-8."
  (nth-value 2 (websocket:decode-message (websocket:make-message-decoder :role :client)
                                         (make-frame 1 octets :mask nil)
                                         0 (length (make-frame 1 octets :mask nil)))))

(defun text-codes (text)
  "The codes of the characters of TEXT, also where strings are UTF-16."
  (loop with i = 0
        while (< i (length text))
        collect (let ((code (char-code (char text i))))
                  (incf i)
                  (cond ((<= #xD800 code #xDBFF)
                         (prog1 (+ #x10000
                                   (* 1024 (- code #xD800))
                                   (- (char-code (char text i)) #xDC00))
                           (incf i)))
                        (t code)))))

(defun all-codes (step)
  "A list of the codes of every STEPth character, and of those next to invalid codes."
  (remove-if-not (lambda (code) (and (<= 0 code #x10FFFF) (not (<= #xD800 code #xDFFF))))
                 (append (loop for code from 0 to #x10FFFF by step collect code)
                         (loop for border in '(#x80 #x800 #xD800 #xE000 #x10000 #x110000)
                               append (list (1- border) border (1+ border))))))

(test every-character-arrives
  (let ((codes (all-codes (if (search "SBCL" (lisp-implementation-type)) 1 997))))
    (loop while codes
          do (let* ((some (loop repeat 5000 while codes collect (pop codes)))
                    (octets (apply #'concatenate 'base:octets (mapcar #'character-octets some)))
                    (text (octets-text octets)))
               (is (equal some (text-codes text)) "From #x~X on" (first some))
               (is (equalp octets (text-octets text)))))))

(defun some-character-p (least most)
  "True if a character has a code from LEAST to MOST."
  (let ((least (max 0 least)) (most (min most #x10FFFF)))
    (and (<= least most)
         (not (<= #xD800 least most #xDFFF)))))

(defun first-fault (octets)
  "The position of the first octet of OCTETS that no text can have there; NIL if there is none.  The
second value is true if OCTETS end with a whole character."
  (let ((position 0) (size (length octets)))
    (loop
      (when (= position size)
        (return (values nil t)))
      (let* ((lead (aref octets position))
             (more (cond ((< lead #x80) 0) ((<= #xC0 lead #xDF) 1) ((<= #xE0 lead #xEF) 2)
                         ((<= #xF0 lead #xF7) 3)))
             (least (case more (0 0) (1 #x80) (2 #x800) (3 #x10000))))
        (unless more
          (return (values position nil)))
        ;; After each octet, only a range of codes is possible.
        (loop with code = (if (zerop more) lead (mod lead (ash 1 (- 6 more))))
              for left downfrom more
              do (unless (some-character-p (max least (ash code (* 6 left)))
                                           (1- (ash (1+ code) (* 6 left))))
                   (return-from first-fault (values position nil)))
                 (incf position)
              until (zerop left)
              do (when (= position size)
                   (return-from first-fault (values nil nil)))
                 (let ((octet (aref octets position)))
                   (unless (<= #x80 octet #xBF)
                     (return-from first-fault (values position nil)))
                   (setf code (+ (* 64 code) (mod octet 64)))))))))

(defun found-fault (octets)
  "The position at which a decoder fails that gets OCTETS one by one as an unfinished text; NIL if
it does not fail."
  (let ((decoder (websocket:make-message-decoder))
        (frame (make-frame 1 octets :fin nil)))
    (loop for position below (length frame)
          for kind = (websocket:decode-message decoder frame position (1+ position))
          when kind
            do (assert (eq :failure kind))
               (return (- position 6)))))

(defun text-with-odd-octets (dice)
  "Up to twelve octets, often of characters, and often of the first or last character of a range."
  (let ((octets (apply #'octets
                       (loop repeat (1+ (roll dice 3))
                             collect (character-octets (if (zerop (roll dice 2))
                                                           (pick dice #(0 #x7F #x80 #x7FF #x800
                                                                        #xD7FF #xD800 #xDFFF #xE000
                                                                        #xFFFF #x10000 #x10FFFF
                                                                        #x110000 #xFFF #x1000
                                                                        #x3FFFF))
                                                           (* 17 (roll dice 65536))))))))
    (when (zerop (roll dice 2))
      (setf (aref octets (roll dice (length octets)))
            (pick dice #(0 #x7F #x80 #x8F #x90 #x9F #xA0 #xBF #xC0 #xC1 #xC2 #xDF #xE0 #xE1 #xEC
                         #xED #xEE #xEF #xF0 #xF1 #xF3 #xF4 #xF5 #xF7 #xF8 #xFF))))
    octets))

(test what-is-no-text-fails-at-its-first-wrong-octet
  "6.4: the decoder fails at the first invalid octet, and not before."
  (let ((dice (seeded-dice)) (faults 0) (cut 0) (wrong '()))
    (dotimes (i (if (search "SBCL" (lisp-implementation-type)) 30000 1000))
      (let ((octets (text-with-odd-octets dice)))
        (multiple-value-bind (fault whole-p) (first-fault octets)
          (when fault (incf faults))
          (unless (or fault whole-p) (incf cut))
          (unless (and (eql fault (found-fault octets))
                       (equalp (events-of-whole (make-frame 1 octets))
                               (if whole-p
                                   (list (list :text octets))
                                   '((:failure 1007 :text-not-utf-8)))))
            (push octets wrong)))))
    (is (null wrong) "~S" wrong)
    (is (< 100 faults))
    (is (plusp cut))))
