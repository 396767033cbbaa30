(in-package #:hunchentoot-recycling-taskmaster.http)

;;;; The content codings that a client accepts (RFC 9110, section 12.5.3).

(defparameter *codings* '((:br "br") (:gzip "gzip" "x-gzip"))
  "The content codings of files, the one that compresses best first, and their names (RFC 9110,
section 8.4.1; RFC 7932).")

(defun coding-name (coding)
  "The name of CODING, :BR or :GZIP, a string, for Content-Encoding (RFC 9110, section 8.4)."
  (second (assoc coding *codings*)))

(defun weight-in (text start end)
  "The weight that TEXT has from START to END, in thousandths; NIL if that is none (RFC 9110,
section 12.4.2)."
  (flet ((digit-at (index)
           (if (< index end) (digit-char-p (char text index)) 0)))
    (and (<= 1 (- end start) 5)
         (or (= 1 (- end start)) (char= #\. (char text (1+ start))))
         (let ((digits (list (digit-at start) (digit-at (+ 2 start)) (digit-at (+ 3 start))
                             (digit-at (+ 4 start)))))
           (and (every #'identity digits)
                (let ((weight (reduce #'+ (mapcar #'* '(1000 100 10 1) digits))))
                  (and (<= weight 1000) weight)))))))

(defun coding-weights (value)
  "An alist of the codings that VALUE, the text of Accept-Encoding, names, strings in lower case,
and their weights in thousandths."
  (let ((text (coerce value 'text)) (weights '()))
    (declare (type text text))
    (do-elements (text start end)
      (let* ((name-end (text-run-end text start end +token+))
             (next (text-run-end text name-end end +whitespace+))
             (from (text-run-end text (min end (1+ next)) end +whitespace+)))
        (when (< start name-end)
          (push (cons (string-downcase (text-part text start name-end))
                      (cond ((= next end) 1000)
                            ((and (char= #\; (char text next))
                                  (<= (+ 2 from) end)
                                  (string-equal "q=" text :start2 from :end2 (+ 2 from))
                                  (weight-in text (+ 2 from) end)))
                            (t 0)))        ; it is malformed
                weights))))
    (nreverse weights)))

(defun accepted-codings (value)
  "The codings of files, :BR and :GZIP, in a list, that a client accepts with VALUE, the text of
Accept-Encoding or NIL.  The preferred one is first; of those that it likes as much, the one that
compresses best.  A coding is left out where the client prefers content without one.  The list is
empty for NIL, since such a client may know no coding."
  (let* ((weights (and value (coding-weights value)))
         (others (or (cdr (assoc "*" weights :test #'string=)) 0)))
    (flet ((weight-of (names)
             (or (loop for name in names
                       thereis (cdr (assoc name weights :test #'string=)))
                 others)))
      (let ((least (max 1 (weight-of '("identity")))))
        (mapcar #'car
                (stable-sort (loop for (coding . names) in *codings*
                                   for weight = (weight-of names)
                                   when (<= least weight)
                                     collect (cons coding weight))
                             #'> :key #'cdr))))))

(defun coded-tag (tag coding)
  "TAG, the entity tag of a file that has CODING, a string, so that it differs from that of a file
which has another (RFC 9110, section 8.8.3.3).  TAG itself if TAG or CODING is NIL."
  (if (and tag coding)
      (let ((end (1- (length tag))))
        (format nil "~A-~A~A" (subseq tag 0 end) (coding-name coding) (subseq tag end)))
      tag))

(defun varies-by-encoding-p (value)
  "True if VALUE, the text of a Vary or NIL, says that Accept-Encoding decides about the response
(RFC 9110, section 12.5.5)."
  (and value
       (some (lambda (element)
               (or (string= "*" element) (string-equal "Accept-Encoding" element)))
             (list-elements value))))

(defun vary-by-encoding (value)
  "VALUE, the text of a Vary or NIL, with Accept-Encoding in it (RFC 9110, section 12.5.5)."
  (cond ((null value) "Accept-Encoding")
        ((varies-by-encoding-p value) value)
        (t (format nil "~A, Accept-Encoding" value))))
