(in-package #:hunchentoot-recycling-taskmaster-benchmark/test)
(in-suite ruler)

(defun pid-alive-p (pid)
  "Does the process numbered PID run?"
  (and (probe-file (format nil "/proc/~d/stat" pid)) t))

(test the-whole-session-ends
  (uiop:with-temporary-file (:pathname log)
    (let (grandchild)
      (ruler::with-process (shell '("sh" "-c" "sleep 60 & echo $!; wait") :log log)
        (setf grandchild
              (ruler::wait-until
               (lambda () (parse-integer (uiop:read-file-string log) :junk-allowed t)) 5))
        (is (pid-alive-p grandchild)))
      (is (ruler::wait-until (lambda () (not (pid-alive-p grandchild))) 5)))))

(test the-usage-of-a-session-is-read
  (uiop:with-temporary-file (:pathname log)
    (ruler::with-process (shell '("sh" "-c" "sleep 60 & wait") :log log)
      (is (ruler::wait-until (lambda () (= 2 (ruler::usage-threads (ruler::session-usage shell)))) 5))
      (is (plusp (ruler::usage-bytes (ruler::session-usage shell)))))))

(test a-missing-program-is-named
  (handler-case (progn (ruler::find-program "no-such-program") (fail "found"))
    (ruler:unavailable (condition)
      (is (search "no-such-program is not installed" (princ-to-string condition))))))

(test a-server-that-ends-at-once-is-unavailable
  (uiop:with-temporary-file (:pathname log)
    (let ((rival (make-instance 'ruler:program-rival
                                :name "short" :label "short" :color "#000000"
                                :finder (constantly "true") :arguments (constantly '())
                                :version (constantly "1"))))
      (signals ruler:unavailable (ruler::start-server rival 0 log)))))

;;; Kinds of load, on the limit

(defun call-with-limit (delay-ms function)
  "Call FUNCTION with a server, the limit with a delay of DELAY-MS."
  (with-temporary-results ()
    (let* ((result (ruler::new-result))
           (server (ruler::start-server (ruler::find-rival "limit") delay-ms
                                        (ruler::log-file result "server"))))
      (unwind-protect (funcall function server result)
        (ruler::stop-server server)))))

(defun missing-programs (&rest programs)
  "Those of PROGRAMS that are not installed."
  (remove-if (lambda (program) (handler-case (ruler::find-program program)
                                 (ruler:unavailable () nil)))
             programs))

(test a-burst-is-answered-after-the-delay
  (if (missing-programs "cc")
      (skip "a C compiler is missing")
      (call-with-limit 50
       (lambda (server result)
         (let ((figures (ruler::measure-burst (ruler::server-process server)
                                              (ruler::server-port server) 20
                                              (ruler::log-file result "burst"))))
           (is (eql 0 (getf figures :unserved)))
           (is (<= 50 (getf figures :all))))))))

(test slow-clients-wait-beside-the-others
  (if (missing-programs "cc" "wrk")
      (skip "wrk or a C compiler is missing")
      (call-with-limit 0
       (lambda (server result)
         (let ((figures (ruler::call-with-slow-clients
                         (ruler::server-port server) 2 1 (ruler::log-file result "wrk")
                         (constantly '(:rate 1 :errors 0 :non-2xx 0)))))
           (is (eql 0 (getf figures :errors)))
           (is (<= ruler::*slow-ms* (getf figures :slow-p99))))))))

;;; The limit uses what our engine uses

(defun policies (server)
  "The scheduling policies of the threads of SERVER."
  (let ((pid (ruler::process-session (ruler::server-process server))))
    (loop for directory in (uiop:directory* (format nil "/proc/~d/task/*/" pid))
          collect (ruler::stat-field 41 (ruler::stat (format nil "~d/task/~a" pid
                                                             (first (last (pathname-directory
                                                                           directory)))))))))

(defun connection-state (server-port client-port)
  "The state in which the kernel has the connection of CLIENT-PORT to SERVER-PORT on the server's
side: 1 is established, 3 still expects the client."
  (flet ((address (port)
           (format nil "0100007F:~4,'0X" port)))
    (loop for line in (rest (uiop:read-file-lines "/proc/net/tcp"))
          for (nil local remote state) = (ruler::split line)
          when (and (equal local (address server-port)) (equal remote (address client-port)))
            return (parse-integer state :radix 16))))

(test the-limit-is-scheduled-as-ours-is
  (if (missing-programs "cc")
      (skip "a C compiler is missing")
      (call-with-limit 0
       (lambda (server result)
         (declare (ignore result))
         ;; SCHED_BATCH is 3.
         (is (ruler::wait-until (lambda ()
                                  (let ((policies (policies server)))
                                    (and (= (length policies) (ruler::cores))
                                         (every (lambda (policy) (= policy 3)) policies))))
                                5))))))

(test the-limit-accepts-connections-with-their-requests
  (if (missing-programs "cc")
      (skip "a C compiler is missing")
      (call-with-limit 0
       (lambda (server result)
         (declare (ignore result))
         ;; After a second without a request the kernel hands a connection out; on a machine that
         ;; is busy with other things that may pass before we look.
         (is (loop repeat 5
                   thereis (usocket:with-client-socket
                               (socket stream "127.0.0.1" (ruler::server-port server))
                             (eql 3 (connection-state (ruler::server-port server)
                                                      (usocket:get-local-port socket))))))))))

(test the-limit-serves-files-and-takes-uploads
  (if (missing-programs "cc")
      (skip "a C compiler is missing")
      (call-with-limit 0
       (lambda (server result)
         (declare (ignore result))
         (dolist (name '("file16k-0ms-50" "file1m-0ms-50" "upload-0ms-4"))
           (is (null (ruler::check-answer server (ruler::find-workload name)))))
         (is (not (ruler::silent-close-p server)))))))

;;; Handlers of Clack's

(defun call-with-clack-handler (rival delay-ms function)
  "Call FUNCTION with a server, RIVAL, a name, with a delay of DELAY-MS."
  (with-temporary-results ()
    (let ((server (ruler::start-server (ruler::find-rival rival) delay-ms
                                       (ruler::log-file (ruler::new-result) "server"))))
      (unwind-protect (funcall function server)
        (ruler::stop-server server)))))

(test ours-serves-an-application-of-clack
  (call-with-clack-handler "ours-clack" 0
   (lambda (server)
     (dolist (name '("browser-0ms-100" "file16k-0ms-50" "upload-0ms-4"))
       (is (null (ruler::check-answer server (ruler::find-workload name))))))))

(test ours-gives-delayed-responses-of-clack
  (call-with-clack-handler "ours-clack-delayed" 1
   (lambda (server)
     (is (ruler::good-answer-p (ruler::ask server) (ruler::find-kind :keep-alive)))
     (is (ruler::good-answer-p (ruler::ask server :path "/slow") (ruler::find-kind :keep-alive))))))

;;; A whole run, with a rival that dies in the middle

(defun mortal-rival ()
  "The limit, but it ends after some seconds."
  (make-instance 'ruler:program-rival
                 :name "mortal" :label "mortal" :color "#000000"
                 :finder (constantly "timeout")
                 :arguments (lambda (port delay-ms directory)
                              (declare (ignore directory))
                              (list* "3.5" (ruler::command (ruler::find-rival "limit")
                                                            port delay-ms nil nil)))
                 :version (constantly "1")))

(defun small-run (rivals &optional (workload "keep-0ms-100"))
  "Measure RIVALS under WORKLOAD, a name, in two short rounds."
  (let* ((settings (ruler::make-settings :rivals rivals :rounds 2 :seconds 1 :fair-ms 200
                                         :warm-seconds 1
                                         :workloads (ruler::select-workloads (list workload))))
         (*standard-output* (make-broadcast-stream)))
    (ruler:bench settings)))

(test a-rival-that-dies-costs-its-own-cells-only
  (if (not (missing-programs "cc" "wrk"))
      (with-temporary-results ()
        (let* ((result (small-run (list (ruler::find-rival "limit") (mortal-rival))))
               (samples (ruler::read-samples result)))
          (flet ((rounds-of (server)
                   (count server samples :key #'ruler::sample-server :test #'string=)))
            (is (eql 2 (rounds-of "limit")))
            (is (< (rounds-of "mortal") 2)))
          (is (search "mortal: keep-0ms-100: died in" (report-of result)))))
      (skip "wrk or a C compiler is missing")))

;;; A profile

(test a-server-of-ours-is-profiled
  (if (missing-programs "wrk")
      (skip "wrk is missing")
      (with-temporary-results ()
        (let ((directory (let ((*standard-output* (make-broadcast-stream)))
                           (ruler:profile :seconds 1))))
          (is (svg-whole-p (merge-pathnames "flame.svg" directory)))
          (is (search "hunchentoot" (uiop:read-file-string (merge-pathnames "folded.txt" directory))))))))
