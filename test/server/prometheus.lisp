(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite prometheus :in all
  :description "Statistics as metrics.")

(in-suite prometheus)

(defun metric-lines (text name)
  "The lines of TEXT, metrics, that are samples of NAME."
  (remove-if-not (lambda (line)
                   (uiop:string-prefix-p (format nil "~A{" name) line))
                 (uiop:split-string text :separator '(#\Newline))))

(defun metric-value (text name)
  "The value, a string, of the first sample in TEXT, metrics, of NAME."
  (let ((line (first (metric-lines text name))))
    (and line (subseq line (1+ (position #\Space line :from-end t))))))

(defun metrics-of (&rest stats)
  (prometheus-text (list (cons "127.0.0.1:80" stats))))

(test a-statistic-is-a-sample-with-its-help-and-type
  (is (string= (format nil "# HELP http_server_connections_open Open connections.~@
                            # TYPE http_server_connections_open gauge~@
                            http_server_connections_open{server=\"127.0.0.1:80\"} 3~%")
               (metrics-of :open 3))))

(test an-address-may-be-what-usocket-takes
  (is (string= "#(127 0 0 1):80" (server:place-text #(127 0 0 1) 80)))
  (is (string= "*:80" (server:place-text nil 80)))
  (is (string= "unix:/socket" (server:place-text "unix:/socket" 0))))

(test the-place-of-a-server-cannot-break-out-of-its-label
  (let ((text (prometheus-text
               (list (list (format nil "unix:/a\\b\"} 1~%evil{c=\"") :open 1)))))
    (is (equal '("http_server_connections_open{server=\"unix:/a\\\\b\\\"} 1\\nevil{c=\\\"\"} 1")
               (metric-lines text "http_server_connections_open")))
    (is (= 3 (count #\Newline text)))))

(defun bucket-values (lines)
  "The bounds and the numbers in LINES, samples of buckets."
  (loop for line in lines
        collect (cl-ppcre:register-groups-bind (bound count) ("le=\"(.*)\"} (\\d+)$" line)
                  (list bound (parse-integer count)))))

;;; Prometheus' own opinion

(defun complaints-of-promtool (text)
  "What Prometheus' promtool prints about TEXT, metrics; NIL where there is no promtool."
  (handler-case (with-input-from-string (input text)
                  (multiple-value-bind (output errors code)
                      (uiop:run-program '("promtool" "check" "metrics")
                                        :input input :output :string :error-output :output
                                        :ignore-error-status t)
                    (declare (ignore errors))
                    (format nil "~A~:[~*~;exit code ~D~]" output (plusp code) code)))
    (error () nil)))

(defun promtool-p ()
  (handler-case (zerop (nth-value 2 (uiop:run-program '("promtool" "--version")
                                                      :ignore-error-status t)))
    (error () nil)))
