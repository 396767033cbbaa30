(defpackage #:recycling-benchmark-test
  (:use #:common-lisp #:fiveam)
  (:export #:run-all)
  (:shadowing-import-from #:recycling-benchmark #:run)
  (:import-from #:recycling-benchmark
                #:make-cell #:cell-server #:best-p #:failed-p #:value-of #:amount
                #:write-readme-rows #:write-comparison #:write-all #:table-cell
                #:*servers* #:server-name #:*workloads* #:workload-name
                #:read-cells #:figures-in #:call-with-held
                #:make-running #:free-port #:find-server #:find-workload #:*result*
                #:ask #:built-file #:source-file #:connects-p #:launch #:end-child #:wait-until
                #:start-postgres #:stop-postgres #:*line-end* #:*root*))

(in-package #:recycling-benchmark-test)

(def-suite benchmark)
(in-suite benchmark)

(defun run-all ()
  "Runs the tests of the benchmark; true if all passed."
  (run! 'benchmark))

(defun cell (server rates &key (workload "hello") (failures 0))
  "A cell whose rounds gave RATES, with FAILURES in each."
  (make-cell :workload workload :server server
             :rounds (loop for rate in rates
                           collect (list :requests 1000 :rate rate :p50 1 :p99 2 :cpu 3 :memory 4
                                         :failures failures))))

(test a-server-is-best-unless-another-was-better-in-each-round
  (let* ((steady (cell "ours" '(100 101 102)))
         (moody (cell "go" '(90 120 95)))
         (slow (cell "nginx" '(50 50 50)))
         (cells (list steady moody slow)))
    (is (best-p steady cells))
    (is (best-p moody cells))
    (is (not (best-p slow cells)))))

(test who-failed-and-the-limit-are-out-of-the-contest
  (let* ((ours (cell "ours" '(100 100)))
         (failing (cell "go" '(200 200) :failures 2))
         (limit (cell "limit" '(300 300)))
         (cells (list ours failing limit)))
    (is (failed-p failing))
    (is (not (best-p failing cells)))
    (is (not (best-p limit cells)))
    (is (best-p ours cells))))

(test a-figure-is-the-median-of-rounds-and-failures-are-added-up
  (is (= 101 (value-of (cell "ours" '(100 101 900)) :rate)))
  (is (= 6 (value-of (cell "ours" '(1 2 3) :failures 2) :failures))))

(test amounts-have-three-digits-that-count
  (is (equal '("0" "0.12" "1.23" "12.3" "123" "1,234")
             (mapcar #'amount '(0 0.1234 1.234 12.34 123.4 1234)))))

(test the-readme-rows-have-its-servers-and-workloads-only
  (let ((rows (with-output-to-string (stream)
                (write-readme-rows stream (list (cell "ours" '(20000 20000))
                                                (cell "nginx" '(30000 30000))
                                                (cell "node" '(10000 10000))
                                                (cell "ours" '(5 5) :workload "mix"))))))
    (is (search "20,000" rows))
    (is (search "**30,000**" rows))
    (is (null (search "Node" rows)))
    (is (null (search "chunks" rows)))))

(test a-table-has-a-row-for-each-server-and-a-column-for-each-workload
  (is (equal (format nil "~{~a~%~}"
                     '("|             |   hello |   close |"
                       "|-------------|--------:|--------:|"
                       "| ours        | **900** |       - |"
                       "| Go net/http |     800 | **700** |"))
             (with-output-to-string (stream)
               (write-comparison stream '("hello" "close")
                                 (list (cell "go" '(800)) (cell "ours" '(900))
                                       (cell "go" '(700) :workload "close"))
                                 #'table-cell)))))

(test lines-of-the-tables-of-all-workloads-have-no-more-than-100-columns
  (let ((cells (loop for workload in *workloads*
                     append (loop for server in *servers*
                                  collect (cell (server-name server) '(123456 123456)
                                                :workload (workload-name workload))))))
    (with-input-from-string (lines (with-output-to-string (stream)
                                     (write-all stream cells)))
      (is (>= 100 (loop for line = (read-line lines nil)
                        while line maximize (length line)))))))

(test the-figures-of-a-load-tool-are-read
  (is (equal '(:requests 5 :p50-us 7)
             (figures-in (format nil "noise~%figures requests=5 p50_us=7~%")))))

;;; load.c

(defun path-asked (stream)
  "The path that a request asks for, whose head is read from STREAM."
  (let ((line (read-line stream)))
    (loop until (<= (length (read-line stream)) 1))
    (subseq line (length "GET ") (position #\Space line :from-end t))))

(defun answer (stream content)
  "Writes an answer with CONTENT to STREAM."
  (format stream "HTTP/1.1 200 OK~c~%Content-Length: ~d~c~%~c~%~a"
          #\Return (length content) #\Return #\Return content)
  (finish-output stream))

(defun answer-numbers (listener count wrong-by)
  "Serves COUNT clients of LISTENER: each gets an answer, and then the number that it asks for, and
WRONG-BY more."
  (let ((sockets (loop repeat count collect (usocket:socket-accept listener))))
    (dolist (socket sockets)
      (path-asked (usocket:socket-stream socket))
      (answer (usocket:socket-stream socket) "Hey!"))
    (dolist (socket sockets)
      (let ((path (path-asked (usocket:socket-stream socket))))
        (answer (usocket:socket-stream socket)
                (princ-to-string (+ wrong-by
                                    (parse-integer path :start (1+ (position #\= path))))))))
    (sleep 0.2)                         ; an end is told from an answer
    (mapc #'usocket:socket-close sockets)))

(defun failures-of-numbers (count wrong-by)
  "How many failures load.c finds when it asks for COUNT numbers, and gets WRONG-BY more."
  (let* ((port (free-port))
         (listener (usocket:socket-listen "127.0.0.1" port :reuse-address t :backlog 64))
         (thread (sb-thread:make-thread #'answer-numbers
                                        :arguments (list listener count wrong-by))))
    (unwind-protect
         (getf (call-with-held "once" (make-running :port port) count 5 '("/hello" "/later?n=")
                               #'identity)
               :failures)
      (sb-thread:join-thread thread :default nil)
      (usocket:socket-close listener))))

(test an-answer-that-was-meant-for-another-client-is-a-failure
  (is (= 0 (failures-of-numbers 10 0)))
  (is (= 10 (failures-of-numbers 10 1))))

(test a-short-run-measures-what-it-was-asked-for
  (uiop:with-temporary-file (:pathname file)
    (let ((*result* (uiop:ensure-directory-pathname
                     (format nil "~a-result" (uiop:native-namestring file)))))
      (unwind-protect
           (progn (run (list (find-server "limit")) (list (find-workload "hello")) 2 1)
                  (is (equal '("limit") (mapcar #'cell-server (read-cells))))
                  (is (plusp (value-of (first (read-cells)) :rate))))
        (uiop:delete-directory-tree *result* :validate t :if-does-not-exist :ignore)))))
