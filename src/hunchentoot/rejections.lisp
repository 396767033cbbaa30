(in-package #:hunchentoot-recycling-taskmaster)

;;;; Rejected requests: those that are no HTTP, beyond a limit or too slow.  The server counts them
;;;; by status.  A request that was rejected before there was a request object, and a refused
;;;; connection, have a line in the access log with the facts that are known.

(defun make-rejections ()
  "An alist of the statuses of rejected requests and their counters."
  (loop for status in '(400 408 413 414 417 431 501 503 505)
        collect (cons status (make-counter))))

(defun count-rejection (acceptor status)
  "Counts a request to ACCEPTOR that was rejected with STATUS."
  (let ((taskmaster (acceptor-taskmaster* acceptor)))
    (when (typep taskmaster 'recycling-taskmaster)
      (let ((counter (cdr (assoc status (taskmaster-rejections taskmaster)))))
        (when counter
          (counter-add counter 1))))))

(defun counted-statistics (acceptor reader all by-key)
  "A part of the plist of STATS, for an alist of keys and counters that READER, a function, returns
for ACCEPTOR's taskmaster: the sum as ALL, and a plist of keys and counts as BY-KEY.  Both are NIL
for another taskmaster than ours."
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
  "The statistics of rejected requests to ACCEPTOR, a plist; see STATS."
  (counted-statistics acceptor 'taskmaster-rejections :rejected :rejected-by-status))

;;; The line

(defun rejection-facts (address method uri protocol status &optional headers)
  "The facts of a line about a request without a request object; see ACCESS-FACTS."
  (list :time (utc-now)
        :remote-address address
        :forwarded-for nil
        :user nil
        :method (and method (princ-to-string method))
        :uri uri
        :protocol (and protocol (princ-to-string protocol))
        :status status
        :bytes nil
        :duration-us nil
        :referer (cdr (assoc :referer headers))
        :user-agent (cdr (assoc :user-agent headers))
        :request-id nil))

(defun encode-rejected-combined (line address method uri protocol headers status)
  "Appends to LINE what ENCODE-COMBINED would, with a dash for unknown facts."
  (encode-items line
    (or-dash address) " - [" (local-now) "] \"" (or-dash method))
  (when uri
    (encode-items line " " uri))
  (when protocol
    (encode-items line " " protocol))
  (encode-items line
    "\" " status " - \"" (or-dash (cdr (assoc :referer headers)))
    "\" \"" (or-dash (cdr (assoc :user-agent headers))) "\""))

(defun log-rejection (acceptor address status &optional method uri protocol headers)
  "Writes a line to the access log of ACCEPTOR about a request from ADDRESS that was rejected with
STATUS.  METHOD, URI, PROTOCOL and HEADERS, an alist, are NIL where they are not known."
  (let ((destination (hunchentoot:acceptor-access-log-destination acceptor)))
    (when (and destination (typep acceptor 'parallel-acceptor))
      (write-access-line
       acceptor destination
       (lambda (line)
         (encode-line-in-format
          line acceptor
          (lambda ()
            (encode-rejected-combined line address method uri protocol headers status))
          (lambda ()
            (rejection-facts address method uri protocol status headers))))))))

(defun note-rejection (acceptor http refusal &optional method uri protocol headers)
  "Counts and logs a request over HTTP that was rejected because of REFUSAL.  METHOD, URI, PROTOCOL
and HEADERS, an alist, are NIL where they are not known."
  (let ((status (protocol-error-status refusal)))
    (count-rejection acceptor status)
    (log-rejection acceptor (http-address http) status method uri protocol headers)))
