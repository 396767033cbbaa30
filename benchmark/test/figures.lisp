(in-package #:hunchentoot-recycling-taskmaster-benchmark/test)

(def-suite ruler)
(in-suite ruler)

(defun run-all ()
  "Run all tests; true if none failed."
  (run! 'ruler))

(defun about-p (value expected)
  "Are VALUE and EXPECTED equal but for rounding?"
  (< (abs (- value expected)) 0.001))

;;; Reading and writing

(test figures-are-read-from-the-lines-meant-for-us
  (let ((figures (ruler::parse-ruler-lines
                  (format nil "Running 1s test~%  2 threads~%~
                               ruler requests=12 p50_us=345~%ruler held=7~%"))))
    (is (eql 12 (ruler::figure "requests" figures)))
    (is (eql 345 (ruler::figure "p50_us" figures)))
    (is (eql 7 (ruler::figure "held" figures)))
    (is (null (ruler::figure "alive" figures)))))

(defparameter *wrk-line*
  "ruler requests=2000 duration_us=1000000 p50_us=1500 p90_us=2000 p99_us=3000 ~
   p999_us=4000 max_us=5000 connect_errors=1 read_errors=2 write_errors=3 timeouts=4 non_2xx=5"
  "What our script lets wrk print.")

(test figures-of-wrk-become-measures
  (let ((figures (ruler::wrk-figures (ruler::parse-ruler-lines (format nil *wrk-line*)))))
    (is (about-p (getf figures :rate) 2000))
    (is (about-p (getf figures :p50) 1.5))
    (is (about-p (getf figures :max) 5))
    (is (eql 10 (getf figures :errors)))
    (is (eql 5 (getf figures :non-2xx)))))

(test latencies-of-nothing-are-no-figures
  (let ((figures (ruler::wrk-figures
                  (loop for (name) in (ruler::parse-ruler-lines (format nil *wrk-line*))
                        collect (cons name (if (string= name "duration_us") 1 0))))))
    (is (eql 0 (getf figures :rate)))
    (is (null (getf figures :p50)))))

(test cpu-is-counted-per-request
  (flet ((usage (seconds) (ruler::make-usage :seconds seconds :threads 3 :bytes (* 5 1024 1024))))
    (let ((figures (ruler::usage-figures (usage 1) (usage 2) (usage 3) 1000)))
      (is (about-p (getf figures :cpu) 2000))
      (is (eql 3 (getf figures :threads)))
      (is (about-p (getf figures :memory) 5)))
    (is (null (getf (ruler::usage-figures (usage 1) (usage 1) (usage 1) 0) :cpu)))))

(test numbers-are-written-for-people
  (is (string= "61,022" (ruler::significant 61022.4)))
  (is (string= "12.3" (ruler::significant 12.345)))
  (is (string= "0.85" (ruler::significant 0.847)))
  (is (string= "45 s" (ruler::duration 45.2)))
  (is (string= "2 min 5 s" (ruler::duration 125))))

(test numbers-are-read-from-tables
  (is (eql 12 (ruler::parse-number "12")))
  (is (about-p (ruler::parse-number "-1.5") -1.5))
  (is (null (ruler::parse-number "")))
  (is (null (ruler::parse-number "#.(quit)"))))

(test medians
  (is (eql 2 (ruler::median '(3 1 2))))
  (is (eql 5/2 (ruler::median '(4 1 2 3))))
  (is (null (ruler::median '()))))

;;; Selections

(test workloads-are-selected-by-parts-of-their-names
  (flet ((names (&rest patterns)
           (mapcar #'ruler::workload-name (ruler::select-workloads patterns))))
    (is (equal '("keep-0ms-100") (names "keep-0ms-100")))
    (is (equal '("keep-1ms-400" "close-1ms-400") (names "1ms-400")))
    (is (equal '("idle-0ms-100" "idle-1ms-100") (names "idle")))
    (is (equal '("file1m-0ms-50") (names "file1m")))
    (signals ruler::mistake (names "keep" "nonsense"))))

(test servers-are-selected-by-name
  (is (equal '("limit" "nginx")
             (mapcar #'ruler::rival-name (ruler::select-rivals '("nginx" "limit")))))
  (signals ruler::mistake (ruler::select-rivals '("nonsense"))))

;;; Workloads of other kinds

(test an-obstacle-is-told-in-words
  (let ((rival (make-instance 'ruler:program-rival :name "x" :label "x" :color "#000000"
                              :lacks '(:wait "it never waits" :files "it has no files"))))
    (flet ((obstacle (name)
             (ruler::obstacle rival (ruler::find-workload name))))
      (is (null (obstacle "keep-0ms-100")))
      (is (equal "it never waits" (obstacle "keep-1ms-100")))
      (is (equal "it never waits" (obstacle "mixed-0ms-200")))
      (is (equal "it has no files" (obstacle "file1m-0ms-50"))))))

(test an-upload-is-posted
  (let ((words (ruler::wrk-command 80 (ruler::find-workload "upload-0ms-4") 1)))
    (is (equal (list "--" ruler::*upload-octets*) (last words 2)))
    (is (find "http://127.0.0.1:80/upload" words :test #'equal))))

(test a-browser-sends-twelve-headers
  ;; wrk adds the twelfth, Host.
  (is (eql 11 (count "-H" (ruler::wrk-command 80 (ruler::find-workload "browser-0ms-100") 1)
                     :test #'equal))))

(test one-client-in-ten-is-slow
  (let ((workload (ruler::find-workload "mixed-0ms-200")))
    (is (eql 20 (ruler::slow-clients workload)))
    (is (eql 180 (ruler::measured-clients workload))))
  (is (eql 100 (ruler::measured-clients (ruler::find-workload "keep-0ms-100")))))

(test errors-of-slow-clients-count
  (let ((figures (ruler::add-slow-figures '(:rate 10 :errors 1 :non-2xx 2)
                                          '(:rate 3 :errors 4 :non-2xx 5 :p99 6))))
    (is (eql 10 (getf figures :rate)))
    (is (eql 3 (getf figures :slow-rate)))
    (is (eql 5 (getf figures :errors)))
    (is (eql 7 (getf figures :non-2xx)))))

(test answers-are-checked
  (flet ((good-p (key answer)
           (ruler::good-answer-p
            (and answer (format nil answer #\Return #\Newline #\Return #\Newline))
            (ruler::find-kind key))))
    (is (good-p :browser "HTTP/1.1 200 OK~c~c~c~cHey!"))
    (is (not (good-p :browser "HTTP/1.1 404 Not Found~c~c~c~cHey!")))
    (is (not (good-p :file16k "HTTP/1.1 200 OK~c~c~c~cHey!")))
    (is (not (good-p :upload nil)))))
