(in-package #:hunchentoot-recycling-taskmaster-benchmark)

;;;; Charts by gnuplot.  Each shows one workload; a server has a row of its own
;;;; with its name beside it, so nothing has to be looked up in a legend, and one
;;;; colour in all charts.

(defparameter *chart-width* 860
  "Pixels.")

(defparameter *row-height* 34
  "Pixels for each server.")

(defun color-number (name)
  "The colour of the server called NAME as the integer that gnuplot wants in data."
  (parse-integer (color-of name) :start 1 :radix 16))

(defun row-label (cell)
  "What the row of CELL is called; a star if it is out of the contest."
  (format nil "~a~:[~; *~]" (label-of (cell-server cell)) (disqualification cell)))

(defun footnote (cells)
  "What the star means, if there is one among CELLS, to be put after the unit."
  (if (some #'disqualification cells)
      "        * some clients were refused or not served"
      ""))

(defun direction-text (measure)
  "Which way is better by MEASURE, for a title."
  (ecase (measure-better measure)
    (:higher "higher is better")
    (:lower "lower is better")))

(defun gnuplot-string (text)
  "TEXT between quotes that gnuplot takes literally."
  (format nil "'~a'" (uiop:frob-substrings text '("'") "''")))

(defun plain (number)
  "NUMBER as data for gnuplot."
  (format nil "~,4f" number))

(defun write-canvas (stream file height measure subtitle)
  "Write to STREAM what every chart begins with: the picture FILE of HEIGHT pixels, and
that it shows MEASURE of what SUBTITLE says."
  (format stream "set encoding utf8~%~
                  set terminal svg size ~d,~d font 'DejaVu Sans,13' background '#ffffff'~%~
                  set output ~a~%~
                  set title \"{/:Bold ~a}  (~a)\\n{/*0.9 ~a}\"~%~
                  set border 3 lc '#9e9e9e'~%~
                  set tics nomirror textcolor '#424242'~%"
          *chart-width* height (gnuplot-string (uiop:native-namestring file))
          (capitalized (measure-title measure)) (direction-text measure) subtitle))

(defun write-rows (stream file measure workload cells room)
  "Write to STREAM what a chart with rows begins with: the picture FILE; what it shows,
MEASURE of the WORKLOAD, a name; a row for each of CELLS from the top down; ROOM pixels
below for a legend."
  (let ((count (length cells)))
    (write-canvas stream file (+ 110 room (* *row-height* count)) measure (title-of workload))
    (format stream "set yrange [0.4:~d.6]~%~
                    set ytics scale 0 textcolor '#212121' (~{~a ~d~^, ~})~%~
                    set grid xtics lc '#e0e0e0' lt 1~%unset key~%"
            count
            (loop for cell in cells
                  for row downfrom count
                  collect (gnuplot-string (row-label cell))
                  collect row))))

(defun run-gnuplot (script file)
  "Let gnuplot draw what the file SCRIPT says into FILE.  UNAVAILABLE, with what it said,
if there is no picture then; mere warnings don't matter."
  (uiop:delete-file-if-exists file)
  (let ((said (output-of (list (find-program "gnuplot") script))))
    (unless (probe-file file)
      (unavailable "gnuplot drew nothing for ~a and said: ~a" (file-namestring script) said))))

(defun draw (result name writer)
  "Make the chart NAME of RESULT: WRITER is called with the picture's file and a
stream for gnuplot's script, which is kept beside the picture.  Return the file."
  (let ((file (result-file result (format nil "charts/~a.svg" name)))
        (script (result-file result (format nil "charts/~a.gnuplot" name))))
    (ensure-directories-exist file)
    (with-open-file (stream script :direction :output :if-exists :supersede)
      (funcall writer file stream))
    (run-gnuplot script file)
    file))

;;; Bars: one figure, its range over the rounds, its value in words

(defun write-bar-data (stream cells key)
  "Write to STREAM a block of data: row, median, least, most, colour and label of the
figure KEY for each of CELLS."
  (format stream "$data << END~%")
  (loop for cell in cells
        for row downfrom (length cells)
        do (format stream "~d ~a ~a ~a ~d \"~a\"~%" row
                   (plain (value-of cell key)) (plain (lowest-of cell key))
                   (plain (highest-of cell key)) (color-number (cell-server cell))
                   (significant (value-of cell key))))
  (format stream "END~%"))

(defun write-bars (file stream workload cells measure)
  "Write to STREAM the script of a bar chart of MEASURE for CELLS, which are of the
WORKLOAD called so; the picture goes to FILE."
  (let* ((key (measure-key measure))
         (most (reduce #'max cells :key (lambda (cell) (highest-of cell key)))))
    (write-rows stream file measure workload cells 0)
    (format stream "set xlabel '~a~a' textcolor '#424242'~%"
            (measure-unit measure) (footnote cells))
    ;; Room on the right for the label of the longest bar.
    (format stream "set xrange [0:~a]~%set format x '~a'~%"
            (plain (* 1.15 most)) (if (> most 1000) "%.0s %c" "%g"))
    (write-bar-data stream cells key)
    (format stream "plot $data using (0):1:(0):2:($1-0.33):($1+0.33):5 with boxxyerror ~
                    fs solid noborder lc rgb variable, \\
  $data using ($3<$4?$2:NaN):1:3:4 with xerrorbars pt -1 lw 1.2 lc '#212121', \\
  $data using 4:1:6 with labels left offset 0.8,0 font ',12' noenhanced~%")))

(defun draw-bars (result workload cells measure)
  "Draw MEASURE for those of CELLS, all under WORKLOAD, a name, that have it.  Return
the file, or NIL when none has."
  (let ((cells (remove-if-not (lambda (cell) (values-of cell (measure-key measure))) cells)))
    (when cells
      (draw result (format nil "~a-~a" workload (string-downcase (measure-key measure)))
            (lambda (file stream)
              (write-bars file stream workload cells measure))))))

;;; Latency: from the median to the worst, on a logarithmic scale

(defparameter *percentile-marks*
  '((:p50 7 0.9) (:p90 9 0.8) (:p99 13 1.1) (:p999 5 0.7) (:max 2 0.8))
  "For each percentile its point type and point size in gnuplot.")

(defparameter *latency* (make-measure :latency "latency" "latency" "ms" :lower)
  "All percentiles together, as a chart shows them.")

(defun write-latency-data (stream cells)
  "Write to STREAM a block of data: row, the percentiles from p50 to max in ms, colour
and label for each of CELLS."
  (format stream "$data << END~%")
  (loop for cell in cells
        for row downfrom (length cells)
        do (format stream "~d ~{~a ~}~d \"p99 ~a ms\"~%" row
                   (loop for (key) in *percentile-marks*
                         ;; A logarithmic scale has no zero.
                         collect (plain (max 0.001 (value-of cell key))))
                   (color-number (cell-server cell))
                   (significant (value-of cell :p99))))
  (format stream "END~%"))

(defun write-latencies (file stream workload cells)
  "Write to STREAM the script of a chart of the latencies of CELLS, which are of the
WORKLOAD called so; the picture goes to FILE."
  (flet ((extreme (least-or-most key)
           (reduce least-or-most cells :key (lambda (cell) (value-of cell key)))))
    (write-rows stream file *latency* workload cells 30)
    (format stream "set xlabel 'ms, logarithmic~a' textcolor '#424242'~%set logscale x~%~
                    set format x '%g'~%~
                    set key below center horizontal samplen 1 width 3 height 0.6~%"
            (footnote cells))
    ;; Room on the right for the label of the longest row.
    (format stream "set xrange [~a:~a]~%" (plain (* 0.7 (max 0.001 (extreme #'min :p50))))
            (plain (* 3 (extreme #'max :max)))))
  (write-latency-data stream cells)
  (format stream "plot $data using 2:1:2:6:7 with xerrorbars pt -1 lw 2 lc rgb variable notitle, \\
  $data using 6:1:8 with labels left offset 1.2,0 font ',12' notitle")
  (loop for (key type size) in *percentile-marks*
        for column from 2
        do (format stream ", \\~%  $data using ~d:1:7 with points pt ~d ps ~a ~
                           lc rgb variable notitle, \\~%  NaN with points pt ~d ps ~a lc '#616161' title '~a'"
                   column type size type size (measure-title (find-measure key))))
  (terpri stream))

(defun draw-latencies (result workload cells)
  "Draw the latencies of those of CELLS, all under WORKLOAD, a name, that answered.
Return the file, or NIL when none did."
  (let ((cells (remove-if-not (lambda (cell) (values-of cell :p50)) cells)))
    (when cells
      (draw result (format nil "~a-latency" workload)
            (lambda (file stream)
              (write-latencies file stream workload cells))))))
