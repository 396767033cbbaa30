;;;; Serves with Woo.

(defparameter *answer* '(200 (:content-type "text/plain" :content-length 4) ("Hey!"))
  "What Woo makes Hey! of.")

(defun wait-and-answer (seconds)
  "Answer after SECONDS, in which the worker can do nothing else."
  (when (plusp seconds)
    (sleep seconds))
  *answer*)

(defun take-upload (environment)
  "Answer to the body that has come with the request of ENVIRONMENT."
  (let ((body (make-array (getf environment :content-length) :element-type '(unsigned-byte 8))))
    (read-sequence body (getf environment :raw-body))
    *answer*))

(defun find-file (path files)
  "The answer for PATH, with that file of the directory FILES."
  (let ((name (subseq path (length "/files/"))))
    (list 200 '(:content-type "application/octet-stream") (merge-pathnames name files))))

(defun make-application (delay-ms slow-ms files)
  "What Woo calls with each request: for /yo it sleeps DELAY-MS milliseconds, for /slow
SLOW-MS; other files are those of the directory FILES."
  (let ((seconds (/ delay-ms 1000f0))
        (slow-seconds (/ slow-ms 1000f0)))
    (lambda (environment)
      (let ((path (getf environment :path-info)))
        (cond ((string= path "/yo") (wait-and-answer seconds))
              ((string= path "/slow") (wait-and-answer slow-seconds))
              ((string= path "/upload") (take-upload environment))
              (t (find-file path files)))))))

(defun serve (port delay-ms slow-ms files backlog &key worker-num)
  "Run Woo on PORT of 127.0.0.1 with BACKLOG, as far as it takes that, WORKER-NUM workers and
MAKE-APPLICATION of the rest."
  (woo:run (make-application delay-ms slow-ms files)
           :port port :address "127.0.0.1" :backlog (min 128 backlog)
           :worker-num worker-num :debug nil))
