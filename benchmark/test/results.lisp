(in-package #:hunchentoot-recycling-taskmaster-benchmark/test)
(in-suite ruler)

(defmacro with-temporary-results (() &body body)
  "Evaluate BODY with results made in a directory that goes away."
  `(let ((ruler::*results* (ruler::make-fresh-directory)))
     (unwind-protect (progn ,@body)
       (uiop:delete-directory-tree ruler::*results* :validate t))))

(defun sample (server rate &rest figures)
  "A sample of SERVER under one workload, of RATE requests/s and other FIGURES."
  (ruler::make-sample server "keep-0ms-100" 1
                      (append figures (list :rate rate :requests rate :errors 0 :non-2xx 0))))

(defun some-cells (&rest samples)
  "The cells of SAMPLES, which are as SAMPLE returns them."
  (ruler::summarize samples))

(test samples-survive-the-file
  (with-temporary-results ()
    (let ((result (ruler::new-result)))
      (ruler::record-sample result (sample "ours" 1000 :p50 1.5 :cpu 7))
      (ruler::record-sample result (sample "limit" 2000))
      (destructuring-bind (ours limit) (ruler::read-samples result)
        (is (string= "ours" (ruler::sample-server ours)))
        (is (about-p (getf (ruler::sample-figures ours) :p50) 1.5))
        (is (eql 7 (getf (ruler::sample-figures ours) :cpu)))
        (is (null (getf (ruler::sample-figures limit) :cpu)))))))

(test results-have-names-of-their-own
  (with-temporary-results ()
    (let ((one (ruler::new-result)))
      (is (not (equal one (ruler::new-result))))
      (let ((log (ruler::log-file one "wrk-~d" 1)))
        (with-open-file (stream log :direction :output) (terpri stream))
        (is (not (equal log (ruler::log-file one "wrk-~d" 1))))))))

(test a-cell-is-the-median-of-its-rounds
  (let ((cell (first (some-cells (sample "ours" 10) (sample "ours" 30) (sample "ours" 20)))))
    (is (eql 20 (ruler::value-of cell :rate)))
    (is (eql 10 (ruler::lowest-of cell :rate)))
    (is (eql 30 (ruler::highest-of cell :rate)))
    (is (null (ruler::value-of cell :p50)))))

(test ratios-need-both-figures
  (let* ((cells (some-cells (sample "ours" 10 :cpu 4) (sample "limit" 40)))
         (ours (ruler::find-cell cells "ours" "keep-0ms-100"))
         (limit (ruler::find-cell cells "limit" "keep-0ms-100")))
    (is (about-p (ruler::quotient ours limit :rate) 0.25))
    (is (null (ruler::quotient ours limit :cpu)))
    (is (null (ruler::quotient ours nil :rate)))
    (is (null (ruler::quotient nil limit :rate)))))

(defun at-round (round sample)
  "SAMPLE as that of ROUND."
  (setf (ruler::sample-round sample) round)
  sample)

(test ratios-are-those-of-neighbours-in-time
  ;; The machine is ten times slower in the second round and most of the third.
  (let* ((cells (some-cells (at-round 1 (sample "limit" 100)) (at-round 1 (sample "ours" 80))
                            (at-round 2 (sample "limit" 10)) (at-round 2 (sample "ours" 8))
                            (at-round 3 (sample "limit" 100)) (at-round 3 (sample "ours" 8))))
         (ours (ruler::find-cell cells "ours" "keep-0ms-100"))
         (limit (ruler::find-cell cells "limit" "keep-0ms-100")))
    (is (about-p (ruler::quotient ours limit :rate) 0.8))))

;;; Words

(test the-limit-does-not-win
  (let ((cells (some-cells (sample "limit" 100) (sample "nginx" 90) (sample "ours" 50))))
    (is (search "**nginx** with 90" (ruler::winner-sentence (ruler::find-measure :rate) cells)))))

(test a-part-of-ours-does-not-win
  (let ((cells (some-cells (sample "engine" 90) (sample "nginx" 80) (sample "ours" 50))))
    (is (search "**nginx** with 80" (ruler::winner-sentence (ruler::find-measure :rate) cells)))
    (is (search "against 80.0 requests/s of nginx" (first (ruler::losses cells))))))

(test who-leaves-clients-unserved-does-not-win
  (let ((cells (some-cells (sample "hunchentoot" 100 :unserved 3) (sample "ours" 50 :unserved 0))))
    (is (search "**ours**" (ruler::winner-sentence (ruler::find-measure :rate) cells)))
    (is (null (ruler::losses cells)))))

(test who-fails-requests-does-not-win
  (is (ruler::disqualification (first (some-cells (sample "go" 100 :non-2xx 1)))))
  (is (null (ruler::disqualification (first (some-cells (sample "go" 10000))))))
  (is (ruler::disqualification (first (some-cells (sample "go" 0))))))

(test where-ours-loses-is-said
  (let ((cells (some-cells (sample "ours" 50 :p99 2 :cpu 10)
                           (sample "nginx" 100 :p99 2.01 :cpu 5))))
    (is (equal '("throughput: 50.0 requests/s against 100 requests/s of nginx (0.50 times)"
                 "CPU per request: 10.0 us against 5.00 us of nginx (2.00 times)")
               (ruler::losses cells)))))

(test a-small-difference-is-level
  (let ((cells (some-cells (sample "ours" 98) (sample "nginx" 100))))
    (is (null (ruler::losses cells)))
    (is (search "level with nginx" (ruler::our-sentence (ruler::find-measure :rate) cells)))))

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
      (is (find '("keep-0ms-100" "ours" "requests_per_s" "higher" "1" "100" "100" "100" "0.500" "")
                (ruler::read-tsv (merge-pathnames "table.tsv" result)) :test #'equal)))))

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
