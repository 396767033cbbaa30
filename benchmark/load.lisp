(in-package #:recycling-benchmark)

;;;; One server under one workload for one round: its figures, a property list.
;;;;
;;;; :REQUESTS  answers, or echoes, or events; and :RATE, those in a second
;;;; :P50 :P99  latency in milliseconds
;;;; :CPU       processor time of the server for each answer, in microseconds
;;;; :MEMORY    of the server at the end, in megabytes
;;;; :FAILURES  requests that were refused, cut off, not answered in time or answered wrong

(defun figures-in (text)
  "What the line of TEXT says that begins with \"figures\", as a property list; an error without
one."
  (let ((line (find-if (lambda (line) (uiop:string-prefix-p "figures " line))
                       (uiop:split-string text :separator '(#\Newline)))))
    (unless line
      (unavailable "the load tool printed no figures but: ~a" text))
    (loop for word in (rest (uiop:split-string line))
          for (name value) = (uiop:split-string word :separator "=")
          collect (intern (substitute #\- #\_ (string-upcase name)) :keyword)
          collect (parse-integer value))))

(defun round-figures (figures running processor-before &optional (failures 0))
  "The figures of a round from FIGURES of the load tool, and from what RUNNING has used since it had
used PROCESSOR-BEFORE seconds; FAILURES are those that the tool does not know of."
  (let ((requests (getf figures :requests))
        (child (running-child running)))
    (list :requests requests
          :rate (/ requests (/ (getf figures :duration-us) 1e6))
          :p50 (/ (getf figures :p50-us) 1e3)
          :p99 (/ (getf figures :p99-us) 1e3)
          :cpu (/ (* 1e6 (- (processor-seconds child) processor-before)) (max 1 requests))
          :memory (float (resident-megabytes child))
          :failures (+ (getf figures :failures) failures))))

;;; wrk

(defun wrk-command (running workload seconds)
  "The command of wrk that loads RUNNING with WORKLOAD for SECONDS."
  (list "env"
        (format nil "OPENSSL_CONF=~a" (uiop:native-namestring (source-file "load/openssl.cnf")))
        (find-program "wrk")
        "-t" (min (processors) (workload-connections workload)) "-c" (workload-connections workload)
        "-d" (format nil "~ds" seconds) "-s" (source-file "load/wrk.lua")
        (format nil "http~:[~;s~]://127.0.0.1:~d~a" (running-tls-p running) (running-port running)
                (workload-path workload))
        "--" (or (workload-script workload) "get")))

(defun hung-up (figures workload)
  "How many requests FIGURES of wrk have as cut off under WORKLOAD.  Where a connection is closed
after each answer, wrk may ask once more on a closed one, which it counts so, too; that is no
failure."
  (if (equal (workload-script workload) "close")
      0
      (getf figures :hung-up)))

(defun load-by-wrk (running workload seconds)
  "A round of WORKLOAD by wrk."
  (let* ((before (processor-seconds (running-child running)))
         (output (built-file "wrk.log"))
         (child (launch (wrk-command running workload seconds) :output output)))
    (unwind-protect (uiop:wait-process (child-info child))
      (end-child child))
    (let ((figures (figures-in (uiop:read-file-string output))))
      (round-figures figures running before (hung-up figures workload)))))

;;; load.c

(defun call-with-held (mode running count seconds targets function)
  "Calls FUNCTION with the number of connections while load.c holds COUNT to RUNNING in MODE; then
lets it ask, for or within SECONDS.  TARGETS are its last arguments.  Returns its figures, and what
FUNCTION returned."
  (let* ((child (launch `(,(c-program "load" "load") ,mode ,(running-port running) ,count ,seconds
                          ,@targets)
                        :input :stream :output :stream))
         (output (uiop:process-info-output (child-info child))))
    (unwind-protect
         (let* ((held (read-line output nil ""))
                (result (funcall function (if (uiop:string-prefix-p "held=" held)
                                              (parse-integer held :start 5)
                                              (unavailable "load.c: ~a" held)))))
           (close (uiop:process-info-input (child-info child)))
           (values (figures-in (uiop:slurp-stream-string output)) result))
      (end-child child))))

(defun load-lasting (running workload seconds)
  "A round of WORKLOAD by load.c."
  (multiple-value-bind (figures before)
      (call-with-held (workload-lasting workload) running (workload-connections workload)
                      (or (workload-seconds workload) seconds)
                      (if (equal (workload-lasting workload) "once")
                          (list "/hello" (workload-path workload))
                          (list (workload-path workload)))
                      (lambda (held)
                        (declare (ignore held))
                        (processor-seconds (running-child running))))
    (round-figures figures running before)))

(defun load-beside-idle (running workload seconds)
  "A round of WORKLOAD by wrk, while load.c holds idle connections.  Whoever of them is not answered
once more is a failure."
  (multiple-value-bind (idle figures)
      (call-with-held "once" running (workload-idle workload) 20 '("/hello" "/hello")
                      (lambda (held)
                        (declare (ignore held))
                        (load-by-wrk running workload seconds)))
    (incf (getf figures :failures) (getf idle :failures))
    figures))

(defun measure (running workload seconds)
  "One round: the figures of RUNNING under WORKLOAD for SECONDS."
  (funcall (cond ((workload-lasting workload) #'load-lasting)
                 ((plusp (workload-idle workload)) #'load-beside-idle)
                 (t #'load-by-wrk))
           running workload seconds))

(defun check-answer (running workload)
  "UNAVAILABLE unless RUNNING answers what WORKLOAD asks for.  Over TLS it is believed."
  (let ((expect (workload-expect workload)))
    (when (and expect (not (running-tls-p running)))
      (let ((answer (ask (running-port running) (workload-path workload)
                         :content (workload-content workload))))
        (unless (and answer
                     (uiop:string-prefix-p "HTTP/1.1 200" answer)
                     (search expect answer))
          (unavailable "to a request for ~a it answers ~s" (workload-path workload)
                       (and answer (subseq answer 0 (position #\Return answer)))))))))
