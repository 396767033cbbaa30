(in-package #:hunchentoot-recycling-taskmaster.http)

;;; hot: the loops that touch every octet of a request.  Nothing here checks its
;;; arguments; PARSE-HEAD, DECODE-BODY and PARSE-MULTIPART have made sure that every
;;; range lies within its vector.

(declaim (ftype (function (octets index index octet) index) run-end run-start)
         (ftype (function (text index index octet) index) text-run-end text-run-start)
         (ftype (function (character text index index) index) text-position)
         (ftype (function (octet octets index index) index) octet-position)
         (ftype (function (octets index octets index index) index) matching-octets)
         (ftype (function (octets index index) text) latin-1-text upper-case-text))

(declaim (inline octet-in-class-p))
(defun octet-in-class-p (octet class)
  "True if OCTET belongs to CLASS, one of the constants of grammar.lisp."
  (logtest (the octet class)
           (aref (the (octets 256) (load-time-value *octet-classes* t)) octet)))

(defun run-end (octets start end class)
  "The first position from START below END where OCTETS leave CLASS, or else END."
  (declare (type octets octets) (type index start end) (type octet class) #.*hot-policy*)
  (macrolet ((classes (index)
               `(aref (the (octets 256) (load-time-value *octet-classes* t))
                      (aref octets ,index))))
    (let ((position start))
      (declare (type index position))
      ;; Four at a time while all four are in, then one by one.
      (loop while (and (<= (+ position 4) end)
                       (logtest class (logand (classes position)
                                              (classes (+ position 1))
                                              (classes (+ position 2))
                                              (classes (+ position 3)))))
            do (incf position 4))
      (loop while (and (< position end)
                       (logtest class (classes position)))
            do (incf position))
      position)))

(defun octet-position (octet octets start end)
  "The first position from START below END where OCTETS have OCTET, or END."
  (declare (type octet octet) (type octets octets) (type index start end) #.*hot-policy*)
  (loop with position of-type index = start
        while (and (< position end)
                   (/= octet (aref octets position)))
        do (incf position)
        finally (return position)))

(defun matching-octets (wanted from octets start end)
  "How many octets of WANTED, from FROM on, are those of OCTETS from START below END."
  (declare (type octets wanted octets) (type index from start end) #.*hot-policy*)
  (let ((most (min (- (length wanted) from) (- end start))))
    (declare (type index most))
    (loop with count of-type index = 0
          while (and (< count most)
                     (= (aref wanted (the index (+ from count)))
                        (aref octets (the index (+ start count)))))
          do (incf count)
          finally (return count))))

(defun run-start (octets start end class)
  "The first position from START to END from where on OCTETS up to END are of CLASS."
  (declare (type octets octets) (type index start end) (type octet class) #.*hot-policy*)
  (loop with position of-type index = end
        while (and (> position start)
                   (octet-in-class-p (aref octets (1- position)) class))
        do (decf position)
        finally (return position)))

(defun latin-1-text (octets start end)
  "A fresh string of the characters that OCTETS from START below END are in Latin-1."
  (declare (type octets octets) (type index start end) #.*hot-policy*)
  (let ((text (make-string (the index (- end start)))))
    (dotimes (i (length text) text)
      (setf (schar text i) (code-char (aref octets (the index (+ start i))))))))

(defun upper-case-text (octets start end)
  "As LATIN-1-TEXT, with the ASCII letters in upper case."
  (declare (type octets octets) (type index start end) #.*hot-policy*)
  (let ((text (make-string (the index (- end start)))))
    (dotimes (i (length text) text)
      (let ((octet (aref octets (the index (+ start i)))))
        (setf (schar text i)
              (code-char (if (<= 97 octet 122) (- octet 32) octet)))))))

(defun find-word (table octets start end)
  "The word of TABLE that OCTETS from START below END, not empty, spell; or NIL."
  (declare (type word-table table) (type octets octets) (type index start end)
           #.*hot-policy*)
  (let ((fold (word-table-fold table))
        (size (- end start)))
    (declare (type index size))
    (dolist (word (svref (word-table-buckets table) (word-hash octets start end fold)))
      (let ((name (word-octets word)))
        (when (and (= size (length name))
                   (loop for i of-type index below size
                         always (= (aref name i)
                                   (logior fold (aref octets (+ start i))))))
          (return word))))))

(defun text= (text other)
  "True if TEXT and OTHER have the same characters."
  (declare (type text text other) #.*hot-policy*)
  (and (= (length text) (length other))
       (loop for i of-type index below (length text)
             always (char= (schar text i) (schar other i)))))

(defun text-run-start (text start end class)
  "The first position from START to END from where on TEXT up to END is of CLASS."
  (declare (type text text) (type index start end) (type octet class) #.*hot-policy*)
  (loop with position of-type index = end
        while (and (> position start)
                   (octet-in-class-p (logand 255 (char-code (schar text (1- position))))
                                     class))
        do (decf position)
        finally (return position)))

(defun text-run-end (text start end class)
  "The first position from START below END where TEXT, all Latin-1, leaves CLASS, or END."
  (declare (type text text) (type index start end) (type octet class) #.*hot-policy*)
  (loop with position of-type index = start
        while (and (< position end)
                   (octet-in-class-p (logand 255 (char-code (schar text position))) class))
        do (incf position)
        finally (return position)))

(defun text-position (char text start end)
  "The first position from START below END where TEXT has CHAR, or END."
  (declare (type text text) (type index start end) (type character char) #.*hot-policy*)
  (loop with position of-type index = start
        while (and (< position end)
                   (char/= char (schar text position)))
        do (incf position)
        finally (return position)))

(defun text-spells-p (text start end word)
  "True if TEXT from START to END is WORD in any case.  WORD is of lower-case letters,
digits and hyphens, TEXT without control characters, so setting bit 5 is exact."
  (declare (type text text word) (type index start end) #.*hot-policy*)
  (and (= (length word) (- end start))
       (loop for i of-type index below (length word)
             always (= (char-code (schar word i))
                       (logior 32 (char-code (schar text (+ start i))))))))
