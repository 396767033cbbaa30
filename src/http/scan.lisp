(in-package #:hunchentoot-recycling-taskmaster.http)

;;; hot: the loops that touch every octet of a request.  No function here checks its arguments.
;;; PARSE-HEAD, DECODE-BODY and PARSE-MULTIPART ensure that every range lies within its vector.

(declaim (ftype (function (octets index index octet) index) run-end graphic-end)
         (ftype (function (octets index index) index) visible-end value-end)
         (ftype (function (text index index octet) index) text-run-end text-run-start)
         (ftype (function (character text index index) index) text-position)
         (ftype (function (octet octets index index) index) octet-position octet-count)
         (ftype (function (octets index octets index index) index) matching-octets)
         (ftype (function (octets index index) text) latin-1-text value-text upper-case-text)
         (ftype (function (text index index) text) text-part))

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
      ;; Four octets at a time while all four are in CLASS, then one by one.
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

;;; Several octets at a time

(declaim (inline first-flag))
(defun first-flag (flags)
  "The index of the first octet in the group FLAGS that is not zero.  One must be."
  (declare (type octet-group flags) #.*hot-policy*)
  (ash (1- (integer-length (logand flags (group- 0 flags)))) -3))

(declaim (inline graphic-end))
(defun graphic-end (octets start end least)
  "The first position from START where OCTETS have an octet outside LEAST, at most 127, to 126, or
where less than a group is left before END."
  (declare (type octets octets) (type index start end) (type octet least) #.*hot-policy*)
  (let ((position start)
        (ones (in-each 1))
        (leasts (in-each least)))
    (declare (type index position) (type octet-group ones leasts))
    (loop while (<= (+ position +group-size+) end)
          do (let* ((group (octet-group octets position))
                    (flags (logand (in-each 128)
                                   (logior group              ; above 127
                                           (group+ group ones) ; 127
                                           (group- group leasts)))))
               (declare (type octet-group group flags))
               (unless (zerop flags)
                 (return-from graphic-end (the index (+ position (first-flag flags)))))
               (incf position +group-size+)))
    position))

(defmacro run-end-by-groups (octets start end class least)
  "Like RUN-END, for a CLASS that has all octets from LEAST to 126."
  `(let ((position (graphic-end ,octets ,start ,end ,least)))
     (if (and (< position ,end)
              (octet-in-class-p (aref ,octets position) ,class))
         (run-end ,octets position ,end ,class)
         position)))

(defun visible-end (octets start end)
  "The first position from START below END where OCTETS leave +VISIBLE+, or else END."
  (declare (type octets octets) (type index start end) #.*hot-policy*)
  (run-end-by-groups octets start end +visible+ 33))

(defun value-end (octets start end)
  "The first position from START below END where OCTETS leave +VALUE+, or else END."
  (declare (type octets octets) (type index start end) #.*hot-policy*)
  (run-end-by-groups octets start end +value+ 32))

(defun octet-position (octet octets start end)
  "The first position from START below END where OCTETS have OCTET, or END."
  (declare (type octet octet) (type octets octets) (type index start end) #.*hot-policy*)
  (loop with position of-type index = start
        while (and (< position end)
                   (/= octet (aref octets position)))
        do (incf position)
        finally (return position)))

(defun octet-count (octet octets start end)
  "The number of times that OCTET occurs in OCTETS from START below END."
  (declare (type octet octet) (type octets octets) (type index start end) #.*hot-policy*)
  (loop with count of-type index = 0
        for position of-type index from start below end
        when (= octet (aref octets position))
          do (incf count)
        finally (return count)))

(defun matching-octets (wanted from octets start end)
  "The number of octets that match between WANTED, from FROM on, and OCTETS from START below END,
before the first difference."
  (declare (type octets wanted octets) (type index from start end) #.*hot-policy*)
  (let ((most (min (- (length wanted) from) (- end start))))
    (declare (type index most))
    (loop with count of-type index = 0
          while (and (< count most)
                     (= (aref wanted (the index (+ from count)))
                        (aref octets (the index (+ start count)))))
          do (incf count)
          finally (return count))))

(defmacro text-of ((position start end) char)
  "A fresh string of the value of CHAR, a form, for each POSITION from START below END.  The loop is
unrolled four times."
  (let ((fresh (gensym "TEXT")) (from (gensym "FROM")) (i (gensym "I")))
    `(let* ((,fresh (make-string (the index (- ,end ,start))))
            (,from ,start)
            (,i 0))
       (declare (type index ,from ,i))
       (flet ((put (,i ,position)
                (declare (type index ,i ,position))
                (setf (schar ,fresh ,i) ,char)))
         (declare (inline put))
         (loop while (<= (+ ,from 4) ,end)
               do (put ,i ,from)
                  (put (+ ,i 1) (+ ,from 1))
                  (put (+ ,i 2) (+ ,from 2))
                  (put (+ ,i 3) (+ ,from 3))
                  (incf ,i 4)
                  (incf ,from 4))
         (loop while (< ,from ,end)
               do (put ,i ,from)
                  (incf ,i)
                  (incf ,from)))
       ,fresh)))

(defun latin-1-text (octets start end)
  "A fresh string: OCTETS, a vector of octets, from START below END, decoded as Latin-1."
  (declare (type octets octets) (type index start end) #.*hot-policy*)
  (text-of (position start end)
    (code-char (aref octets position))))

(defun value-text (octets start end)
  "Like LATIN-1-TEXT, but without white space at the start and the end."
  (declare (type octets octets) (type index start end) #.*hot-policy*)
  (loop while (and (< start end) (octet-in-class-p (aref octets start) +whitespace+))
        do (incf start))
  (loop while (and (< start end) (octet-in-class-p (aref octets (1- end)) +whitespace+))
        do (decf end))
  (latin-1-text octets start end))

(defun text-part (text start end)
  "A fresh string: TEXT from START below END."
  (declare (type text text) (type index start end) #.*hot-policy*)
  (text-of (position start end)
    (schar text position)))

(defun upper-case-text (octets start end)
  "Like LATIN-1-TEXT, with the ASCII letters in upper case."
  (declare (type octets octets) (type index start end) #.*hot-policy*)
  (text-of (position start end)
    (let ((octet (aref octets position)))
      (code-char (if (<= 97 octet 122) (- octet 32) octet)))))

(declaim (inline last-group))
(defun last-group (octets start end)
  "The group of OCTETS from START below END, at least one and at most a whole group.  Zeros fill the
other places."
  (declare (type octets octets) (type index start end) #.*hot-policy*)
  (if (<= (+ start +group-size+) (length octets))
      (let ((missing (- +group-size+ (- end start))))
        (declare (type (integer 0 (#.+group-size+)) missing))
        (logand (octet-group octets start)
                (ash (in-each 255) (* -8 missing))))
      (loop with group of-type octet-group = 0
            for position of-type index from start below end
            for shift of-type (integer 0 64) from 0 by 8
            do (setf group (logior group (ldb (byte (* 8 +group-size+) 0)
                                              (ash (aref octets position) shift))))
            finally (return group))))

(defun find-word (table octets start end)
  "The keyword and the role in TABLE of the word, not empty, in OCTETS from START below END; or NIL
if TABLE does not have the word."
  (declare (type word-table table) (type octets octets) (type index start end)
           #.*hot-policy*)
  (let ((folds (word-table-folds table))
        (size (- end start)))
    (declare (type octet-group folds) (type index size))
    (flet ((spelled-p (place)
             (loop with groups = (word-table-groups table)
                   for i of-type index from (* place +groups-in-word+)
                   for position of-type index from start by +group-size+
                   while (> (- end position) +group-size+)
                   always (= (aref groups i) (logior folds (octet-group octets position)))
                   finally (return (= (aref groups i)
                                      (logior folds (last-group octets position end)))))))
      (do-places (place (word-hash octets start end (logand 255 folds)))
        (let ((other (aref (word-table-sizes table) place)))
          (cond ((zerop other)
                 (return nil))
                ((and (= size other) (spelled-p place))
                 (return (values (svref (word-table-keywords table) place)
                                 (aref (word-table-roles table) place))))))))))

(defun text-equal (text other)
  "True if TEXT and OTHER are equal, regardless of the case of ASCII letters."
  (declare (type text text other) #.*hot-policy*)
  (flet ((folded (char)
           (let ((code (char-code char)))
             (if (<= 65 code 90) (+ code 32) code))))
    (declare (inline folded))
    (and (= (length text) (length other))
         (loop for i of-type index below (length text)
               always (= (folded (schar text i)) (folded (schar other i)))))))

(defun text-run-start (text start end class)
  "The start of the run of CLASS that ends in TEXT at END; not below START."
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
  "True if TEXT from START to END is WORD, regardless of case.  WORD consists of lower-case letters,
digits and hyphens, and TEXT has no control characters, so the test may set bit 5 of each code."
  (declare (type text text word) (type index start end) #.*hot-policy*)
  (and (= (length word) (- end start))
       (loop for i of-type index below (length word)
             always (= (char-code (schar word i))
                       (logior 32 (char-code (schar text (+ start i))))))))
