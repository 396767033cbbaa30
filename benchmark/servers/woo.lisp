;;;; Serves /yo with Woo.

(defun serve (port delay-ms &key worker-num)
  "Run Woo on PORT of 127.0.0.1 with WORKER-NUM workers; /yo answers Hey! after a
blocking sleep of DELAY-MS milliseconds."
  (let ((answer '(200 (:content-type "text/plain" :content-length 4) ("Hey!")))
        (seconds (/ delay-ms 1000f0)))
    (woo:run (if (plusp delay-ms)
                 (lambda (environment)
                   (declare (ignore environment))
                   (sleep seconds)
                   answer)
                 (constantly answer))
             :port port :address "127.0.0.1" :worker-num worker-num :debug nil)))
