(in-package #:hunchentoot-recycling-taskmaster-test)

(in-suite differential)

;;; docs/differences.md shows the table of differences to people, as a list in sections.  Entries
;;; of one name are one item there; one of them has the text.

(defparameter *list-of-differences* '("<!-- differences -->" "<!-- end of differences -->")
  "The lines of the document between which the list stands.")

(defun filled (words width)
  "WORDS, strings, as lines of an item of a list that have at most WIDTH columns."
  (let ((lines '()) (line "-"))
    (dolist (word words (nreverse (cons line lines)))
      (when (< width (+ 1 (length line) (length word)))
        (push (shiftf line " ") lines))
      (setf line (format nil "~A ~A" line word)))))

(defun words-of (text)
  "The words of TEXT, strings without white space."
  (remove "" (uiop:split-string text :separator '(#\Space #\Newline)) :test #'string=))

(defun entry-lines (entry)
  "The lines of the document for ENTRY of the table."
  (destructuring-bind (&key section name ours stock why &allow-other-keys) entry
    (cond (section
           (list "" (format nil "### ~A" section) ""))
          (ours
           (filled (words-of (format nil "**~A**: ~A (~A). ~A" name (string-right-trim "." ours)
                                     (string-right-trim "." why) stock))
                   100)))))

(defun list-of-differences ()
  "The lines of the list of differences."
  (append (mapcan #'entry-lines (read-table "differences.sexp")) (list "")))

(defun differences-document ()
  (merge-pathnames "docs/differences.md" (source-root)))

(defun document-parts ()
  "Three lists of the document's lines: up to the start of the list, the list, and from its end."
  (let* ((lines (uiop:read-file-lines (differences-document) :external-format :utf-8))
         (start (1+ (position (first *list-of-differences*) lines :test #'string=)))
         (end (position (second *list-of-differences*) lines :test #'string=)))
    (list (subseq lines 0 start) (subseq lines start end) (subseq lines end))))

(defun write-differences ()
  "Puts the list of differences into the document, in place of the one that it has.  To be called
after a change in differences.sexp."
  (destructuring-bind (before list after) (document-parts)
    (declare (ignore list))
    (with-open-file (out (differences-document) :direction :output :if-exists :supersede
                                                :external-format :utf-8)
      (format out "~{~A~%~}" (append before (list-of-differences) after)))))

(test the-document-shows-the-table-of-differences
  (is (equal (list-of-differences) (second (document-parts)))
      "Evaluate (hunchentoot-recycling-taskmaster-test::write-differences)."))

(test every-difference-has-a-reason
  (let* ((entries (differences-table))
         (told (remove-if-not (lambda (entry) (getf entry :ours)) entries))
         (names (mapcar (lambda (entry) (getf entry :name)) told)))
    (is (equal names (remove-duplicates names :test #'string=)))
    (dolist (entry told)
      (dolist (key '(:name :ours :stock :why))
        (is (plusp (length (getf entry key))) "~S has no ~S." (getf entry :name) key)))
    (dolist (entry entries)
      (is (member (getf entry :name) names :test #'string=) "~S is not told." (getf entry :name))
      (is (getf entry :cases))
      (is (getf entry :differs)))))
