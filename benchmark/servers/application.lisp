;;;; An application of Clack's, for servers that serve those.  Loaded by their programs.

(defparameter *answer* '(200 (:content-type "text/plain" :content-length 4) ("Hey!"))
  "The response with Hey!")

(defun wait-and-answer (seconds)
  "Answer after SECONDS, as one would write it: a blocking sleep."
  (when (plusp seconds)
    (sleep seconds))
  *answer*)

(defun answer-by (run-after)
  "A function that answers like WAIT-AND-ANSWER, but by RUN-AFTER, a function of seconds and of a function
that is to be called then: no thread waits."
  (lambda (seconds)
    (lambda (responder)
      (flet ((answer ()
               (funcall responder *answer*)))
        (if (plusp seconds)
            (funcall run-after seconds #'answer)
            (answer))))))

(defun take-upload (environment)
  "Answer to the body that comes with the request of ENVIRONMENT."
  (let ((body (make-array (getf environment :content-length) :element-type '(unsigned-byte 8))))
    (read-sequence body (getf environment :raw-body))
    *answer*))

(defun find-file (path files)
  "The answer for PATH, with that file of the directory FILES."
  (let ((name (subseq path (length "/files/"))))
    (list 200 '(:content-type "application/octet-stream") (merge-pathnames name files))))

(defun make-application (delay-ms slow-ms files &optional (answer #'wait-and-answer))
  "What is called with each request: for /yo it calls ANSWER with the seconds that DELAY-MS milliseconds
are, for /slow with those of SLOW-MS; other files are those of the directory FILES."
  (let ((seconds (/ delay-ms 1000f0))
        (slow-seconds (/ slow-ms 1000f0)))
    (lambda (environment)
      (let ((path (getf environment :path-info)))
        (cond ((string= path "/yo") (funcall answer seconds))
              ((string= path "/slow") (funcall answer slow-seconds))
              ((string= path "/upload") (take-upload environment))
              (t (find-file path files)))))))
