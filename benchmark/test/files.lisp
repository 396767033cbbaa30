(in-package #:hunchentoot-recycling-taskmaster-benchmark/test)
(in-suite ruler)

;;; Files made from results

(test comparing-tells-the-ratio-of-later-to-earlier
  (with-temporary-results ()
    (let ((before (ruler::new-result))
          (after (ruler::new-result)))
      (ruler::record-sample before (sample "ours" 100))
      (ruler::record-sample after (sample "ours" 150))
      (is (search "1.50" (with-output-to-string (stream) (ruler:compare before after stream))))
      (signals ruler::mistake (ruler:compare before (ruler::new-result) (make-broadcast-stream))))))

(test the-readme-keeps-what-is-outside-of-the-markers
  (flet ((readme (section)
           (format nil "before~%~a~%~a~%~a~%after~%"
                   ruler::*section-begin* section ruler::*section-end*)))
    (is (string= (readme "new") (ruler::replace-section (readme "old") (format nil "new~%"))))
    (signals ruler::mistake (ruler::replace-section "no markers" "new"))))

(defun report-of (result)
  "The text of the report of RESULT."
  (uiop:read-file-string (merge-pathnames "report.md" result)))

(test report-and-table-are-written
  (with-temporary-results ()
    (let ((result (ruler::new-result)))
      (ruler::record-sample result (sample "ours" 100 :p50 1 :p99 2))
      (ruler::record-sample result (sample "limit" 200 :p50 1 :p99 2))
      (let ((*standard-output* (make-broadcast-stream)))
        (ruler::record-note result "nginx" "keep-0ms-100" "died in round 2"))
      (let ((cells (ruler::summarize (ruler::read-samples result))))
        (ruler::write-table result cells)
        (ruler::write-report result cells))
      (is (search "nginx died in round 2." (report-of result)))
      (is (find '("keep-0ms-100" "ours" "requests_per_s" "higher" "1" "100" "100" "100"
                  "0.500" "0.500" "0.500" "")
                (ruler::read-tsv (merge-pathnames "table.tsv" result)) :test #'equal)))))

;;; The README and the guide show whole standard runs only

(defun recorded-run (set &key (took "1 s"))
  "A result of a run of SET that took TOOK, with a cell of ours and one of the limit."
  (let ((result (ruler::new-result)))
    (ruler::record-machine result (ruler::make-settings
                                   :command "make bench" :set set
                                   :rivals (ruler::select-rivals '("limit" "ours" "nginx"))
                                   :workloads (ruler::select-workloads '("keep-0ms-100"))))
    (ruler::record-sample result (sample "limit" 200 :cpu 4))
    (ruler::record-sample result (sample "ours" 150 :cpu 8))
    (ruler::record-sample result (ruler::make-sample "ours" "keep-1ms-10" 1 '(:rate 7)))
    (when took
      (ruler::record-fact result "took" took))
    result))

(defun remove-repeated-spaces (text)
  "TEXT with one space for each row of them."
  (with-output-to-string (stream)
    (loop for previous = nil then character
          for character across text
          unless (and (eql #\Space character) (eql #\Space previous))
            do (write-char character stream))))

(defun documents-of (result)
  "The README and the page of the guide that are made from RESULT, which were nearly empty."
  (uiop:with-temporary-file (:pathname readme)
    (uiop:with-temporary-file (:pathname page)
      (dolist (file (list readme page))
        (with-open-file (stream file :direction :output :if-exists :supersede)
          (format stream "~a~%~a~%" ruler::*section-begin* ruler::*section-end*)))
      (ruler:update-documents result readme page)
      (values (uiop:read-file-string readme) (uiop:read-file-string page)))))

(defun page-of (result)
  "The page of the guide that is made from RESULT."
  (nth-value 1 (documents-of result)))

(test the-readme-shows-requests-per-second-of-a-few-servers
  (with-temporary-results ()
    (let ((result (recorded-run :standard)))
      (ruler::record-sample result (sample "go" 120))
      (let ((text (remove-repeated-spaces (documents-of result))))
        (is (search "| ours | Hunchentoot | Woo, 1 per core | Woo, 100 workers | Go net/http | nginx |"
                    text))
        (is (search "100 connections | **150** | - | - | - | 120 | - |" text))
        (is (search "`make bench`" text))
        (is (not (search "limit" text)))
        (is (not (search "10 connections" text)) "a workload of another set")))))

(test the-page-shows-throughput-and-cpu
  (with-temporary-results ()
    (let ((text (page-of (recorded-run :standard))))
      (is (search "**0.75**<br>8.00 us" text))
      (is (search "`make bench`" text))
      (is (search "Not found here: nginx" text))
      (is (search "| 200/s<br>4.00 us |" text))
      (is (search "What this does not show" text))
      (is (not (search "10 connections" text)) "a workload of another set"))))

(test the-page-shows-throughput-itself-where-there-is-no-limit
  (with-temporary-results ()
    (let ((result (recorded-run :standard)))
      (ruler::record-sample result (ruler::make-sample "ours" "tls-keep-0ms-100" 1
                                                       '(:rate 1234 :cpu 20)))
      (is (search "| **1,234/s**<br>20.0 us" (page-of result))))))

(defun text-between (begin end text)
  "What TEXT has between BEGIN and END, all strings."
  (let ((start (search begin text)))
    (and start (subseq text start (search end text :start2 start)))))

(test the-page-shows-handlers-of-clack-in-a-table-of-their-own
  (with-temporary-results ()
    (let ((result (recorded-run :standard)))
      (is (not (search "Through Clack" (page-of result))))
      (dolist (server '("ours-clack" "woo-8" "go"))
        (ruler::record-sample result (sample server 160 :cpu 5)))
      (ruler::record-sample result (ruler::make-sample "ours-clack" "upload-0ms-4" 1 '(:rate 7 :cpu 1)))
      (let* ((text (page-of result))
             (first-table (text-between "| " "## " text))
             (table (text-between "## Through Clack" "Measured on" text)))
        (is (search "| ours |" (remove-repeated-spaces first-table)))
        (is (not (search "Clack" first-table)))
        (is (search "| limit | ours, Clack | Woo, 8 workers | Go net/http |"
                    (remove-repeated-spaces table)))
        (is (search "**0.80**<br>5.00 us" table))
        (is (not (search "upload" table)))))))

(test the-report-tells-who-was-measured-under-few-workloads
  (with-temporary-results ()
    (let ((result (ruler::new-result)))
      (ruler::record-machine result (ruler::make-settings
                                     :command "make bench" :set :standard
                                     :rivals (ruler::select-rivals '("limit" "ours-clack"))
                                     :workloads (ruler::workloads-of-set :standard)))
      (ruler::record-sample result (sample "ours-clack" 150))
      (ruler::write-report result (ruler::summarize (ruler::read-samples result)))
      (is (search "- ours, Clack: under `keep-0ms-100`" (report-of result)))
      (is (not (search "- limit (C): under" (report-of result)))))))

(test documents-show-no-selections
  (with-temporary-results ()
    (signals ruler::mistake (page-of (recorded-run :selection)))
    (signals ruler::mistake (page-of (recorded-run :quick)))
    (signals ruler::mistake (page-of (recorded-run :standard :took nil)))))

(test the-report-says-what-was-not-asked-for
  (with-temporary-results ()
    (let ((result (recorded-run :selection)))
      (ruler::write-report result (ruler::summarize (ruler::read-samples result)))
      (let ((text (report-of result)))
        (is (search "This is a selection" text))
        (is (search "Command: `make bench`" text))
        (is (search "Servers asked for: limit (C), ours, nginx." text))
        (is (search "`close-10ms-1000`" text))))))

(test versions-are-found-in-what-programs-say
  (is (equal "1.22.1" (ruler::version-number "nginx version: nginx/1.22.1")))
  (is (equal "1.19.8" (ruler::version-number "go version go1.19.8 linux/amd64")))
  (is (equal "20.20.2" (ruler::version-number "v20.20.2")))
  (is (equal "4.1.0" (ruler::version-number "wrk debian/4.1.0-3+b2 [epoll]")))
  (is (equal "unknown" (ruler::version-number "unknown"))))

(defun svg-whole-p (file)
  "Is FILE an SVG picture to its end?"
  (search "</svg>" (uiop:read-file-string file)))

(test all-charts-are-drawn
  (if (missing-programs "gnuplot")
      (skip "gnuplot is missing")
      (with-temporary-results ()
        (let ((result (ruler::new-result)))
          (flet ((cell-of (server workload &rest figures)
                   (ruler::record-sample result (ruler::make-sample server workload 1 figures))))
            (dolist (workload '("keep-1ms-10" "keep-1ms-100" "keep-1ms-400"))
              (dolist (server '("limit" "ours" "woo-cores"))
                (cell-of server workload :rate 1000 :cpu 5 :requests 10 :unserved 1
                                         :p50 1 :p90 2 :p99 3 :p999 4 :max 5)))
            (cell-of "ours" "keep-0ms-10" :rate 0 :requests 0)
            (cell-of "ours" "burst-100ms-100" :all 120))
          (ruler::draw-charts result (ruler::summarize (ruler::read-samples result)))
          (let ((charts (uiop:directory-files (merge-pathnames "charts/" result) "*.svg")))
            (is (= 9 (length charts)))
            (is (every #'svg-whole-p charts)))))))

(test what-a-chart-shows-has-round-ticks
  (is (= 20000 (ruler::tick-step 90000)))
  (is (= 2 (ruler::tick-step 8)))
  (is (= 5 (ruler::tick-step 9.9)))
  (is (plusp (ruler::tick-step 0))))

;;; Flame graphs

(test stacks-become-a-tree
  (let ((root (ruler::frame-tree (ruler::count-stacks '(("a" "b") ("a" "b") ("a" "c"))))))
    (is (eql 3 (ruler::frame-count root)))
    (is (eql 3 (ruler::frame-count (ruler::child root "a"))))
    (is (eql 2 (ruler::frame-count (ruler::child (ruler::child root "a") "b"))))
    (is (eql 3 (ruler::frame-height root)))))

(test folded-stacks-are-text
  (is (string= (format nil "a;b 2~%")
               (with-output-to-string (stream)
                 (ruler::write-folded stream (ruler::count-stacks '(("a" "b") ("a" "b"))))))))

(test names-in-flame-graphs-are-xml
  (is (search "&lt;x&gt;" (with-output-to-string (stream)
                            (ruler::write-flame-graph stream "t" '((("<x>") 1)))))))
