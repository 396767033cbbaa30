(in-package #:recycling-benchmark)

;;;; The report of *RESULT*: report.md, and the rows of the README.

(defstruct cell
  "What the ROUNDS, property lists, of SERVER under WORKLOAD gave; both are names."
  workload server rounds)

(defun read-forms (name)
  "The forms of the file NAME of *RESULT*; none where there is no such file."
  (when (probe-file (result-file name))
    (with-standard-io-syntax (uiop:read-file-forms (result-file name)))))

(defun read-cells ()
  "The cells of *RESULT*."
  (let ((cells '()))
    (loop for (workload server . figures) in (read-forms "rounds.lisp")
          for cell = (find-cell workload server cells)
          do (unless cell
               (setf cell (make-cell :workload workload :server server))
               (push cell cells))
             (push figures (cell-rounds cell)))
    (dolist (cell cells (nreverse cells))
      (setf (cell-rounds cell) (nreverse (cell-rounds cell))))))

(defun find-cell (workload server cells)
  "The one of CELLS of WORKLOAD and SERVER, names, or NIL."
  (find-if (lambda (cell)
             (and (string= workload (cell-workload cell)) (string= server (cell-server cell))))
           cells))

(defun values-of (cell figure)
  "What the rounds of CELL gave for FIGURE."
  (loop for round in (cell-rounds cell) collect (getf round figure)))

(defun median (numbers)
  "The median of NUMBERS, of which there is one at least."
  (let* ((sorted (sort (copy-list numbers) #'<))
         (middle (floor (length sorted) 2)))
    (if (oddp (length sorted))
        (nth middle sorted)
        (/ (+ (nth (1- middle) sorted) (nth middle sorted)) 2))))

(defun value-of (cell figure)
  "FIGURE of CELL: the median of its rounds; of failures their sum."
  (if (eq figure :failures)
      (reduce #'+ (values-of cell figure))
      (median (values-of cell figure))))

(defun ratio-of (cell base figure)
  "FIGURE of CELL divided by that of BASE, a cell of the same workload: the median of the ratios of
rounds, whose turns were next to each other."
  (median (loop for value in (values-of cell figure)
                for base-value in (values-of base figure)
                collect (/ value (max base-value 1e-9)))))

;;; Who is best

(defun failed-p (cell)
  "True if more than one request in a thousand of CELL failed."
  (> (* 1000 (value-of cell :failures)) (reduce #'+ (values-of cell :requests))))

(defun compared-by (cell)
  "The figure by which the servers of the workload of CELL are compared."
  (let ((workload (find-workload (cell-workload cell))))
    (if workload (workload-by workload) :rate)))

(defun clearly-better-p (cell other)
  "True if CELL was better than OTHER, of the same workload, in each round."
  (every (if (eq (compared-by cell) :rate) #'> #'<)
         (values-of cell (compared-by cell)) (values-of other (compared-by cell))))

(defun best-p (cell cells)
  "True if none of CELLS, which are of the same workload, is clearly better than CELL.  Whoever
failed is out of the contest, and so is the limit."
  (flet ((contender-p (cell)
           (and (not (failed-p cell)) (string/= "limit" (cell-server cell)))))
    (and (contender-p cell)
         (notany (lambda (other)
                   (and (contender-p other) (clearly-better-p other cell)))
                 cells))))

;;; Text

(defun amount (number)
  "NUMBER with three digits that count, or all before the point, in groups."
  (let ((places (if (plusp number) (max 0 (- 2 (floor (log number 10)))) 0)))
    (if (zerop places)
        (format nil "~:d" (round number))
        (format nil "~,vf" (min places 2) number))))

(defun label-of (name)
  "What reports call the server NAME."
  (let ((server (find-server name)))
    (if server (server-label server) name)))

(defun title-of (name)
  "What reports call the workload NAME."
  (let ((workload (find-workload name)))
    (if workload (workload-title workload) name)))

(defun write-table (stream columns rows)
  "Writes a table of Markdown to STREAM, with the names of COLUMNS; each of ROWS is a list of
strings."
  (let ((widths (loop for i below (length columns)
                      collect (loop for row in (cons columns rows)
                                    maximize (length (nth i row))))))
    (flet ((write-row (row)
             (format stream "|~{ ~va |~}~%" (list* (first widths) (first row)
                                                   (loop for text in (rest row)
                                                         for width in (rest widths)
                                                         collect 0
                                                         collect (format nil "~v@a" width text))))))
      (write-row columns)
      (format stream "|~{~a|~}~%"
              (loop for width in widths
                    for dashes = (make-string (1+ width) :initial-element #\-)
                    for first-p = t then nil
                    collect (format nil "~a~:[:~;-~]" dashes first-p)))
      (mapc #'write-row rows))))

(defun names-in (reader cells order)
  "The names that READER gives of CELLS, each once, as they follow each other in ORDER; then
others."
  (let ((names (remove-duplicates (mapcar reader cells) :test #'string= :from-end t)))
    (append (remove-if-not (lambda (name) (member name names :test #'string=)) order)
            (set-difference names order :test #'string=))))

(defun servers-in (cells)
  "The names of the servers of CELLS."
  (names-in #'cell-server cells (mapcar #'server-name *servers*)))

(defun workloads-in (cells)
  "The names of the workloads of CELLS."
  (names-in #'cell-workload cells (mapcar #'workload-name *workloads*)))

(defun cells-under (workload cells &optional servers)
  "Those of CELLS of WORKLOAD, a name, and of SERVERS, names, unless there are none."
  (remove-if-not (lambda (cell)
                   (and (string= workload (cell-workload cell))
                        (or (null servers)
                            (member (cell-server cell) servers :test #'string=))))
                 cells))

;;; The README's rows

(defparameter *readme-servers*
  '(("ours" . "ours") ("hunchentoot" . "Hunchentoot") ("woo" . "Woo") ("woo-100" . "Woo 100")
    ("go" . "Go") ("nginx" . "nginx"))
  "The servers that the README shows, with short labels, so that no line is too long.")

(defparameter *readme-workloads*
  '(("hello" . "keep-alive") ("close" . "new connections") ("file" . "file of 16 KiB")
    ("wait" . "handler of 1 ms") ("tls" . "TLS"))
  "The workloads that the README shows, with short titles.")

(defun table-cell (cell rivals)
  "What a table says of CELL: its rate, or the latency by which it is compared; bold if it is the
best among RIVALS, with a star if too much failed.  A dash for NIL."
  (if (null cell)
      "-"
      (format nil "~:[~a~;**~a**~]~:[~;*~]" (best-p cell rivals)
              (if (eq :rate (compared-by cell))
                  (amount (value-of cell :rate))
                  (format nil "~a ms" (amount (value-of cell :p99))))
              (failed-p cell))))

(defun cpu-cell (cell rivals)
  "What a table says of the processor time of CELL, in us; a dash for NIL.  RIVALS are not looked
at."
  (declare (ignore rivals))
  (if cell (amount (value-of cell :cpu)) "-"))

(defun write-comparison (stream workloads cells text)
  "Writes a table to STREAM with a row for each server of CELLS and a column for each of WORKLOADS,
names.  TEXT gets a cell, or NIL where there is none, and all cells of its workload."
  (write-table stream (cons "" workloads)
               (loop for server in (servers-in (loop for workload in workloads
                                                     append (cells-under workload cells)))
                     collect (cons (label-of server)
                                   (loop for workload in workloads
                                         for rivals = (cells-under workload cells)
                                         collect (funcall text (find-cell workload server rivals)
                                                          rivals))))))

(defun write-titles (stream workloads)
  "Writes a list to STREAM that says what WORKLOADS, names, are."
  (format stream "~%~{- `~a`: ~a~%~}~%"
          (loop for workload in workloads append (list workload (title-of workload)))))

(defun write-readme-rows (stream cells)
  "Writes the rows of the README, from CELLS, to STREAM."
  (let* ((measured (servers-in cells))
         (servers (remove-if-not (lambda (server) (member (car server) measured :test #'string=))
                                 *readme-servers*))
         (names (mapcar #'car servers))
         (rows (loop for (workload . title) in *readme-workloads*
                     for rivals = (cells-under workload cells names)
                     when (and names rivals)
                       collect (cons title
                                     (loop for name in names
                                           for cell = (find-cell workload name rivals)
                                           collect (table-cell cell rivals))))))
    (if rows
        (write-table stream (cons "" (mapcar #'cdr servers)) rows)
        (format stream "None of them was measured.~%"))))

;;; The report

(defparameter *columns* 5
  "How many workloads a table has at most, so that its lines are not too long.")

(defun write-all (stream cells)
  "Writes tables of all workloads of CELLS to STREAM: of the figures by which servers are compared,
and of processor time."
  (loop for rest = (workloads-in cells) then (nthcdr *columns* rest)
        while rest
        do (let ((workloads (subseq rest 0 (min *columns* (length rest)))))
             (write-titles stream workloads)
             (write-comparison stream workloads cells #'table-cell)
             (format stream "~%Processor time for each answer, in us:~%~%")
             (write-comparison stream workloads cells #'cpu-cell))))

(defun detail-row (cell base)
  "The row of CELL in the table of its workload; ratios are to BASE, another cell or NIL."
  (list (label-of (cell-server cell))
        (format nil "~a~@[ (~{~a to ~a~})~]" (amount (value-of cell :rate))
                (let ((values (values-of cell :rate)))
                  (and (rest values)
                       (list (amount (reduce #'min values)) (amount (reduce #'max values))))))
        (if base (format nil "~,2f" (ratio-of cell base :rate)) "-")
        (amount (value-of cell :p50))
        (amount (value-of cell :p99))
        (amount (value-of cell :cpu))
        (amount (value-of cell :memory))
        (amount (value-of cell :failures))))

(defun write-workload (stream workload cells)
  "Writes what CELLS have of WORKLOAD, a name: its chart and a table."
  (let ((rivals (cells-under workload cells)))
    (format stream "~%### ~a~%~%~:[~*~;![~a](charts/~a.svg)~%~%~]" (title-of workload)
            (probe-file (result-file (format nil "charts/~a.svg" workload)))
            (title-of workload) workload)
    (write-table stream '("" "requests/s" "to ours" "p50, ms" "p99, ms" "CPU, us" "memory, MB"
                          "failures")
                 (loop for server in (servers-in rivals)
                       collect (detail-row (find-cell workload server rivals)
                                           (find-cell workload "ours" rivals))))))

(defun write-head (stream facts)
  "Writes what a reader has to know of the run, from FACTS."
  (destructuring-bind (&key date commit changes processors processor kernel lisp wrk load
                         seconds &allow-other-keys)
      facts
    (format stream "# Benchmark of ~a~%~%~
                    Measured by `make bench` at commit ~a~:[~;, with changes~], on ~d processors~%~
                    (~a), which servers and clients share; Linux ~a,~%~
                    ~a, ~a. Rounds of ~d s.~%~
                    The load of the machine before was ~a.~%~%~
                    Figures are medians of the rounds. Bold: no other server was better in every~%~
                    round. A star: more than one request in a thousand failed. A dash: not~%~
                    measured.~%"
            date commit changes processors processor kernel lisp
            (string-right-trim " " (subseq wrk 0 (or (position #\[ wrk) (length wrk))))
            seconds load)))

(defun write-servers (stream facts)
  "Writes versions and notes of the servers of FACTS."
  (format stream "~%## Servers~%~%")
  (write-table stream '("" "version" "note")
               (loop for (name version) in (getf facts :servers)
                     for server = (find-server name)
                     collect (list (label-of name) version
                                   (or (and server (server-note server)) "")))))

(defun write-report (stream facts cells notes)
  "Writes the report to STREAM."
  (write-head stream facts)
  (format stream "~%## The README's rows~%~%Requests per second.~%~%")
  (write-readme-rows stream cells)
  (format stream "~%## All~%~%Requests per second, or where a table gives ms, the p99 latency.~%")
  (write-all stream cells)
  (format stream "~%## Each workload~%")
  (dolist (workload (workloads-in cells))
    (write-workload stream workload cells))
  (write-servers stream facts)
  (format stream "~%## Left out, and what went wrong~%~%~:[Nothing.~%~;~:*~{- ~a~%~}~]" notes))

(defun report ()
  "Makes the charts and the report of *RESULT*, and prints the README's rows."
  (let ((cells (read-cells))
        (facts (first (read-forms "facts.lisp"))))
    (unless cells
      (unavailable "~a has no figures" (uiop:native-namestring *result*)))
    (handler-case (draw-charts cells)
      (unavailable (condition) (format t "~&There are no charts: ~a.~%" condition)))
    (with-open-file (stream (result-file "report.md") :direction :output :if-exists :supersede)
      (write-report stream facts cells (first (read-forms "notes.lisp"))))
    (format t "~&~%The README's rows, of ~a at commit ~a:~%~%" (getf facts :date)
            (getf facts :commit))
    (write-readme-rows *standard-output* cells)
    (format t "~%The report: ~a~%" (uiop:native-namestring (result-file "report.md")))))
