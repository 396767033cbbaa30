(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; What is told once a second at most, with how often it happened: overload, or a client that tries again and
;;;; again, would fill the log.

(defparameter *warning-milliseconds* 1000
  "How long after a message of something the next one of that comes at the earliest.")

(defstruct (unsaid (:include opaque))
  "What has happened, and no message has told of."
  (lock (bt:make-lock "unsaid") :read-only t)
  (count 0 :type integer)
  (silent-until nil :type (or null fixnum))) ; in MILLISECONDS

(setf (documentation 'make-unsaid 'function)
      "Something that has not happened yet, for COUNT-UNSAID; each keyword is one of its slots."
      (documentation 'unsaid-silent-until 'function)
      "Until when nothing is told of UNSAID, in MILLISECONDS; NIL before the first time.")

(defun count-unsaid (unsaid now)
  "Counts that UNSAID has happened.  How many times a message is to tell of NOW, in MILLISECONDS, or NIL for no
message."
  (with-lock-briefly ((unsaid-lock unsaid))
    (incf (unsaid-count unsaid))
    (unless (and (unsaid-silent-until unsaid)
                 (< now (unsaid-silent-until unsaid)))
      (setf (unsaid-silent-until unsaid) (+ now *warning-milliseconds*))
      (shiftf (unsaid-count unsaid) 0))))

(defun make-all-unsaid ()
  "What is told seldom, an alist: connections that were :REFUSED, clients that speak TLS where it is not spoken,
and handshakes that failed, by kind."
  (loop for name in (list* :refused :tls-to-plain-http (handshake-failure-kinds))
        collect (cons name (make-unsaid))))

(defun tell-rarely (unsaid tell once often &optional reason)
  "Has TELL, a function of a control string and its arguments, tell that what ONCE says has happened, or, after a
number, OFTEN, both strings, and the REASON of the last time, a string or NIL; unless UNSAID was told just now."
  (let ((count (count-unsaid unsaid (milliseconds))))
    (when count
      (funcall tell "~A~@[: ~A~]."
               (if (= 1 count) once (format nil "~D ~A since the last message" count often))
               reason))))
