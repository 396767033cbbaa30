(in-package #:hunchentoot-recycling-taskmaster-benchmark)

;;;; report.md: the words, the tables and the charts of one result.

(defun column-widths (rows)
  "The width of each column of ROWS, lists of strings."
  (apply #'mapcar (lambda (&rest column) (reduce #'max column :key #'length)) rows))

(defun write-markdown-row (stream row widths)
  "Write ROW padded to WIDTHS: the first column to the left, figures to the right."
  (format stream "| ~va |~:{ ~v@a |~}~%" (first widths) (first row)
          (mapcar #'list (rest widths) (rest row))))

(defun write-markdown-table (stream header rows)
  "Write HEADER and ROWS, lists of strings, as a table that reads well in a terminal, too."
  (let ((widths (column-widths (cons header rows))))
    (flet ((dashes (width) (make-string width :initial-element #\-)))
      (write-markdown-row stream header widths)
      (format stream "|-~a-|~{-~a:|~}~%" (dashes (first widths)) (mapcar #'dashes (rest widths)))
      (dolist (row rows)
        (write-markdown-row stream row widths)))))

;;; Figures and ratios

(defun shown-measures ()
  "The measures that the report shows: how many requests there were is of no interest."
  (remove-if (lambda (measure) (member (measure-key measure) '(:requests :counted)))
             *measures*))

(defun measure-heading (measure)
  "MEASURE as the head of a column."
  (let ((unit (measure-unit measure)))
    (cond ((eq (measure-key measure) :rate) unit)
          ((string= unit "") (measure-title measure))
          (t (format nil "~a, ~a" (measure-title measure) unit)))))

(defun count-p (number)
  "Is NUMBER a count, to be written without a fraction?"
  (= number (round number)))

(defun figure-text (number)
  "NUMBER as a field of a table for people; - for none."
  (cond ((null number) "-")
        ((count-p number) (grouped number))
        (t (significant number))))

(defun rate-text (cell)
  "The throughput of CELL with its range over the rounds."
  (let ((rates (values-of cell :rate)))
    (if (rest rates)
        (format nil "~a (~a-~a)" (grouped (median rates))
                (grouped (reduce #'min rates)) (grouped (reduce #'max rates)))
        (figure-text (median rates)))))

(defun cell-text (cell measure)
  "The figure of CELL by MEASURE as a field of a table."
  (if (eq (measure-key measure) :rate)
      (rate-text cell)
      (figure-text (value-of cell (measure-key measure)))))

(defun write-figures (stream cells)
  "Write the table of all figures of CELLS, which are of one workload."
  (let ((measures (measures-with-figures cells (shown-measures))))
    (write-markdown-table stream (cons "server" (mapcar #'measure-heading measures))
                          (loop for cell in cells
                                collect (cons (name-of cell)
                                              (loop for measure in measures
                                                    collect (cell-text cell measure)))))))

(defun ratio-text (cell base key)
  "The figure KEY of CELL per that of BASE, or -."
  (let ((ratio (quotient cell base key)))
    (if ratio (format nil "~,2f" ratio) "-")))

(defun ratios-text (cell bases key)
  "The figure KEY of CELL per that of each of BASES."
  (format nil "~{~a~^ / ~}" (loop for base in bases collect (ratio-text cell base key))))

(defun write-ratios (stream cells)
  "Write the table of the figures of CELLS, which are of one workload, each divided by
that of the limit and by that of Hunchentoot."
  (let ((measures (measures-with-figures cells (compared-measures)))
        (bases (list (limit-among cells) (hunchentoot-among cells))))
    (write-markdown-table
     stream (cons "per limit / per Hunchentoot" (mapcar #'measure-title measures))
     (loop for cell in cells
           collect (cons (name-of cell)
                         (loop for measure in measures
                               collect (ratios-text cell bases (measure-key measure))))))))

;;; The parts of the report

(defun write-head (stream result)
  "Write the title of the report of RESULT, and how it was made."
  (let ((rounds (parse-integer (or (fact "rounds" result) "1"))))
    (format stream "# Benchmark of ~a~%~%" (result-name result))
    (format stream "~d round~:p of ~a s each, after a warm-up of ~a s by the same clients, by wrk (by ~
                    a program of ours where each request has a TLS handshake) on the same ~a ~
                    processors as the servers, which take turns in another order in ~
                    each round. Figures are medians of the rounds~:[~;; least and greatest in ~
                    parentheses~]; failures are added up. A ratio of two servers is always the ~
                    median of the rounds' ratios, not the ratio of the medians. But for files, all ~
                    servers answer with the same four bytes. Latency is the client's; CPU is user ~
                    and system time of the server's processes; threads and memory are taken ~
                    under load. ~:[One round has no spread, so who is better here may be so by ~
                    chance.~;Two servers are called level when not all rounds agree on who is ~
                    better.~]~%"
            rounds (fact "seconds per round" result) (or (fact "seconds of warming up" result) "?")
            (fact "cores" result) (> rounds 1) (> rounds 1)))
  (when (busy-p result)
    (format stream "~%**The machine was busy with other things** (load average ~a before the run), ~
                    so the figures are rough; ratios suffer less, CPU per request least.~%"
            (fact "load average before" result)))
  (terpri stream)
  (write-limits stream result))

(defun write-notes (stream result)
  "Write what is missing from RESULT, and why."
  (format stream "~%## Left out, and what went wrong~%~%")
  (format stream "~:[Nothing.~%~;~:*~{- ~a~%~}~]"
          (loop for (server workload text) in (read-notes result)
                collect (format nil "~{~a: ~}~a" (remove "" (list server workload) :test #'string=)
                                text))))

(defun mishaps (result workload)
  "What went wrong with servers of RESULT under WORKLOAD, a name: sentences."
  (loop for (server where text) in (read-notes result)
        when (string= where workload)
          collect (format nil "~a ~a." (label-of server) text)))

(defun write-losses (stream cells)
  "Write where ours loses among CELLS."
  (format stream "~%## Where ours loses~%~%")
  (loop with none-p = t
        for workload in (workload-names cells)
        for losses = (losses (cells-under workload cells))
        when losses
          do (setf none-p nil)
             (format stream "- ~a: ~{~a~^; ~}.~%" (title-of workload) losses)
        finally (when none-p
                  (format stream "~:[Ours was not measured.~;Nowhere in this run.~]~%"
                          (of-family :ours cells)))))

(defun unbeaten-text (contest measure)
  "Who of CONTEST is best by MEASURE, and who is level with that."
  (let ((best (best contest measure)))
    (if best
        (format nil "~a~@[ (level: ~{~a~^, ~})~]" (name-of best)
                (mapcar #'name-of (remove best (unbeaten contest measure))))
        "-")))

(defun write-wins (stream cells)
  "Write who won each workload of CELLS, in one table."
  (format stream "~%## Who won~%~%The winner is who served everybody and than whom nobody else who did is ~
                  clearly better, be it by throughput (of a burst, by its time) or by CPU per ~
                  request.~%~%")
  (let ((measures (measures-with-figures cells *told-measures*)))
    (write-markdown-table
     stream `("workload" "winner" ,@(mapcar #'measure-title measures))
     (loop for workload in (workload-names cells)
           for these = (cells-under workload cells)
           collect `(,(title-of workload) ,(verdict these)
                     ,@(loop for measure in measures
                             collect (unbeaten-text (contest these) measure)))))))

(defun write-chart (stream result name title)
  "Write the chart NAME, called TITLE, if RESULT has it."
  (let ((file (format nil "charts/~a.svg" name)))
    (when (probe-file (result-file result file))
      (format stream "![~a](~a)~%~%" title file))))

(defun write-scaling (stream result cells)
  "Write the charts of throughput over connections, as far as RESULT has them."
  (let ((scales (scales cells)))
    (when scales
      (format stream "~%## As connections grow~%~%")
      (dolist (scale scales)
        (write-chart stream result (format nil "~a-scaling" (series-name (first scale)))
                     (series-title (first scale)))))))

(defun write-charts-of (stream result workload)
  "Write the charts of WORKLOAD, a name, as far as RESULT has them."
  (dolist (kind '("speed" "all" "latency"))
    (write-chart stream result (format nil "~a-~a" workload kind)
                 (format nil "~a, ~a" (title-of workload) kind))))

(defun write-workload (stream result workload cells)
  "Write the section on WORKLOAD, a name, whose cells are CELLS."
  (format stream "~%## ~a~%~%`~a`~%~%" (capitalized (title-of workload)) workload)
  (format stream "~{- ~a~%~}~%" (append (remove nil (sentences cells))
                                        (mishaps result workload)))
  (write-charts-of stream result workload)
  (write-figures stream cells)
  (terpri stream)
  (write-ratios stream cells))

(defun write-servers (stream result)
  "Write what was measured in RESULT, and on what machine."
  (format stream "~%## Servers~%~%")
  (loop for (nil label nil version parameters note answer libraries) in (read-servers result)
        do (format stream "- **~a**, ~a~:[ (with ~a)~;~*~]: ~a.~:[ ~a~;~*~] Answers `~a`.~%"
                   label version (member libraries '(nil "") :test #'equal) libraries
                   parameters (string= note "") note answer))
  (format stream "~%## Machine~%~%~:{- ~a: ~a~%~}" (read-machine result)))

(defun write-report (result cells)
  "Write report.md of RESULT, whose cells are CELLS; the charts are there already."
  (with-open-file (stream (result-file result "report.md")
                          :direction :output :if-exists :supersede)
    (write-head stream result)
    (write-coverage stream result)
    (write-notes stream result)
    (write-wins stream cells)
    (write-losses stream cells)
    (write-scaling stream result cells)
    (dolist (workload (workload-names cells))
      (write-workload stream result workload (cells-under workload cells)))
    (write-servers stream result)))
