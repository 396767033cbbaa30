(in-package #:hunchentoot-recycling-taskmaster-benchmark)

;;;; Charts of throughput over the number of connections: who holds as they grow.

(defun scales (cells)
  "The known workloads of CELLS, in lists of those that differ in connections only, in
the order of connections; lists of one or two, which make no curve, are left out."
  (let ((workloads (remove nil (mapcar #'find-workload (workload-names cells)))))
    (loop for name in (remove-duplicates (mapcar #'series-name workloads)
                                         :test #'string= :from-end t)
          for scale = (remove name workloads :key #'series-name :test-not #'string=)
          when (> (length scale) 2)
            collect (sort scale #'< :key #'workload-connections))))

(defun scale-points (server scale cells)
  "For each workload of SCALE in which SERVER, a name, has a throughput among CELLS, its
connections and that throughput."
  (loop for workload in scale
        for rate = (value-of (find-cell cells server (workload-name workload)) :rate)
        when rate
          collect (list (workload-connections workload) rate)))

(defun servers-among (cells)
  "The names of all servers of CELLS, each once, in the order of *RIVALS*."
  (remove-duplicates (loop for rival in *rivals*
                           for name = (rival-name rival)
                           when (find name cells :key #'cell-server :test #'string=)
                             collect name)
                     :test #'string=))

(defun write-scale-data (stream number points)
  "Write to STREAM the data block NUMBER of POINTS, lists of connections and throughput."
  (format stream "$data~d << END~%~:{~d ~a~%~}END~%" number
          (loop for (connections rate) in points
                collect (list connections (plain (max 1 rate))))))

(defun write-scale-axes (stream scale)
  "Write to STREAM the axes of the chart of SCALE."
  (let ((connections (mapcar #'workload-connections scale)))
    (format stream "set logscale xy~%~
                    set xlabel 'connections, logarithmic' textcolor '#424242'~%~
                    set ylabel 'requests/s, logarithmic' textcolor '#424242'~%~
                    set format y '%g'~%set xtics (~{~d~^, ~})~%set xrange [~d:~d]~%~
                    set grid lc '#e0e0e0' lt 1~%set key outside right noenhanced~%"
            connections (* 0.8 (reduce #'min connections)) (* 1.25 (reduce #'max connections)))))

(defun scale-curve (server number)
  "How gnuplot draws the data block NUMBER of SERVER, a name."
  (format nil "$data~d using 1:2 with linespoints lw 2 pt 7 ps 0.7 lc rgb '~a' title ~a"
          number (color-of server) (gnuplot-string (label-of server))))

(defun write-scale (file stream scale cells)
  "Write to STREAM the script of a chart of SCALE for CELLS; the picture goes to FILE."
  (write-canvas stream file 400)
  (write-title stream (find-measure :rate) (series-title (first scale)))
  (write-scale-axes stream scale)
  (loop for server in (servers-among cells)
        for number from 1
        for points = (scale-points server scale cells)
        when points
          do (write-scale-data stream number points)
          and collect (scale-curve server number) into curves
        finally (format stream "plot ~{~a~^, \\~%  ~}~%" curves)))

(defun draw-scales (result cells)
  "Draw the charts of throughput over connections of RESULT."
  (dolist (scale (scales cells))
    (draw result (format nil "~a-scaling" (series-name (first scale)))
          (lambda (file stream)
            (write-scale file stream scale cells)))))

(defun draw-charts (result cells)
  "Draw all charts of RESULT.  UNAVAILABLE without gnuplot."
  (draw-scales result cells)
  (dolist (workload (workload-names cells))
    (let ((these (cells-under workload cells)))
      (draw-bars result workload these "speed" (list (find-measure :rate) (find-measure :cpu)))
      (draw-bars result workload these "all" (list (find-measure :all)))
      (draw-latencies result workload these))))
