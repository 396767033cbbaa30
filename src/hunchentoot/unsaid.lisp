(in-package #:hunchentoot-recycling-taskmaster)

;;;; What is told once a second at most, with how often it happened: overload, or a client that tries again and
;;;; again, would fill the log.

(defparameter *warning-milliseconds* 1000
  "How long after a message of something the next one of that comes at the earliest.")

(defstruct (unsaid (:include opaque))
  "What has happened, and no message has told of."
  (lock (bt:make-lock "unsaid") :read-only t)
  (count 0 :type integer)
  (silent-until nil :type (or null fixnum))) ; in MILLISECONDS

(defun count-unsaid (unsaid now)
  "Counts that it has happened.  How many times a message is to tell of NOW, or NIL for no message."
  (uninterruptibly
    (bt:with-lock-held ((unsaid-lock unsaid))
      (incf (unsaid-count unsaid))
      (unless (and (unsaid-silent-until unsaid)
                   (< now (unsaid-silent-until unsaid)))
        (setf (unsaid-silent-until unsaid) (+ now *warning-milliseconds*))
        (shiftf (unsaid-count unsaid) 0)))))

(defun make-all-unsaid ()
  "What is told seldom, an alist: connections that were :REFUSED, clients that speak TLS where it is not spoken,
and handshakes that failed, by kind."
  (loop for name in (list* :refused :tls-to-plain-http (handshake-failure-kinds))
        collect (cons name (make-unsaid))))

(defun unsaid-of (taskmaster name)
  "What has happened under TASKMASTER of what has NAME, a keyword, and was not told."
  (cdr (assoc name (taskmaster-unsaid taskmaster))))

(defun tell-seldom (taskmaster name level once often &optional reason)
  "Tells in the message log of TASKMASTER, at LEVEL, what ONCE says has happened, or, after a number, OFTEN, and
the REASON of the last one; unless something of NAME, a keyword, was told just now."
  (let ((count (count-unsaid (unsaid-of taskmaster name) (milliseconds)))
        (engine (taskmaster-engine taskmaster)))
    (flet ((tell (&rest arguments)
             (if engine
                 (apply #'log-message engine level arguments)
                 (apply #'note taskmaster level arguments))))
      (when count
        (tell "~A~@[: ~A~]."
              (if (= 1 count) once (format nil "~D ~A since the last message" count often))
              reason)))))
