(in-package #:hunchentoot-recycling-taskmaster-test)

;;; Runs the examples of a document, page by page.  CONTRIBUTING.md tells how they are written.
;;;
;;;   a block               is
;;;   lisp                  read and evaluated, form by form; what "; =>" says is compared with the
;;; value
;;;   lisp, "needs ..."     the same where this Lisp has that; else told as skipped
;;;   lisp, "not run, ..."  told as skipped
;;;   sh, before text       a curl command, which is asked of the acceptor that the page started
;;; last
;;;   text                  compared with what the block before it printed
;;;   any other language    for people
;;;   of no known language  a mistake

(defparameter *languages* '("lisp" "text" "sh" "ini" "json" "diff" "nginx" "haproxy")
  "What a block may be written in.")

(defparameter *example-folder* "/srv/shop/"
  "The folder in which the examples' files are.  They are run with a temporary one in its place.")

(defvar *folder* nil
  "The temporary folder.")

(defvar *example-values* '()
  "What the forms of the page have returned, the last first.")

(defvar *printed* nil
  "What the last block has printed; NIL when there is nothing to be compared.")

(defvar *mistakes* '()
  "What is wrong with the page, strings, the last first.")

(defvar *skipped* '()
  "Why blocks of the page were not run, strings, the last first.")

(defun note-mistake (example control &rest arguments)
  "Notes that EXAMPLE is wrong, for the reason that CONTROL and ARGUMENTS say."
  (push (format nil "~A: ~?" (example-place example) control arguments) *mistakes*))

;;; Files and ports

(defun example-file (name)
  (uiop:native-namestring (merge-pathnames (uiop:parse-unix-namestring name) *folder*)))

(defun make-example-files (tls)
  "Makes the folders that examples write to, and, when TLS is true, certificates and their keys."
  (ensure-directories-exist (example-file "log/access.log"))
  (let ((folder (ensure-directories-exist (merge-pathnames "tls/" *folder*))))
    (when tls
      ;; These functions are not there where there is no TLS.
      (funcall 'make-certificate folder)
      (funcall 'issue folder "other" :names '("other.example.org"))
      (uiop:copy-file (merge-pathnames "certificate.pem" folder)
                      (merge-pathnames "fullchain.pem" folder)))))

(defun localized (form)
  "FORM with free ports in place of the ports that it names, and temporary files in place of its
files."
  (cond ((and (stringp form) (uiop:string-prefix-p *example-folder* form))
         (example-file (subseq form (length *example-folder*))))
        ((atom form)
         form)
        ((and (eq :port (first form)) (typep (second form) '(integer 1 65535)))
         (list* :port 0 (localized (cddr form))))
        (t
         (cons (localized (car form)) (localized (cdr form))))))

;;; Lisp

(defparameter *value-mark* "; => "
  "What stands between a form and its value.")

(defun rest-of-line (in)
  "What follows in the line of IN; nothing but a comment may."
  (let ((rest (string-trim " " (read-line in nil ""))))
    (unless (or (string= "" rest) (uiop:string-prefix-p ";" rest))
      (error "There is more than a form in a line: ~A" rest))
    rest))

(defun compare-value (example form value rest)
  "Compares VALUE of FORM with what REST of its line says, if that says anything.  True if it does."
  (when (uiop:string-prefix-p *value-mark* rest)
    (let ((expected (read-from-string rest t nil :start (length *value-mark*))))
      (unless (equalp expected value)
        (note-mistake example "~S is ~S." form value))
      t)))

(defun evaluate-forms (example in out)
  "Evaluates the forms of EXAMPLE, which are read from IN; what they print goes to OUT.  Returns how
many values were compared."
  (loop for form = (read-preserving-whitespace in nil in)
        until (eq form in)
        do (push (let ((*standard-output* out)) (eval (localized form))) *example-values*)
        count (compare-value example form (first *example-values*) (rest-of-line in))))

(defun evaluate-example (example)
  "Evaluates EXAMPLE; what it prints is for the block after it."
  (let ((text (example-text example)) (out (make-string-output-stream)))
    (handler-case
        (with-input-from-string (in text)
          (unless (= (count-of *value-mark* text) (evaluate-forms example in out))
            (note-mistake example "a value stands in a line without the end of a form.")))
      (error (condition)
        (note-mistake example "~A" condition)))
    (setf *printed* (get-output-stream-string out))))

(defun need-of (words)
  "What UNMET-NEED knows for WORDS of a directive."
  (or (cdr (assoc words '(("special listeners" . :systemd) ("TLS" . :tls)) :test #'string=))
      (error "Nobody knows the need ~S." words)))

(defun why-not-run (example)
  "Why EXAMPLE cannot be run here, a string; NIL when it can."
  (let ((directive (example-directive example)))
    (cond ((null directive)
           nil)
          ((uiop:string-prefix-p "not run, " directive)
           (subseq directive (length "not run, ")))
          ((uiop:string-prefix-p "needs " directive)
           (unmet-need (need-of (subseq directive (length "needs ")))))
          (t
           (error "Nobody knows what ~S means." directive)))))

(defun run-lisp (example)
  (let ((reason (why-not-run example)))
    (cond (reason
           (setf *printed* nil)
           (push (format nil "An example of ~A: ~A" (example-page example) reason) *skipped*))
          (t
           (evaluate-example example)))))

;;; Requests

(defun shell-words (line)
  "The words of LINE as a shell finds them, where there are no quotes but single ones."
  (loop for part in (uiop:split-string (string-right-trim '(#\Newline) line) :separator "'")
        for quoted = nil then (not quoted)
        if quoted
          collect part
        else
          append (remove "" (uiop:split-string part) :test #'string=)))

(defun page-acceptors ()
  "The acceptors that forms of the page have returned or kept in variables, the last first."
  (loop for value in *example-values*
        for thing = (if (and (symbolp value) (boundp value)) (symbol-value value) value)
        when (typep thing 'hunchentoot:acceptor) collect thing))

(defun page-server ()
  "The acceptor that the page has started last."
  (or (find-if #'hunchentoot:started-p (page-acceptors))
      (error "There is no server to be asked.")))

(defun target-of (uri)
  (subseq uri (position #\/ uri :start (length "http://"))))

(defun ask-as-curl (words)
  "What curl would print for WORDS, its arguments, some of those that it knows."
  (let ((*server* (page-server)) (headers '()) (target nil))
    (loop while words
          do (let ((word (pop words)))
               (cond ((string= "-s" word))
                     ((string= "-H" word) (push (parse-header-line (pop words)) headers))
                     ((uiop:string-prefix-p "http://" word) (setf target (target-of word)))
                     (t (error "What is ~A of curl?" word)))))
    (ask-text target :headers headers)))

(defun run-command (example)
  "Does what EXAMPLE, a command in a shell whose output comes next, is to do."
  (let ((words (shell-words (example-text example))))
    (unless (string= "curl" (first words))
      (error "Only the output of curl can be compared."))
    (setf *printed* (ask-as-curl (rest words)))))

;;; Pages

(defun compare-printed (example)
  "Compares EXAMPLE with what the block before it has printed."
  (flet ((trimmed (text)
           (string-right-trim '(#\Newline #\Space) text)))
    (cond ((null *printed*)
           (note-mistake example "nothing was printed that could be compared."))
          ((string/= (trimmed (example-text example)) (trimmed *printed*))
           (note-mistake example "~S was printed." *printed*)))
    (setf *printed* nil)))

(defun run-example (example next)
  "Runs EXAMPLE; NEXT is the one after it, or NIL."
  (let ((language (example-language example)))
    (cond ((not (member language *languages* :test #'string=))
           (note-mistake example "~S is no language of examples." language))
          ((string= "lisp" language)
           (run-lisp example))
          ((string= "text" language)
           (compare-printed example))
          ((example-directive example)
           (note-mistake example "only Lisp may say when it is run."))
          ((and (string= "sh" language) next (string= "text" (example-language next)))
           (run-command example))
          (t
           (setf *printed* nil)))))

(defun needs-tls-p (examples)
  (find "needs TLS" examples :key #'example-directive :test #'equal))

(defun call-with-page-world (examples function)
  "Calls FUNCTION in a package and with files for the EXAMPLES of a page, and undoes what they do."
  (with-directory (directory)
    (with-globals ((hunchentoot::*easy-handler-alist* '())
                   (hunchentoot:*dispatch-table* hunchentoot:*dispatch-table*))
      (let* ((packages (list-all-packages))
             (*package* (eval `(defpackage ,(gensym "GUIDE")
                                 (:use ,@(mapcar #'package-name (package-use-list '#:cl-user)))
                                 (:local-nicknames
                                  (#:recycling #:hunchentoot-recycling-taskmaster)))))
             (*folder* directory)
             (*example-values* '())
             (*printed* nil)
             (*error-output* (make-broadcast-stream)))
        (make-example-files (and (needs-tls-p examples) (null (unmet-need :tls))))
        (unwind-protect (funcall function)
          (mapc #'stop-if-started (page-acceptors))
          (mapc #'delete-package (set-difference (list-all-packages) packages)))))))

(defun run-page (page)
  "Runs the examples of the document PAGE.  Returns lists of what is wrong, and of why blocks were
skipped."
  (let ((examples (examples page)) (*mistakes* '()) (*skipped* '()))
    (flet ((run-all-examples ()
             (loop for (example next) on examples
                   do (handler-case (run-example example next)
                        (error (condition)
                          (note-mistake example "~A" condition))))))
      (call-with-page-world examples #'run-all-examples))
    (values (reverse *mistakes*) (reverse *skipped*))))
