(in-package #:recycling-benchmark)

;;;; Charts by gnuplot: bars of requests/s, or of latency, a panel for each workload.

(defun chart-value (cell)
  "What the bar of CELL shows."
  (value-of cell (compared-by cell)))

(defun write-panel (stream number title cells)
  "Writes to STREAM the commands of gnuplot for a panel with a bar for each of CELLS.  NUMBER
tells the panels of a chart apart."
  (format stream "$data~d << END~%" number)
  (loop for cell in cells
        for row from 0
        for server = (find-server (cell-server cell))
        do (format stream "~d ~f ~d \"~a\" \"~a\"~%" row (chart-value cell)
                   (parse-integer (if server (server-color server) "#757575") :start 1 :radix 16)
                   (label-of (cell-server cell)) (amount (chart-value cell))))
  (format stream "END~%set title \"~a\"~%set yrange [~d.5:-0.5]~%set xrange [0:~f]~%~
                  plot $data~d using 2:1:(0):2:($1-0.38):($1+0.38):3:ytic(4) with boxxyerror ~
                  linecolor rgb variable, ~
                  $data~d using 2:1:5 with labels left offset 0.5,0~%"
          title (1- (length cells))
          (* 1.15 (max 1 (reduce #'max cells :key #'chart-value)))
          number number))

(defun draw (name panels)
  "Draws the chart NAME with PANELS, each a list of a title and of cells."
  (let ((script (result-file (format nil "charts/~a.gnuplot" name)))
        (picture (result-file (format nil "charts/~a.svg" name))))
    (with-open-file (stream script :direction :output :if-exists :supersede)
      (format stream "set terminal svg size 720,~d font \"sans-serif,11\" ~
                      background rgb \"white\"~%set output ~s~%~
                      set style fill solid~%unset key~%set border 0~%unset xtics~%~
                      set ytics nomirror scale 0~%set lmargin 22~%set rmargin 2~%~
                      set multiplot layout ~d,1~%"
              (loop for (nil cells) in panels sum (+ 50 (* 24 (length cells))))
              (uiop:native-namestring picture) (length panels))
      (loop for (title cells) in panels
            for number from 0
            do (write-panel stream number title cells)))
    (run-or-be-unavailable "gnuplot failed" (find-program "gnuplot" "gnuplot-nox") script)))

(defun in-order (cells)
  "CELLS of one workload in the order of servers."
  (loop for server in (servers-in cells)
        collect (find server cells :key #'cell-server :test #'string=)))

(defun panel (workload cells)
  "The panel of WORKLOAD, a name, with CELLS."
  (list (format nil "~a: ~:[p99 latency in ms~;requests/s~]" (title-of workload)
                (eq :rate (compared-by (first cells))))
        (in-order cells)))

(defun draw-charts (cells)
  "Draws a chart for each workload of CELLS, and one with the README's rows."
  (dolist (workload (workloads-in cells))
    (draw workload (list (panel workload (cells-under workload cells)))))
  (let ((panels (loop with servers = (mapcar #'car *readme-servers*)
                      for (workload) in *readme-workloads*
                      for those = (cells-under workload cells servers)
                      when those collect (panel workload those))))
    (when panels (draw "readme" panels))))
