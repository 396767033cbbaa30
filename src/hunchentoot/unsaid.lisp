(in-package #:hunchentoot-recycling-taskmaster)

;;;; What the message log is told seldom, with how often it happened.

(defun unsaid-of (taskmaster name)
  "What has happened under TASKMASTER of what has NAME, a keyword, and was not told."
  (cdr (assoc name (taskmaster-unsaid taskmaster))))

(defun tell-seldom (taskmaster name level once often &optional reason)
  "Tells in the message log of TASKMASTER, at LEVEL, what ONCE says has happened, or, after a number, OFTEN, and
the REASON of the last one; unless something of NAME, a keyword, was told just now."
  (let ((engine (taskmaster-engine taskmaster)))
    (flet ((tell (&rest arguments)
             (if engine
                 (apply #'log-message engine level arguments)
                 (apply #'note taskmaster level arguments))))
      (tell-rarely (unsaid-of taskmaster name) #'tell once often reason))))
