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

(test a-statistic-by-kind-has-a-sample-for-each-kind
  (is (equal '("http_server_connections_expired_total{server=\"127.0.0.1:80\",kind=\"head\"} 1"
               "http_server_connections_expired_total{server=\"127.0.0.1:80\",kind=\"idle\"} 20")
             (metric-lines (metrics-of :expired-by '(:head 1 :idle 20))
                           "http_server_connections_expired_total")))
  (is (equal '("http_server_requests_rejected_total{server=\"127.0.0.1:80\",status=\"400\"} 7")
             (metric-lines (metrics-of :rejected-by-status '(400 7))
                           "http_server_requests_rejected_total"))))

(test what-is-not-known-is-no-metric
  (is (string= "" (metrics-of :open nil :ready-waits nil :decisions nil))))

(test the-samples-of-a-metric-of-several-servers-stand-together
  (let ((text (prometheus-text '(("a" :open 1 :parked 2) ("b" :open 3 :parked nil)))))
    (is (search (format nil "~@{http_server_connections_open{server=\"~A\"} ~A~%~}" "a" 1 "b" 3)
                text))
    (is (= 1 (length (metric-lines text "http_server_connections_parked"))))))

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

(defun histogram-of (&rest microseconds)
  (let ((sheet (engine::make-tally-sheet)))
    (dolist (duration microseconds (engine::histogram sheet))
      (engine::note-duration sheet duration))))

(defun bucket-values (lines)
  "The bounds and the numbers in LINES, samples of buckets."
  (loop for line in lines
        collect (cl-ppcre:register-groups-bind (bound count) ("le=\"(.*)\"} (\\d+)$" line)
                  (list bound (parse-integer count)))))

(test each-bucket-of-a-histogram-includes-the-smaller-ones-and-the-last-one-all
  (let* ((text (metrics-of :durations (histogram-of 50 100 2000 99999999)))
         (buckets (bucket-values
                   (metric-lines text "http_server_request_duration_seconds_bucket"))))
    (is (= 17 (length buckets)))
    (is (equal '("0.0001" 2) (first buckets)))
    (is (apply #'<= (mapcar #'second buckets)))
    (is (equal '(("10" 3) ("+Inf" 4)) (last buckets 2)))
    (is (string= "4" (metric-value text "http_server_request_duration_seconds_count")))
    (is (string= "100.002149" (metric-value text "http_server_request_duration_seconds_sum")))))

(defun found-amid (work look)
  "What LOOK, a function, returns in interrupts of a thread that calls WORK again and again."
  (let* ((over-p (list nil))
         (found (make-recorder))
         (task (in-background ("works")
                 (loop until (first over-p) do (funcall work)))))
    (unwind-protect
         (loop for count from 1 to 300
               do (bt:interrupt-thread (task-thread task)
                                       (lambda () (record found (funcall look))))
                  (eventually ("an interrupt") (= count (recorded-count found))))
      (setf (first over-p) t)
      (task-result task))
    (recorded found)))

(define-server-test (no-duration-is-counted-before-it-is-in-the-sum :needs :deferred-ends)
  (let ((sheet (engine::make-tally-sheet))
        (shared (engine::make-shared-sheet)))
    (flet ((check (note current-sheet)
             (is (null (find-if (lambda (histogram)
                                  (< (getf histogram :sum) (getf histogram :count)))
                                (found-amid note
                                            (lambda ()
                                              (histogram (funcall current-sheet)))))))))
      (check (lambda () (note-duration sheet 1000000))
             (lambda () sheet))
      (check (lambda () (note-shared-duration shared 1000000))
             (lambda () (engine::sheet-of-counters shared))))))

(defparameter *sums-of-kinds* '(:rejected :refused :expired :handshakes-failed :errors)
  "The statistics that a monitor computes by adding up those by kind.")

(test every-statistic-is-a-metric
  (loop with known = (loop for (statistic) in *metrics*
                           collect (if (consp statistic) (first statistic) statistic))
        for (name) on (recycling:stats (make-test-acceptor)) by #'cddr
        do (is (or (member name known) (member name *sums-of-kinds*)) "~S is no metric." name)))

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

(test promtool-finds-nothing-to-complain-of
  (if (promtool-p)
      (let ((text (prometheus-text
                   (list (cons "127.0.0.1:80"
                               (loop for (name value) on (server:engine-stats nil) by #'cddr
                                     append (list name (case name
                                                         (:ready-waits (histogram-of 1 2))
                                                         (:ready-wait 0.001)
                                                         (:decisions '(:resume 1 :short-nap 2))
                                                         (t value)))))
                         (list (format nil "unix:/a\\b\"c~%d") :open 1)))))
        (is (search "decision=\"short-nap\"" text))
        (is (equal "" (complaints-of-promtool text)))
        (is (string/= "" (complaints-of-promtool (format nil "# TYPE a_total gauge~%a_total 1~%")))
            "It complains of what is wrong."))
      (skip "There is no promtool: Debian's package prometheus has it.")))
