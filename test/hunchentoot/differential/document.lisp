(in-package #:hunchentoot-recycling-taskmaster-test)

;;; docs/differences.md shows the table of differences to people.

(defun entry-row (entry)
  "The row of the document for ENTRY of the table."
  (format nil "| ~A | ~A | ~A | ~A |" (getf entry :name)
          (on-one-line (getf entry :stock)) (on-one-line (getf entry :ours))
          (on-one-line (getf entry :why))))

(defun differences-document ()
  (merge-pathnames "docs/differences.md" (source-root)))

(defun document-lines ()
  (uiop:read-file-lines (differences-document) :external-format :utf-8))

(defun wide-p (line)
  "True if LINE belongs to a table with the four columns of the differences."
  (< 4 (count #\| line)))

(defun rows (lines)
  "Those of LINES that are rows of the table, without the one above the dashes."
  (loop for (line next) on lines
        when (and (uiop:string-prefix-p "| " line)
                  (wide-p line)
                  (not (uiop:string-prefix-p "|--" (or next ""))))
          collect line))

(defun write-differences ()
  "Puts the rows of the table into the document, in place of those that it has.  To be called
after a change in differences.sexp."
  (let* ((lines (document-lines))
         (old-rows (rows lines)))
    (with-open-file (out (differences-document) :direction :output :if-exists :supersede
                                                :external-format :utf-8)
      (dolist (line lines)
        (unless (member line old-rows :test #'string=)
          (write-line line out))
        (when (and (uiop:string-prefix-p "|--" line) (wide-p line))
          (dolist (entry (differences-table))
            (write-line (entry-row entry) out)))))))

(test the-document-shows-the-table-of-differences
  (is (equal (mapcar #'entry-row (differences-table)) (rows (document-lines)))
      "Evaluate (hunchentoot-recycling-taskmaster-test::write-differences)."))

(test every-difference-has-a-reason
  (dolist (entry (differences-table))
    (dolist (key '(:name :stock :ours :why))
      (is (plusp (length (getf entry key))) "~S has no ~S." (getf entry :name) key))
    (is (getf entry :cases))
    (is (getf entry :differs))))
