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

(defun rounds (server &rest rates)
  "Samples of SERVER with RATES, one for each round."
  (loop for rate in rates
        for round from 1
        collect (at-round round (sample server rate))))

(defun at-round (round sample)
  "SAMPLE as that of ROUND."
  (setf (ruler::sample-round sample) round)
  sample)

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

(test ratios-are-those-of-neighbours-in-time
  ;; The machine is ten times slower in the second round and most of the third.
  (let* ((cells (some-cells (at-round 1 (sample "limit" 100)) (at-round 1 (sample "ours" 80))
                            (at-round 2 (sample "limit" 10)) (at-round 2 (sample "ours" 8))
                            (at-round 3 (sample "limit" 100)) (at-round 3 (sample "ours" 8))))
         (ours (ruler::find-cell cells "ours" "keep-0ms-100"))
         (limit (ruler::find-cell cells "limit" "keep-0ms-100")))
    (is (about-p (ruler::quotient ours limit :rate) 0.8))))

(test who-is-twice-as-good-is-not-also-worse
  (let* ((cells (apply #'some-cells (append (rounds "ours" 50 160) (rounds "nginx" 100 100))))
         (ours (first cells))
         (nginx (second cells)))
    (is (about-p (* (ruler::quotient ours nginx :rate) (ruler::quotient nginx ours :rate)) 1))))

(test failures-of-all-rounds-count
  (let ((cell (first (some-cells (at-round 1 (sample "ours" 10 :unserved 2 :errors 1))
                                 (at-round 2 (sample "ours" 10 :unserved 0 :errors 1))
                                 (at-round 3 (sample "ours" 10 :unserved 0 :errors 1))))))
    (is (eql 2 (ruler::value-of cell :unserved)))
    (is (eql 3 (ruler::value-of cell :errors)))
    (is (search "2 clients waited in vain" (ruler::disqualification cell)))))

(test columns-of-another-time-are-read-by-name
  (with-temporary-results ()
    (let ((result (ruler::new-result)))
      (ruler::write-tsv (merge-pathnames "rounds.tsv" result)
                        '("server" "workload" "round" "gone" "unserved" "requests_per_s")
                        '(("ours" "keep-0ms-100" 1 99 3 1000)))
      (is (equal '(:unserved 3 :rate 1000)
                 (ruler::sample-figures (first (ruler::read-samples result))))))))
