(in-package #:hunchentoot-recycling-taskmaster)

;;;; Requests that were rejected for what they are, or are not: no HTTP, beyond a limit, too slow.
;;;; They are counted by status; and those that have no request object, and so no line of the usual
;;;; kind, have one in the access log with what is known.  So have connections that were refused.

(defparameter *rejection-statuses* '(400 408 413 414 417 431 501 503 505)
  "What a rejected request may be answered.")

(defun make-rejections ()
  "Counters of rejected requests by status, an alist."
  (loop for status in *rejection-statuses*
        collect (cons status (make-counter))))

(defun count-rejection (acceptor status)
  "Counts a request to ACCEPTOR that was answered STATUS for what it is."
  (let ((taskmaster (acceptor-taskmaster* acceptor)))
    (when (typep taskmaster 'recycling-taskmaster)
      (let ((counter (cdr (assoc status (taskmaster-rejections taskmaster)))))
        (when counter
          (counter-add counter 1))))))

(defun counted-statistics (acceptor reader all by-key)
  "What STATS tells of the counters that READER, a function, has of ACCEPTOR's taskmaster, an alist
by keys: a plist of their sum, as ALL, and of a plist of each, as BY-KEY.  NIL for both where the
taskmaster is another's."
  (let ((taskmaster (acceptor-taskmaster* acceptor)))
    (if (typep taskmaster 'recycling-taskmaster)
        (loop for (key . counter) in (funcall reader taskmaster)
              for count = (counter-count counter)
              sum count into sum
              collect key into counts
              collect count into counts
              finally (return (list all sum by-key counts)))
        (list all nil by-key nil))))

(defun rejection-statistics (acceptor)
  "What STATS tells of rejected requests to ACCEPTOR, a plist."
  (counted-statistics acceptor 'taskmaster-rejections :rejected :rejected-by-status))

;;; The line

(defun rejection-facts (address method uri protocol status)
  "As ACCESS-FACTS, of a request of which no more is known."
  (list :time (rendered-second *utc-time* (get-universal-time) 'utc-time-text)
        :remote-address address
        :forwarded-for nil
        :user nil
        :method (and method (princ-to-string method))
        :uri uri
        :protocol (and protocol (princ-to-string protocol))
        :status status
        :bytes nil
        :duration-us nil
        :referer nil
        :user-agent nil))

(defun encode-rejected-combined (line address method uri protocol status)
  "Appends to LINE what ENCODE-COMBINED would, with a dash for what is not known."
  (encode-items line
    (or-dash address) " - [" (rendered-second *local-time* (get-universal-time) 'local-time-text)
    "] \"" (or-dash method))
  (when uri
    (encode-items line " " uri))
  (when protocol
    (encode-items line " " protocol))
  (encode-items line "\" " status " - \"-\" \"-\""))

(defun log-rejection (acceptor address status &optional method uri protocol)
  "Writes a line about a request from ADDRESS that was answered STATUS to the access log of
ACCEPTOR; NIL for what is not known of it."
  (let ((destination (hunchentoot:acceptor-access-log-destination acceptor)))
    (when (and destination (typep acceptor 'parallel-acceptor))
      (write-access-line
       acceptor destination
       (lambda (line)
         (encode-line-in-format
          line (access-log-format acceptor)
          (lambda ()
            (encode-rejected-combined line address method uri protocol status))
          (lambda ()
            (rejection-facts address method uri protocol status))))))))

(defun note-rejection (acceptor http refusal &optional method uri protocol)
  "Counts a request over HTTP that was rejected because of REFUSAL, and writes a line about it;
METHOD, URI and PROTOCOL are NIL where they are not known."
  (let ((status (protocol-error-status refusal)))
    (count-rejection acceptor status)
    (log-rejection acceptor (http-address http) status method uri protocol)))
