(in-package #:recycling-benchmark)

;;;; Where a Lisp server spends its time, by sb-sprof.

(defun signal-file ()
  "The file whose existence tells a server to begin to profile."
  (built-file "profile-now"))

(defun profiled (command seconds mode)
  "COMMAND, that of a Lisp server, with a thread that profiles all threads in MODE, :CPU or
:ALLOC, for SECONDS from the time at which there is the SIGNAL-FILE; then it prints a report and
ends the process."
  (append (butlast command 2)
          (list "--eval" "(require :sb-sprof)"
                "--eval" (format nil "(sb-thread:make-thread (lambda ()
                                        (loop until (probe-file ~s) do (sleep 0.1))
                                        (sb-sprof:start-profiling :mode ~s :threads :all
                                                                  :sample-interval 0.002
                                                                  :max-samples 200000)
                                        (sleep ~d)
                                        (sb-sprof:stop-profiling)
                                        (sb-sprof:report :type :flat :max 60)
                                        (finish-output)
                                        (sb-ext:exit :abort t)))"
                                 (uiop:native-namestring (signal-file)) mode seconds))
          (last command 2)))

(defun profile (server workload seconds mode)
  "Prints where SERVER, one in Lisp, spends its time, or with MODE :ALLOC its memory, under
WORKLOAD."
  (let ((log (built-file "profile.log"))
        (load (if (workload-lasting workload) #'load-lasting #'load-by-wrk)))
    (uiop:delete-file-if-exists (signal-file))
    (data)
    (let ((running (start server :tls (tls-workload-p workload) :log log
                                 :wrap (lambda (command) (profiled command seconds mode)))))
      (unwind-protect
           (progn (funcall load running workload 2)
                  (open (signal-file) :direction :probe :if-does-not-exist :create)
                  ;; It ends under load, so these figures are of no use.
                  (ignore-errors (funcall load running workload (+ 2 seconds)))
                  (wait-until (lambda () (not (alive-p (running-child running)))) 60))
        (stop running)))
    (write-string (uiop:read-file-string log))))
