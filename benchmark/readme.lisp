(in-package #:hunchentoot-recycling-taskmaster-benchmark)

;;;; The performance sections of the README, a few rows, and of docs/guide/performance.md, all of them,
;;;; made from one result of the standard or the full run.

(defparameter *section-begin* "<!-- performance:begin -->"
  "The line of a document after which the section begins.")

(defparameter *section-end* "<!-- performance:end -->"
  "The line of a document before which the section ends.")

;;; What the README shows: the figures that most readers ask for

(defparameter *readme-servers* '("ours" "hunchentoot" "woo-cores" "woo-100" "go" "nginx")
  "The names of the servers that the README shows.")

(defparameter *readme-workloads*
  '("keep-0ms-100" "close-0ms-100" "file16k-0ms-50" "keep-1ms-100" "tls-keep-0ms-100")
  "The names of the workloads that the README shows.")

(defun readme-cell (cell fastest)
  "Text for CELL in the README, or for NIL: its requests/s, bold if it is one of the cells FASTEST."
  (cond ((null (and cell (value-of cell :rate))) "-")
        ((member cell fastest) (format nil "**~a**" (grouped (value-of cell :rate))))
        (t (grouped (value-of cell :rate)))))

(defun readme-row (workload cells)
  "The row of the README's table for WORKLOAD, a name, made from CELLS."
  (let* ((these (cells-of *readme-servers* (list workload) cells))
         (fastest (unbeaten (contest these) (find-measure :rate))))
    (cons (title-of workload)
          (loop for server in *readme-servers*
                collect (readme-cell (find-cell these server workload) fastest)))))

(defun write-readme-section (stream result cells)
  "Write the README's section for RESULT, whose cells are CELLS."
  (format stream "~%Requests per second. Bold: no other server is clearly faster.~%~%")
  (write-markdown-table stream (cons "" (mapcar #'label-of *readme-servers*))
                        (loop for workload in *readme-workloads*
                              when (member workload (workload-names cells) :test #'string=)
                                collect (readme-row workload cells)))
  (format stream "~%A dash: not measured. Woo runs handlers in its event loops, so one that waits holds up ~
                  others.~%Measured on ~a at commit ~a on ~a processors, which servers and clients ~
                  share~:[~;,~%while the machine was busy with other things~].~%`make bench` measures ~
                  again. [Performance](docs/guide/performance.md) has processor time,~%more servers and ~
                  workloads, and where we lose.~%~%"
          (subseq (result-name result) 0 10) (fact "commit" result) (fact "cores" result)
          (busy-p result)))

;;; What the page shows: two tables, of servers in general and of those that serve Clack's applications

(defun shown-server-p (name)
  "Is the server called NAME one of the standard run, but not the limit, which is the unit, nor a part
of ours?"
  (and (not (member (family-of name) '(:limit :part)))
       (member :standard (rival-sets (find-rival name)))))

(defun for-clack-p (name)
  "Is the server called NAME in the standard run for Clack's workloads only?"
  (and (rival-standard-workloads (find-rival name)) t))

(defun page-servers (cells)
  "The names of the servers of CELLS that the first table shows."
  (remove-if (lambda (name) (or (not (shown-server-p name)) (for-clack-p name)))
             (servers-among cells)))

(defparameter *clack-peers* '("nginx" "go")
  "The names of servers to which those that serve Clack's applications are compared.")

(defun clack-servers (cells)
  "The names of the servers of CELLS that the table of Clack shows; none where nobody serves Clack's
applications."
  (let ((names (remove-if-not #'shown-server-p (servers-among cells))))
    (and (some #'for-clack-p names)
         (remove-if-not (lambda (name)
                          (or (for-clack-p name) (member name *clack-peers* :test #'string=)))
                        names))))

(defun page-workloads (cells)
  "The names of the workloads of CELLS that the first table shows: those of the standard run."
  (remove-if-not (lambda (name) (member name *standard-workloads* :test #'string=))
                 (workload-names cells)))

(defun clack-workloads (cells)
  "The names of the workloads of CELLS that the table of Clack shows."
  (remove-if-not (lambda (name) (member name *clack-workloads* :test #'string=))
                 (workload-names cells)))

(defun cells-of (servers workloads cells)
  "Those of CELLS whose server is one of SERVERS, and whose workload one of WORKLOADS, names."
  (remove-if-not (lambda (cell)
                   (and (member (cell-server cell) servers :test #'string=)
                        (member (cell-workload cell) workloads :test #'string=)))
                 cells))

;;; Footnotes: caveats that several cells share have one mark

(defun page-caveats (cells)
  "The caveats of CELLS, each once, in the order of their servers."
  (remove-duplicates (loop for server in (servers-among cells)
                           append (loop for cell in cells
                                        for caveat = (and (equal server (cell-server cell))
                                                          (cell-caveat cell))
                                        when caveat
                                          collect (format nil "~a: ~a" (name-of cell) caveat)))
                     :test #'string= :from-end t))

(defun caveat-mark (cell caveats)
  "The mark of the footnote on CELL, which is one of CAVEATS, or the empty string."
  (let ((caveat (cell-caveat cell)))
    (if caveat
        (format nil "<sup>~d</sup>"
                (1+ (position (format nil "~a: ~a" (name-of cell) caveat) caveats
                              :test #'string=)))
        "")))

;;; The table

(defun limit-cell (limit)
  "What the page's table says of LIMIT, the cell by which the others are divided, or NIL."
  (if (and limit (value-of limit :rate))
      (format nil "~a/s<br>~a" (grouped (value-of limit :rate))
              (quantity limit (find-measure :cpu)))
      "-"))

(defun throughput-text (cell limit)
  "The throughput of CELL as a part of that of LIMIT, another cell; in requests/s if that is NIL."
  (if (and (null limit) (value-of cell :rate))
      (format nil "~a/s" (grouped (value-of cell :rate)))
      (ratio-text cell limit :rate)))

(defun page-cell (cell limit winners caveats)
  "What the page's table says of CELL: its throughput, as a part of that of LIMIT if that is
another cell and not NIL, and below its CPU per request; bold if it is one of WINNERS.  CAVEATS are
the footnotes."
  (if (null cell)
      "-"
      (let ((mark (if (member cell winners) "**" "")))
        (format nil "~a~a~a~:[~;*~]~a<br>~a" mark (throughput-text cell limit) mark
                (disqualification cell) (caveat-mark cell caveats)
                (if (value-of cell :cpu)
                    (quantity cell (find-measure :cpu))
                    "-")))))

(defun page-row (workload servers cells caveats)
  "The row of a table of the page for WORKLOAD, a name, with what CELLS have of each of SERVERS.  Who
wins there wins among these."
  (let* ((these (cells-under workload cells))
         (limit (limit-among these))
         (winners (winners (cells-of servers (list workload) these))))
    (list* (title-of workload)
           (limit-cell limit)
           (loop for server in servers
                 collect (page-cell (find-cell these server workload) limit winners caveats)))))

(defun write-page-table (stream servers workloads cells)
  "Write a table of what CELLS have of SERVERS under WORKLOADS, names, and its footnotes."
  (let ((caveats (page-caveats (cells-of servers workloads cells))))
    (write-markdown-table stream (list* "" "limit" (mapcar #'label-of servers))
                          (loop for workload in workloads
                                collect (page-row workload servers cells caveats)))
    (format stream "~%")
    (loop for caveat in caveats
          for number from 1
          do (format stream "<sup>~d</sup> ~a.~%~%" number caveat))))

(defun write-clack-table (stream cells)
  "Write the table of who serves Clack's applications, if CELLS have any."
  (let ((servers (clack-servers cells)))
    (when servers
      (format stream "## Through Clack~%~%The same application of Clack's by each handler; beside them ~
                      servers of other kinds. Figures as above.~%~%")
      (write-page-table stream servers (clack-workloads cells) cells))))

;;; What it was measured with

(defun version-number (text)
  "The first word of TEXT that looks like a version, from its first digit on: 1.22.1 of
\"nginx version: nginx/1.22.1\".  TEXT itself if there is none."
  (flet ((part-p (character)
           (or (digit-char-p character) (char= character #\.))))
    (loop for start = (position-if #'digit-char-p text)
            then (position-if #'digit-char-p text :start end)
          while start
          for end = (or (position-if-not #'part-p text :start start) (length text))
          when (find #\. text :start start :end end)
            return (string-right-trim "." (subseq text start end))
          finally (return text))))

(defun versions (result names)
  "The servers called NAMES with their versions in RESULT, those of one program once: strings."
  (let ((known (read-servers result)))
    (remove-duplicates
     (loop for name in names
           for (nil label nil version) = (assoc name known :test #'string=)
           when version
             collect (format nil "~a ~a" (subseq label 0 (position #\, label))
                             (version-number version)))
     :test #'string= :from-end t)))

(defun write-circumstances (stream result cells)
  "Write what RESULT was measured with and how, and what is missing from its CELLS."
  (format stream "Measured on ~a by `~a` at commit ~a: ~a rounds of ~a s, in another order each, on ~a ~
                  processors (~a) that servers and clients share~:[~;, **while the machine was busy ~
                  with other things**~]. It covers ~d of the ~d servers and ~d of the ~d workloads ~
                  that the benchmark knows; the report names the others.~@[ Not found here: ~
                  ~{~a~^, ~}.~] ~{~a~^, ~}; ~a, Linux ~a, wrk ~a.~%~%"
          (subseq (result-name result) 0 10) (fact "command" result) (fact "commit" result)
          (fact "rounds" result) (fact "seconds per round" result) (fact "cores" result)
          (fact "processor" result) (busy-p result)
          (length (servers-among cells)) (length *rivals*)
          (length (page-workloads cells)) (length *workloads*)
          (mapcar #'label-of (left-out result))
          (versions result (remove-duplicates (append (page-servers cells) (clack-servers cells))
                                              :test #'string= :from-end t))
          (fact "Lisp" result) (version-number (or (fact "kernel" result) "?"))
          (version-number (or (fact "load tool" result) "?"))))

;;; The section

(defun relative-name (result file)
  "The name of FILE in the directory RESULT, as seen from docs/guide/."
  (format nil "../../benchmark/results/~a/~a" (result-name result) file))

(defun write-page-charts (stream result)
  "Write the charts of RESULT that the page shows: those of the quick run's workloads."
  (dolist (workload *quick-workloads*)
    (let ((file (format nil "charts/~a-speed.svg" workload)))
      (when (probe-file (result-file result file))
        (format stream "![~a](~a)~%" (title-of workload) (relative-name result file))))))

(defun write-page-section (stream result cells)
  "Write the page's section for RESULT, whose cells are CELLS."
  (format stream "~%Throughput as a part of what the machine gives (the limit: a C program with a ~
                  fixed answer, which uses all that our engine uses; it has no TLS, so throughput ~
                  itself stands there), and below it CPU time per request. Bold: nobody is clearly ~
                  better, by throughput or by CPU. A star: some clients were refused or not served. ~
                  A dash: it cannot do that.~%~%")
  (write-page-table stream (page-servers cells) (page-workloads cells) cells)
  (write-clack-table stream cells)
  (write-circumstances stream result cells)
  (write-limits stream result)
  (terpri stream)
  (write-page-charts stream result)
  (format stream "~%Latency, memory, fairness, who won what and where we lose: ~
                  [the whole report](~a). `make bench` makes it on your machine.~%~%"
          (relative-name result "report.md")))

(defun check-publishable (result)
  "A MISTAKE unless RESULT is of a run that the README may show: one of all that the standard run
has, to its end."
  (unless (member (set-of result) '("standard" "full") :test #'equal)
    (mistake "The README shows a standard run, as make bench makes it without SERVERS, WORKLOADS and ~
              such; this is ~:[one of which that was not recorded~;~:*a run called ~a~]."
             (set-of result)))
  (unless (finished-p result)
    (mistake "The run of ~a did not end by itself, so the README can't show it."
             (result-name result))))

(defun replace-section (text section)
  "TEXT with what is between the two marker lines replaced by SECTION.  An error when
TEXT has no such lines."
  (let* ((begin (search *section-begin* text))
         (end (search *section-end* text)))
    (unless (and begin end (< begin end))
      (mistake "The document needs two lines to put the section between:~%~a~%~a"
             *section-begin* *section-end*))
    (format nil "~a~%~a~a" (subseq text 0 (+ begin (length *section-begin*)))
            section (subseq text end))))

(defun update-section (file section)
  "Put SECTION, a string, between the two marker lines of FILE."
  (let ((text (replace-section (uiop:read-file-string file) section)))
    (with-open-file (stream file :direction :output :if-exists :supersede)
      (write-string text stream))))

(defun update-documents (result readme page)
  "Rewrite the performance sections of the files README and PAGE, docs/guide/performance.md, from the
directory RESULT.  A MISTAKE if that is of another run than a whole standard or full one."
  (check-publishable result)
  (let ((cells (summarize (read-samples result))))
    (update-section readme (with-output-to-string (stream)
                             (write-readme-section stream result cells)))
    (update-section page (with-output-to-string (stream)
                           (write-page-section stream result cells)))))
