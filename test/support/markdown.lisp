(in-package #:hunchentoot-recycling-taskmaster-test)

;;; What tests read of documents: fenced blocks, tables, lists, headings, links.

(defun document (name)
  "The pathname of the document NAME, a string from the root of the project."
  (merge-pathnames name (source-root)))

(defun document-text-lines (name)
  "The lines of the document NAME."
  (uiop:read-file-lines (document name) :external-format :utf-8))

;;; Fenced blocks

(defstruct (example (:constructor make-example (page number language directive)))
  "A fenced block of PAGE, the name of a document, below line NUMBER.  DIRECTIVE is what the comment
before it says of it, a string, or NIL."
  page number language directive (lines '()))

(defun example-text (example)
  "The text of EXAMPLE, each line with its end."
  (format nil "~{~A~%~}" (reverse (example-lines example))))

(defun example-place (example)
  "Where EXAMPLE stands, for people."
  (format nil "~A, line ~D" (example-page example) (example-number example)))

(defparameter *directive-start* "<!-- example: "
  "How a line begins that says something of the block after it.")

(defun directive (line)
  "What LINE says of the block after it; NIL when it says nothing of one."
  (when (uiop:string-prefix-p *directive-start* line)
    (subseq line (length *directive-start*) (search " -->" line))))

(defun fence-p (line)
  (uiop:string-prefix-p "```" line))

(defun examples (page)
  "The fenced blocks of the document PAGE, in their order."
  (let ((examples '()) (open nil) (directive nil))
    (loop for line in (document-text-lines page)
          for text = (string-trim " " line)
          for number from 1
          do (cond ((and open (fence-p text))
                    (push (shiftf open nil) examples))
                   (open
                    (push line (example-lines open)))
                   ((fence-p text)
                    (setf open (make-example page number (subseq text 3) (shiftf directive nil))))
                   ((string/= "" text)
                    (setf directive (directive text)))))
    (when open
      (error "The block of ~A does not end." (example-place open)))
    (reverse examples)))

(defun prose (page)
  "The lines of the document PAGE outside of fenced blocks."
  (loop with inside = nil
        for line in (document-text-lines page)
        if (fence-p (string-trim " " line))
          do (setf inside (not inside))
        else unless inside
          collect line))

;;; Tables

(defun cells (line)
  "The cells of LINE, a row of a table."
  (mapcar (lambda (cell) (string-trim " " cell))
          (butlast (rest (uiop:split-string line :separator "|")))))

(defun replace-all (text old new)
  "TEXT with every OLD, a string, replaced by NEW."
  (with-output-to-string (out)
    (loop for start = 0 then (+ position (length old))
          for position = (search old text :start2 start)
          do (write-string text out :start start :end position)
             (when position (write-string new out))
          while position)))

(defun table-rows (page header)
  "The rows, lists of cells, of all tables of the document PAGE whose first header is HEADER."
  (loop with inside = nil
        for line in (prose page)
        if (not (uiop:string-prefix-p "|" line))
          do (setf inside nil)
        else if (equal header (first (cells line)))
               do (setf inside t)
        else if (and inside (not (uiop:string-prefix-p "|-" line)))
               collect (cells line)))

(defun quoted-words (text)
  "What stands between back quotes in TEXT."
  (loop for (nil quoted) on (uiop:split-string text :separator "`") by #'cddr
        when quoted collect quoted))

(defun words-in-column (page header)
  "What stands between back quotes in the first column of the tables of PAGE with HEADER, and before
the colons of its lists with this header."
  (loop for (cell) in (append (table-rows page header) (list-rows page header))
        append (quoted-words cell)))

;;; Lists that stand for tables

(defun list-start-p (line header)
  "True when LINE is the comment before a list that stands for a table with HEADER."
  (string= line (format nil "<!-- list: ~A -->" header)))

(defun list-items (page header)
  "The items of all lists of the document PAGE with HEADER, strings without line ends."
  (let ((items '()) (inside nil))
    (dolist (line (prose page) (nreverse items))
      (cond ((list-start-p line header)
             (setf inside t))
            ((or (not inside) (string= "" line)))
            ((uiop:string-prefix-p "- " line)
             (push (subseq line 2) items))
            ((and items (uiop:string-prefix-p "  " line))
             (setf (first items) (format nil "~A~A" (first items) (subseq line 1))))
            (t
             (setf inside nil))))))

(defun item-row (item)
  "What ITEM of a list says as a row of a table: its names, what stands in parentheses behind them,
which is NIL when nothing does, and the rest."
  (or (cl-ppcre:register-groups-bind (names default text)
          ("^((?:`[^`]+`(?:, | and )?)+)(?: \\((.*?)\\))?: (.*)$" item)
        (list names default text))
      (error "A list of names has an item that names nothing: ~A" item)))

(defun list-rows (page header)
  "The rows of all lists of the document PAGE with HEADER; see ITEM-ROW."
  (mapcar #'item-row (list-items page header)))

;;; Links

(defun heading-anchor (line)
  "The anchor of the heading LINE, as web sites make it."
  (substitute #\- #\Space
              (remove-if-not (lambda (character)
                               (or (alphanumericp character) (find character "- _")))
                             (string-downcase (string-trim "# " line)))))

(defun anchors (page)
  "The anchors of the headings of the document PAGE."
  (loop for line in (prose page)
        when (uiop:string-prefix-p "#" line) collect (heading-anchor line)))

(defun links (page)
  "The targets of all links and pictures of the document PAGE that lead into this project."
  (let ((targets '()))
    (cl-ppcre:do-register-groups (target)
                                 ("\\]\\(([^)\\s]+)\\)" (format nil "~{~A~%~}" (prose page)))
      (unless (search "://" target)
        (push target targets)))
    (reverse targets)))
