(in-package #:hunchentoot-recycling-taskmaster-benchmark)

;;;; Charts by gnuplot.  Each shows one workload; a server has a row of its own
;;;; with its name beside it, so nothing has to be looked up in a legend, and one
;;;; colour in all charts.

(defparameter *chart-width* 860
  "Pixels.")

(defparameter *row-height* 34
  "Pixels for each server.")

(defparameter *footnote-height* 22
  "Pixels for each footnote.")

(defun color-number (name)
  "The colour of the server called NAME as the integer that gnuplot wants in data."
  (parse-integer (color-of name) :start 1 :radix 16))

(defparameter *dagger* (string (code-char 8224))
  "What marks a server whose figures don't mean what they seem to.")

(defun row-label (cell)
  "What the row of CELL is called; a star if it is out of the contest, a dagger if there is a
caveat."
  (format nil "~a~:[~; *~]~:[~; ~a~]" (label-of (cell-server cell)) (disqualification cell)
          (cell-caveat cell) *dagger*))

(defun footnotes (cells)
  "What the marks in the labels of CELLS mean, as far as there are some: lines."
  (append (when (some #'disqualification cells)
            (list "* out of the contest: some clients were refused or not served"))
          (when (some #'cell-caveat cells)
            (list (format nil "~a does not measure what the others do: see the report" *dagger*)))))

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

(defun write-canvas (stream file height)
  "Write to STREAM what every chart begins with: the picture FILE of HEIGHT pixels."
  (format stream "set encoding utf8~%~
                  set terminal svg size ~d,~d font 'DejaVu Sans,13' background '#ffffff'~%~
                  set output ~a~%~
                  set border 3 lc '#9e9e9e'~%~
                  set tics nomirror textcolor '#424242'~%"
          *chart-width* height (gnuplot-string (uiop:native-namestring file))))

(defun write-title (stream measure &optional subtitle)
  "Write to STREAM the title of a chart of MEASURE, of what SUBTITLE says."
  (format stream "set title \"{/:Bold ~a}  (~a)~@[\\n{/*0.9 ~a}~]\"~%"
          (capitalized (measure-title measure)) (direction-text measure) subtitle))

(defun write-rows (stream file cells &key (legend 0))
  "Write to STREAM what a chart with rows begins with: the picture FILE, a row for each of CELLS
from the top down, and below them LEGEND pixels, the middle of which is returned as a part of the
height, and footnotes."
  (let* ((count (length cells))
         (notes (footnotes cells))
         (notes-height (* *footnote-height* (length notes)))
         (height (+ 122 legend (* *row-height* count) notes-height)))
    (flet ((part (pixels)
             (/ pixels height)))
      (write-canvas stream file height)
      (loop for note in notes
            for line downfrom (length notes)
            do (format stream "set label ~d ~a at screen 0.02,~,4f left font ',12' ~
                               textcolor '#424242'~%"
                       line (gnuplot-string note) (part (* *footnote-height* (- line 1/2)))))
      (format stream "set bmargin at screen ~,4f~%~
                      set tmargin at screen ~,4f~%~
                      set yrange [0.4:~d.6]~%~
                      set grid xtics lc '#e0e0e0' lt 1~%unset key~%"
              (part (+ 54 legend notes-height)) (part (- height 62)) count)
      (part (+ notes-height (/ legend 2) 4)))))

(defun write-row-labels (stream cells)
  "Write to STREAM the labels of the rows of CELLS."
  (format stream "set ytics scale 0 textcolor '#212121' (~{~a ~d~^, ~})~%"
          (loop for cell in cells
                for row downfrom (length cells)
                collect (gnuplot-string (row-label cell))
                collect row)))

(defun run-gnuplot (script file)
  "Let gnuplot draw what the file SCRIPT says into FILE.  UNAVAILABLE, with what it said,
if it fails; mere warnings don't matter."
  (uiop:delete-file-if-exists file)
  (multiple-value-bind (said nothing status)
      (uiop:run-program (native-words (list (find-program "gnuplot") script))
                        :output :string :error-output :output :ignore-error-status t)
    (declare (ignore nothing))
    ;; After a mistake in the script there is a picture, but only half of one.
    (unless (and (eql status 0) (probe-file file))
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

;;; Bars: a figure, its range over the rounds, its value in words; one panel for each figure

(defun write-bar-data (stream cells key)
  "Write to STREAM a block of data: row, median, least, most, colour and label of the
figure KEY for each of CELLS that has it."
  (format stream "$~(~a~) << END~%" key)
  (loop for cell in cells
        for row downfrom (length cells)
        when (values-of cell key)
          do (format stream "~d ~a ~a ~a ~d \"~a\"~%" row
                     (plain (value-of cell key)) (plain (lowest-of cell key))
                     (plain (highest-of cell key)) (color-number (cell-server cell))
                     (significant (value-of cell key))))
  (format stream "END~%"))

(defun tick-step (most)
  "The distance of the ticks on an axis whose longest bar is MOST: 1, 2 or 5 times a power of ten,
for six ticks at most."
  (loop with power = (expt 10 (floor (log (max most 0.001) 10)))
        for factor in '(1/5 1/2 1 2 5)
        for step = (* factor power)
        when (<= (* 1.25 most) (* 6 step))
          return step))

(defun write-panel (stream cells measure left right)
  "Write to STREAM the bars of MEASURE for CELLS, between LEFT and RIGHT, parts of the width."
  (let* ((key (measure-key measure))
         (most (reduce #'max (with-figure measure cells)
                       :key (lambda (cell) (highest-of cell key)))))
    (format stream "set lmargin at screen ~,3f~%set rmargin at screen ~,3f~%" left right)
    (write-title stream measure)
    (format stream "set xlabel '~a' textcolor '#424242'~%" (measure-unit measure))
    ;; Room on the right for the label of the longest bar.
    (format stream "set xrange [0:~a]~%set format x '~a'~%set xtics autofreq ~a~%"
            (plain (max 0.001 (* 1.25 most))) (if (> most 999999) "%.0s %c" "%g")
            (plain (tick-step most)))
    (format stream "plot $~(~a~) using (0):1:(0):2:($1-0.33):($1+0.33):5 with boxxyerror ~
                    fs solid noborder lc rgb variable, \\
  $~:*~(~a~) using ($3<$4?$2:NaN):1:3:4 with xerrorbars pt -1 lw 1.2 lc '#212121', \\
  $~:*~(~a~) using 4:1:6 with labels left offset 0.8,0 font ',12' noenhanced~%" key)))

(defun write-bars (file stream workload cells measures)
  "Write to STREAM the script of a bar chart of MEASURES for CELLS, which are of the
WORKLOAD called so; the picture goes to FILE."
  (write-rows stream file cells)
  (dolist (measure measures)
    (write-bar-data stream cells (measure-key measure)))
  (format stream "set multiplot title ~a font ',14' offset 0,0.3~%"
          (gnuplot-string (title-of workload)))
  (loop with labels = 0.21
        with width = (/ (- 1 labels) (length measures))
        for measure in measures
        for left = labels then (+ left width)
        do (if (= left labels)
               (write-row-labels stream cells)
               (format stream "unset ytics~%unset label~%"))
           (write-panel stream cells measure (+ left 0.01) (+ left width -0.02)))
  (format stream "unset multiplot~%"))

(defun draw-bars (result workload cells name measures)
  "Draw MEASURES for those of CELLS, all under WORKLOAD, a name, that have the first of them; the
chart is called NAME.  Return the file, or NIL when no cell has it."
  (let ((cells (with-figure (first measures) cells)))
    (when cells
      (draw result (format nil "~a-~a" workload name)
            (lambda (file stream)
              (write-bars file stream workload cells (measures-with-figures cells measures)))))))

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
    (let ((legend (write-rows stream file cells :legend 36)))
      (format stream "set key at screen 0.55,~,4f center center horizontal samplen 1 width 3~%"
              legend))
    (write-row-labels stream cells)
    (write-title stream *latency* (title-of workload))
    (format stream "set xlabel 'ms, logarithmic' textcolor '#424242'~%set logscale x~%~
                    set format x '%g'~%")
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
