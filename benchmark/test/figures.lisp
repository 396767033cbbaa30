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

(test who-hangs-up-in-silence-is-asked-again
  (let ((figures (ruler::parse-ruler-lines (format nil *wrk-line*))))
    (flet ((value (key silent-close-p)
             (getf (ruler::wrk-figures figures :silent-close-p silent-close-p) key)))
      (is (eql 2 (value :retries t)))
      (is (eql 8 (value :errors t)))
      (is (null (value :retries nil)))
      (is (eql 10 (value :errors nil))))))

(test there-are-no-more-retries-than-answers
  (is (eql 3 (ruler::retries '(("requests" . 3) ("read_errors" . 100))))))

(defun answer-with (&rest lines)
  "An answer whose head is LINES."
  (format nil "~{~a~}" (loop for line in (append lines '(""))
                             collect line collect ruler::*line-end*)))

(test who-announces-the-end-of-a-connection-is-known
  (is (ruler::announces-end-p (answer-with "HTTP/1.1 200 OK" "connection: Close")))
  (is (ruler::announces-end-p (answer-with "HTTP/1.0 200 OK" "Content-Length: 4")))
  (is (not (ruler::announces-end-p (answer-with "HTTP/1.1 200 OK" "Content-Length: 4"))))
  (is (not (ruler::announces-end-p (answer-with "HTTP/1.1 200 OK" "Connection: keep-alive")))))

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
    (is (equal '("tls-file1m-0ms-50") (names "tls-file1m")))
    (is (eql 5 (length (names "tls"))))
    (is (equal '("later-0ms-18000" "later-open-0ms-18000" "later-many-0ms-40000") (names "later")))
    (is (equal '("echo-0ms-100") (names "echo-100")))
    (is (not (find "echo-0ms-100" (names "100") :test #'string=)))
    (signals ruler::mistake (names "keep" "nonsense"))))

(test servers-are-selected-by-name
  (is (equal '("limit" "nginx")
             (mapcar #'ruler::rival-name (ruler::select-rivals '("nginx" "limit")))))
  (signals ruler::mistake (ruler::select-rivals '("nonsense"))))

;;; What is measured when nothing is named

(defun call-with-environment (bindings function)
  "Call FUNCTION while the environment has BINDINGS, lists of a setting and its value."
  (let ((old (loop for (name) in bindings
                   for variable = (format nil "BENCH_~a" name)
                   collect (list variable (or (uiop:getenv variable) "")))))
    (unwind-protect
         (progn (loop for (name value) in bindings
                      do (setf (uiop:getenv (format nil "BENCH_~a" name)) value))
                (funcall function))
      (loop for (variable value) in old
            do (setf (uiop:getenv variable) value)))))

(defun settings-with (&rest bindings)
  "The settings of an environment with BINDINGS."
  (call-with-environment bindings #'ruler::settings-from-environment))

(test the-command-is-recorded
  (is (equal "make bench" (ruler::settings-command (settings-with))))
  (is (equal "make bench QUICK=1 SERVERS='limit ours'"
             (ruler::settings-command (settings-with '("QUICK" "1") '("SERVERS" "limit ours"))))))

(test what-is-named-makes-a-selection
  (is (eq :standard (ruler::settings-set (settings-with))))
  (is (eq :quick (ruler::settings-set (settings-with '("QUICK" "1")))))
  (is (eq :full (ruler::settings-set (settings-with '("FULL" "1")))))
  (is (eq :selection (ruler::settings-set (settings-with '("SERVERS" "ours")))))
  (is (eq :selection (ruler::settings-set (settings-with '("QUICK" "1") '("SECONDS" "3")))))
  (signals ruler::mistake (settings-with '("QUICK" "1") '("FULL" "1"))))

(test each-set-is-part-of-the-next
  (loop for (less more) on '(:quick :standard :full)
        while more
        do (is (subsetp (ruler::rivals-of-set less) (ruler::rivals-of-set more)))
           (is (subsetp (ruler::workloads-of-set less) (ruler::workloads-of-set more)))))

(test all-workloads-of-the-standard-run-exist
  (is (every #'ruler::find-workload ruler::*standard-workloads*))
  (is (subsetp ruler::*clack-workloads* ruler::*standard-workloads* :test #'string=)))

(test handlers-of-clack-have-few-workloads-in-the-standard-run
  (flet ((entrant-p (set rival workload)
           (ruler::entrant-p (ruler::make-run :settings (ruler::make-settings :set set))
                             (ruler::find-rival rival) (ruler::find-workload workload))))
    (dolist (rival '("ours-clack" "clack-hunchentoot" "woo-8"))
      (is-true (entrant-p :standard rival "browser-0ms-100"))
      (is-false (entrant-p :standard rival "file16k-0ms-50"))
      (is-true (entrant-p :selection rival "file16k-0ms-50"))
      (is-true (entrant-p :full rival "file16k-0ms-50")))
    (is-true (entrant-p :standard "ours" "file16k-0ms-50"))
    (is-false (entrant-p :standard "nginx" "keep-1ms-100"))))

(test the-standard-run-takes-less-than-an-hour
  (let ((run (ruler::make-run :settings (settings-with) :tools '(:wrk :fair :idle :burst :tls :certificate))))
    (setf (ruler::settings-rivals (ruler::run-settings run))
          (remove-if (lambda (name) (member name '("quux-hunchentoot" "cl-tbnl-gserver-tmgr" "wookie")
                                            :test #'string=))
                     (ruler::rivals-of-set :standard) :key #'ruler::rival-name))
    (is (< (ruler::run-seconds run) (* 60 60)))))

(test turns-change-from-round-to-round
  (let ((orders (loop for round from 1 to 6
                      collect (ruler::turn-order '(a b c d e f) round))))
    (flet ((followers (who)
             (loop for order in orders
                   for next = (second (member who order))
                   when next collect next)))
      (dolist (order orders)
        (is (null (set-exclusive-or order '(a b c d e f)))))
      (dolist (who '(a b c d e f))
        (is (= 5 (length (remove-duplicates (followers who)))) "~a is followed by each once" who)
        (is (= 6 (length (remove-duplicates (mapcar (lambda (order) (position who order))
                                                    orders)))))))
    (is (equal '(a) (ruler::turn-order '(a) 5)))
    (is (null (ruler::turn-order '() 1)))))

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

(test who-is-not-set-up-for-a-service-is-left-out-of-it-only
  (flet ((obstacle (rival workload)
           (ruler::obstacle (ruler::find-rival rival) (ruler::find-workload workload))))
    (is (null (obstacle "go" "later-0ms-18000")))
    (is (stringp (obstacle "go" "echo-0ms-100")))
    (is (stringp (obstacle "go" "later-many-0ms-40000")))
    (is (null (obstacle "ours-deferred-3" "later-many-0ms-40000")))
    (is (null (obstacle "ws-1" "echo-0ms-100")))
    (is (stringp (obstacle "ws-1" "keep-0ms-100")))
    (is (null (obstacle "publisher" "events-0ms-10000")))
    (is (null (obstacle "ours-deferred" "keep-1ms-100")))
    (is (null (obstacle "ours-deferred" "silent-0ms-10000")))
    (is (stringp (obstacle "ours-pool" "keep-1ms-100")))))

(test each-service-is-known
  (is (subsetp (mapcar #'ruler::kind-service ruler::*kinds*) (mapcar #'first ruler::*services*)))
  (is (every (lambda (rival)
               (subsetp (ruler::rival-services rival) (mapcar #'first ruler::*services*)))
             ruler::*rivals*)))

(test several-processes-of-ours-share-a-port
  (let ((words (ruler::command (ruler::find-rival "ours-deferred-3") 80 0 nil nil)))
    (is (equal '("sh" "-c" "\"$@\" & \"$@\" & \"$@\" & wait" "sh") (subseq words 0 4)))
    (is (search ":reuse-port t" (first (last words))))))

(test an-upload-is-posted
  (let ((words (ruler::load-command 80 (ruler::find-workload "upload-0ms-4") 1)))
    (is (equal (list "--" ruler::*upload-octets*) (last words 2)))
    (is (find "http://127.0.0.1:80/upload" words :test #'equal))))

(test a-browser-sends-twelve-headers
  ;; wrk adds the twelfth, Host.
  (is (eql 11 (count "-H" (ruler::load-command 80 (ruler::find-workload "browser-0ms-100") 1)
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
