(in-package #:hunchentoot-recycling-taskmaster-test)

;;;; What the tables and lists of the guide say is what there is, and links lead somewhere.

(in-suite guide)

;;; Tables

(defun keyword-names (keywords)
  (mapcar (lambda (keyword) (format nil ":~(~A~)" keyword)) keywords))

(defun plist-names (plist)
  (keyword-names (loop for (key) on plist by #'cddr collect key)))

(defun check-same-names (there page &rest headers)
  "Checks that the names in the tables and lists of PAGE with HEADERS are those that are THERE, each
once."
  (let ((documented (loop for header in headers append (words-in-column page header))))
    (is (null (set-difference there documented :test #'string=))
        "~A lacks ~{~A~^, ~}." page (set-difference there documented :test #'string=))
    (is (null (set-difference documented there :test #'string=))
        "~A has ~{~A~^, ~}, which there is not." page
        (set-difference documented there :test #'string=))
    (is (= (length documented) (length (remove-duplicates documented :test #'string=)))
        "~A says something twice." page)))

(test the-guide-explains-every-statistic
  (let ((stats (recycling:stats (make-instance 'recycling:parallel-acceptor :port 0))))
    (check-same-names (plist-names stats) "docs/guide/operating.md" "statistic")
    (loop for (key header) in '((:expired-by "kind") (:timers "timers")
                                (:handshakes-failed-by "failure"))
          do (check-same-names (plist-names (getf stats key)) "docs/guide/operating.md" header))))

(test the-guide-explains-every-metric
  (check-same-names (loop for (nil nil name) in server::*metrics*
                          collect (format nil "http_server_~A" name))
                    "docs/guide/metrics.md" "metric"))

(test the-guide-has-every-middleware
  (check-same-names (loop for symbol being the external-symbols of '#:clack.handler.recycling
                          when (uiop:string-suffix-p (symbol-name symbol) "-MIDDLEWARE")
                            collect (string-downcase symbol))
                    "docs/guide/metrics.md" "middleware"))

(defun keywords-of-docstring (symbol)
  "The keywords of which the docstring of the function SYMBOL speaks, as their names are written."
  (remove-duplicates (mapcar #'string-downcase
                             (cl-ppcre:all-matches-as-strings ":[A-Z][A-Z0-9-]*"
                                                              (documentation symbol 'function)))
                     :test #'string=))

(test the-guide-explains-what-is-told-of-connections
  (check-same-names (keywords-of-docstring 'recycling:list-connections)
                    "docs/guide/operating.md" "key" "state"))

(test the-guide-explains-every-field-of-the-log-in-json
  (let ((facts '()))
    (serving (:access-log-destination (make-broadcast-stream)
              :access-log-format (lambda (plist) (setf facts plist) nil))
        (("/" "body"))
      (ask-traced "/")
      (eventually ("the request to be logged") facts))
    (check-same-names (loop for (key) on facts by #'cddr
                            collect (substitute #\_ #\- (string-downcase key)))
                      "docs/guide/logging.md" "field")))

(test the-guide-explains-every-member-of-a-message-in-json
  (let ((line (server:message-line nil :json :info "Told." '() nil :trace-id "0a")))
    (check-same-names (mapcar #'car (parse-json (string-right-trim
                                                 '(#\Newline)
                                                 (http:utf-8-text (http:output-octets line) 0
                                                                  (http:output-fill line)))))
                      "docs/guide/logging.md" "member")))

(test the-guide-explains-every-keyword-for-clack
  (check-same-names (set-difference (keywords-of-docstring 'handler:run)
                                    '(":systemd" ":unlimited" ":text" ":json" ":parallel-acceptor"
                                      ":parallel-ssl-acceptor")
                                    :test #'string=)
                    "docs/guide/clack.md" "keyword"))

(defun exported-names ()
  (let ((names '()))
    (do-external-symbols (symbol '#:hunchentoot-recycling-taskmaster names)
      (push (string-downcase symbol) names))))

(test the-guide-has-every-name
  (check-same-names (exported-names) "docs/guide/README.md" "name"))

(defparameter *argument-pages* '("docs/guide/configure.md" "docs/guide/limits.md")
  "The pages that list the arguments of acceptors and taskmasters.")

(defun finalized-class (name)
  "The class NAME, when its slots are known; NIL when there is none."
  (let ((class (find-class name nil)))
    (and class (class-of (allocate-instance class)))))

(defparameter *configured-classes*
  '(recycling:parallel-easy-acceptor recycling:parallel-easy-ssl-acceptor
    recycling:recycling-taskmaster)
  "The classes whose arguments *ARGUMENT-PAGES* have.")

(defun told-by-mop (function object)
  "What FUNCTION, a name of the metaobject protocol, says of OBJECT."
  (uiop:symbol-call #+sbcl '#:sb-mop #+ecl '#:clos #+abcl '#:mop function object))

(defun default-arguments (class)
  "Names of the default initargs of CLASS, and functions of their values: lists."
  (loop for (name nil function) in (told-by-mop '#:class-default-initargs class)
        collect (list name function)))

(defun all-arguments (class)
  "The names of the initargs of CLASS that a slot or a default tells of."
  (append (mapcar #'first (default-arguments class))
          (loop for slot in (told-by-mop '#:class-slots class)
                append (told-by-mop '#:slot-definition-initargs slot))
          (list* :parking (mapcar #'first server:*limit-arguments*))))

(defun own-arguments (class)
  "The names of initargs of CLASS that the guide must have."
  (list* :reuse-port
         (append (mapcar #'first (default-arguments class))
                 (mapcar #'first (server:arguments-of :common :acceptor :threads :tls :limits)))))

(defun arguments-in-classes (function)
  "What FUNCTION returns for each of the classes, together."
  (keyword-names (loop for name in *configured-classes*
                       for class = (finalized-class name)
                       when class append (funcall function class))))

(defun documented-arguments ()
  "The names of arguments that the guide has."
  (loop for page in *argument-pages* append (words-in-column page "argument")))

(test the-guide-has-every-argument
  (let ((documented (documented-arguments)))
    (is (null (set-difference (arguments-in-classes #'own-arguments) documented :test #'string=)))
    (is (null (set-difference documented (arguments-in-classes #'all-arguments) :test #'string=)))))

(defun written-number (text)
  "The integer that TEXT, a cell, begins with, where MiB may follow; NIL where it begins otherwise."
  (cl-ppcre:register-groups-bind ((#'parse-integer number) unit) ("^(\\d+)( MiB)?" text)
    (if unit (* number 1024 1024) number)))

(defun default-of (name)
  "The value that the argument NAME, a keyword, has by default."
  (let ((limit (assoc name server:*limit-arguments*))
        (default (loop for class in (remove nil (mapcar #'finalized-class *configured-classes*))
                       thereis (assoc name (default-arguments class)))))
    (cond (limit (funcall (third limit) (http:make-limits)))
          ((eq :standby-thread-count name) recycling:*default-standby-thread-count*)
          (t (funcall (second default))))))

(test the-guide-has-the-defaults-of-arguments
  (let ((rows (loop for page in *argument-pages*
                    append (loop for row in (list-rows page "argument")
                                 when (written-number (or (second row) "")) collect row))))
    (is (< 12 (length rows)))
    (loop for (name default) in rows
          do (is (eql (written-number default)
                      (default-of (read-from-string (first (quoted-words name)))))
                 "~A is not ~A." name default))))

;;; Figures

(test the-figures-of-the-readme-are-those-of-the-guide
  (flet ((figures (page)
           (loop for (nil . cells) in (table-rows page "")
                 append (mapcar (lambda (cell) (remove #\* cell)) cells))))
    (let ((shown (figures "README.md")))
      (is (< 20 (length shown)))
      (is (null (set-difference shown (figures "docs/guide/performance.md") :test #'equal))))))

(test the-guide-has-the-figures-of-the-server
  (loop for (page words . figures)
          in `(("limits" "`*high-water-mark*`, ~D KiB" ,(/ recycling:*high-water-mark* 1024))
               ("limits" "beyond ~D MiB, or ~D KiB where memory is scarce"
                         ,(/ server::*most-content-memory* 1024 1024)
                         ,(/ server::*content-memory* 1024))
               ("limits" "on average, after the first ~R seconds" ,http:*content-grace*)
               ("limits" "after the first ~D seconds" ,engine:*reply-grace*)
               ("later" "clients ~R seconds to answer" ,server::*closing-seconds*)
               ("logging" "then one in ~R seconds" ,(/ server::*warning-milliseconds* 1000)))
        do (is-true (search (apply #'format nil words figures)
                            (cl-ppcre:regex-replace-all
                             "\\s+" (source-text (document (format nil "docs/guide/~A.md" page)))
                             " "))
                    "~A: ~S" page words)))

;;; Promises

(defun names-of-tests (page)
  "What PAGE says between back quotes, where it names no function and no command."
  (set-difference (loop for line in (document-text-lines page) append (quoted-words line))
                  '("abandon-acceptor" "make test SUITE=name")
                  :test #'string=))

(define-source-test every-promise-is-held-by-tests-that-exist
  (let ((names (names-of-tests "docs/promises.md")))
    (is (< 30 (length names)))
    (dolist (name names)
      (is-true (get-test (find-symbol (string-upcase name)
                                      '#:hunchentoot-recycling-taskmaster-test))
               "There is no test ~A." name))))

;;; Pages and links

(defun documents-in (folder)
  "The names of the documents in FOLDER and below."
  (mapcar #'source-name
          (directory (merge-pathnames (format nil "~A**/*.md" folder) (source-root)))))

(defun documents ()
  (append '("README.md" "CONTRIBUTING.md" "CHANGELOG.md") (documents-in "docs/")))

(test every-page-of-the-guide-has-a-test
  (is (null (set-exclusive-or (cons "README.md" (documents-in "docs/guide/")) *example-pages*
                              :test #'string=))))

(defun long-lines (name)
  "The numbers of the lines of the file NAME that have more than 100 characters."
  (loop for line in (document-text-lines name)
        for number from 1
        when (< 100 (length line)) collect number))

(defun lisp-files ()
  "The names of all Lisp files of the project, those of its tests and data too."
  (loop for pattern in '("*.asd" "src/**/*.lisp" "clack/*.lisp" "postgresql/*.lisp"
                         "examples/*.lisp" "scripts/*.lisp" "test/**/*.lisp" "test/**/*.sexp"
                         "benchmark/*.lisp")
        append (mapcar #'source-name (directory (merge-pathnames pattern (source-root))))))

(test every-line-fits-into-100-columns
  (dolist (name (append (documents) (lisp-files)))
    (let ((lines (long-lines name)))
      (is (null lines) "~A is wider than 100 columns in ~{~D~^, ~}." name lines))))

(defun linked-document (page name)
  "What the project calls the file to which a link of the document PAGE leads that says NAME."
  ;; By hand: ABCL does not find every pathname that goes up twice.
  (let ((folders (rest (reverse (uiop:split-string page :separator "/")))))
    (dolist (part (uiop:split-string name :separator "/"))
      (if (string= ".." part)
          (pop folders)
          (push part folders)))
    (format nil "~{~A~^/~}" (reverse folders))))

(defun link-mistake (page target)
  "What is wrong with TARGET, a link of the document PAGE; NIL when nothing is."
  (destructuring-bind (name &optional anchor) (uiop:split-string target :separator "#")
    (let ((there (if (string= "" name) page (linked-document page name))))
      (cond ((not (probe-file (document there)))
             "no such file")
            ((and anchor (not (member anchor (anchors there) :test #'string=)))
             "no such heading")))))

(test every-link-leads-somewhere
  (dolist (page (documents))
    (dolist (target (links page))
      (let ((mistake (link-mistake page target)))
        (is (null mistake) "~A: ~A: ~A." page target mistake)))))
