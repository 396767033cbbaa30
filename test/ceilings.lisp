(in-package #:hunchentoot-recycling-taskmaster-test)

;;;; How much code there is.  A ceiling is only ever lowered: whoever takes 50 lines or more away
;;;; lowers it.

(in-suite architecture)

(defparameter *ceilings*
  '((("src" "clack" "postgresql") 12830 52506)
    ("src/http2" 628) ("src/platform" 1732) ("src/http" 1687) ("src/websocket" 390)
    ("src/engine" 1945) ("src/server" 3534) ("src/hunchentoot" 1801)
    ("clack" 674) ("postgresql" 353) ("test" 16248))
  "Folders, how many lines of code they may have, and how many atoms.")

(defparameter *blanks* (coerce '(#\Space #\Tab #\Newline #\Return #\Page) 'string))

(defun end-of-string (text start)
  "The index in TEXT after the string that begins at START."
  (loop with place = (1+ start)
        until (char= #\" (char text place))
        do (incf place (if (char= #\\ (char text place)) 2 1))
        finally (return (1+ place))))

(defun docstring-at-p (text start)
  "True if the string at START in TEXT begins its line, or follows :DOCUMENTATION there."
  (let ((line (position #\Newline text :end start :from-end t)))
    (and (find (char text (max 0 (1- start))) *blanks*)
         (member (string-trim *blanks* (subseq text (if line (1+ line) 0) start))
                 '("" "(:documentation" ":documentation") :test #'string=))))

(defun token-end (text start)
  "The index in TEXT after the blank, comment, string, bracket or atom that begins at START; and
what it is: :CODE, :ATOM, :DOCSTRING, or NIL, where it is no code."
  (flet ((at-p (prefix)
           (eql (length prefix)
                (or (mismatch prefix text :start2 start) (length prefix))))
         (end (found)
           (or found (length text))))
    (cond ((find (char text start) *blanks*) (values (1+ start) nil))
          ((at-p ";") (values (end (position #\Newline text :start start)) nil))
          ((at-p "#|") (values (+ 2 (search "|#" text :start2 start)) nil))
          ((at-p "\"") (values (end-of-string text start)
                               (if (docstring-at-p text start) :docstring :atom)))
          ((at-p "#\\")
           (values (end (position-if-not (lambda (char)
                                           (or (alphanumericp char) (find char "-_")))
                                         text :start (min (length text) (+ start 3))))
                   :atom))
          ((find (char text start) "()'`,@#") (values (1+ start) :code))
          (t (values (end (position-if (lambda (char)
                                         (or (find char *blanks*) (find char "()\"';`,")))
                                       text :start start))
                     :atom)))))

(defun code-size (text)
  "How many lines of TEXT, of a Lisp file, have code and no docstring, and how many symbols,
numbers, strings and characters it has."
  (loop with kinds = (make-array (1+ (count #\Newline text)) :initial-element nil)
        with start = 0 and line = 0
        while (< start (length text))
        count (multiple-value-bind (end kind) (token-end text start)
                (let ((last (+ line (count #\Newline text :start start :end end))))
                  (loop for number from line to last
                        when (and kind (not (eq :docstring (aref kinds number))))
                          do (setf (aref kinds number) (if (eq :atom kind) :code kind)))
                  (setf start end
                        line last))
                (eq :atom kind))
          into atoms
        finally (return (values (count :code kinds) atoms))))

(defun folder-size (folders)
  "How many lines of code, and how many atoms, the Lisp files in FOLDERS and below have."
  (loop for folder in (uiop:ensure-list folders)
        for files = (directory (merge-pathnames (format nil "~A/**/*.lisp" folder)
                                                (source-root)))
        append (loop for file in files
                     collect (multiple-value-list (code-size (source-text file))))
          into sizes
        finally (return (values (reduce #'+ sizes :key #'first)
                                (reduce #'+ sizes :key #'second)))))

(test lines-of-code-are-counted-without-words-about-them
  (is (equal '(4 9)
             (multiple-value-list
              (code-size (format nil "; a~%(defun f (x)~%  \"Doc.~%more\"~%  #| b~%c |#~%~
                                      ~%  (list \"a\\\"~%b\" #\\a 'x ; c~%   1 2.5))~%"))))))

(define-source-test no-folder-is-above-its-ceiling
  (loop for (folders most-lines most-atoms) in *ceilings*
        do (multiple-value-bind (lines atoms) (folder-size folders)
             (is (<= lines most-lines) "~A: ~D lines of code, not ~D." folders lines most-lines)
             (when most-atoms
               (is (<= atoms most-atoms) "~A: ~D atoms, not ~D." folders atoms most-atoms)))))
