(in-package #:hunchentoot-recycling-taskmaster-benchmark/test)
(in-suite ruler)

(test the-limit-does-not-win
  (let ((cells (some-cells (sample "limit" 100) (sample "nginx" 90) (sample "ours" 50))))
    (is (search "**nginx** with 90" (ruler::winner-sentence (ruler::find-measure :rate) cells)))))

(test a-part-of-ours-does-not-win
  (let ((cells (some-cells (sample "engine" 90) (sample "nginx" 80) (sample "ours" 50))))
    (is (search "**nginx** with 80" (ruler::winner-sentence (ruler::find-measure :rate) cells)))
    (is (search "throughput 0.63 times nginx" (first (ruler::losses cells))))))

(test who-leaves-clients-unserved-does-not-win
  (let ((cells (some-cells (sample "hunchentoot" 100 :unserved 3) (sample "ours" 50 :unserved 0))))
    (is (search "**ours**" (ruler::winner-sentence (ruler::find-measure :rate) cells)))
    (is (null (ruler::losses cells)))))

(test who-fails-requests-does-not-win
  (is (ruler::disqualification (first (some-cells (sample "go" 100 :non-2xx 1)))))
  (is (null (ruler::disqualification (first (some-cells (sample "go" 10000))))))
  (is (ruler::disqualification (first (some-cells (sample "go" 0))))))

(test who-refuses-the-counted-clients-does-not-win
  (is (search "refused or cut off"
              (ruler::disqualification (first (some-cells (sample "go" 10000 :counted 1000
                                                                             :refused 2))))))
  (is (null (ruler::disqualification (first (some-cells (sample "go" 10000 :counted 10000
                                                                           :refused 10)))))))

(test who-was-asked-again-has-failed-nobody
  (let ((cells (some-cells (sample "woo-cores" 1000 :retries 999) (sample "ours" 900))))
    (is (null (ruler::disqualification (first cells))))
    (is (search "asked again on 999 connections" (first (ruler::retry-sentences cells))))
    (is (search "**Woo" (ruler::winner-sentence (ruler::find-measure :rate) cells)))))

(test who-does-not-resume-has-a-caveat
  (flet ((caveat (unresumed)
           (ruler::cell-caveat (first (some-cells (sample "ours" 1000 :unresumed unresumed))))))
    (is (null (caveat 0)))
    (is (null (caveat 10)))
    (is (search "some of its connections were not resumed" (caveat 11)))
    (is (search "most of its connections were not resumed" (caveat 501)))
    (is (null (ruler::cell-caveat (first (some-cells (sample "ours" 1000))))))))

(test where-ours-loses-is-said
  (let ((cells (some-cells (sample "ours" 50 :p99 2 :cpu 10)
                           (sample "nginx" 100 :p99 2.001 :cpu 5))))
    (is (equal '("throughput 0.50 times nginx" "CPU per request 2.00 times nginx")
               (ruler::losses cells)))))

(test what-the-rounds-do-not-agree-on-is-level
  (let ((cells (apply #'some-cells (append (rounds "ours" 60 99 101) (rounds "nginx" 100 100 100)))))
    (is (null (ruler::losses cells)))
    (is (search "level with nginx" (ruler::our-sentence (ruler::find-measure :rate) cells)))))

(test what-all-rounds-agree-on-is-not-level
  (let ((cells (apply #'some-cells (append (rounds "ours" 97 98 96) (rounds "nginx" 100 100 100)))))
    (is (equal '("throughput 0.97 times (0.96-0.98) nginx") (ruler::losses cells)))))

(test our-other-modes-do-not-hide-a-loss
  (let ((cells (some-cells (sample "ours" 50) (sample "ours-portable" 200) (sample "nginx" 100))))
    (is (equal '("throughput 0.50 times nginx") (ruler::losses cells)))))

(defun verdict (&rest samples)
  "Who wins by throughput and CPU together, by SAMPLES."
  (ruler::verdict (apply #'some-cells samples)))

(test who-wins-is-decided-by-throughput-and-cpu
  (is (equal "ours" (verdict (sample "limit" 200 :cpu 1) (sample "ours" 100 :cpu 5)
                             (sample "go" 90 :cpu 6))))
  (is (equal "nobody" (verdict (sample "ours" 100 :cpu 6) (sample "go" 90 :cpu 5))))
  (is (equal "ours, go" (string-downcase
                         (subseq (verdict (sample "ours" 100 :cpu 5) (sample "go" 100 :cpu 5))
                                 0 8))))
  (is (search "out of the contest" (verdict (sample "ours" 100 :unserved 1)))))

(test one-measure-needs-no-verdict
  (is (null (ruler::verdict-sentence (some-cells (sample "ours" 100) (sample "go" 90)))))
  (is (search "Throughput and CPU per request together: **ours**"
              (ruler::verdict-sentence (some-cells (sample "ours" 100 :cpu 1)
                                                   (sample "go" 90 :cpu 2))))))

(test figures-that-do-not-compare-have-a-caveat
  (flet ((caveat (server workload)
           (ruler::cell-caveat (ruler::make-cell server workload '()))))
    (is (search "2 workers give" (ruler::caveat (make-instance 'ruler:program-rival
                                                               :name "x" :label "x" :color "#000000"
                                                               :caveats (ruler::woo-caveats 2))
                                                (ruler::find-workload "keep-1ms-100"))))
    (is (caveat "woo-cores" "mixed-0ms-200"))
    (is (caveat "go" "close-1ms-100"))
    (is (null (caveat "go" "keep-10ms-400")))
    (is (null (caveat "woo-cores" "keep-0ms-100")))
    (is (null (caveat "nobody" "keep-1ms-100")))))
