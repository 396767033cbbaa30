;;;; Serves with Woo.

(load (merge-pathnames "application.lisp" *load-truename*))

(defun serve (port delay-ms slow-ms files backlog &key worker-num)
  "Run Woo on PORT of 127.0.0.1 with BACKLOG, as far as it takes that, WORKER-NUM workers and
MAKE-APPLICATION of the rest."
  (woo:run (make-application delay-ms slow-ms files)
           :port port :address "127.0.0.1" :backlog (min 128 backlog)
           :worker-num worker-num :debug nil))
