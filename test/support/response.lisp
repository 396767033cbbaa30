(in-package #:hunchentoot-recycling-taskmaster-test)

;;; Exactly one response from a connection, by the rules of RFC 9112, section 6.

(defstruct response
  "A response as it came: HEADERS is an alist of lower-case strings, BODY is octets."
  version status reason headers (body (octets)))

(defun response-header (response name)
  "The value of the first header NAME, a lower-case string, of RESPONSE, or NIL."
  (cdr (assoc name (response-headers response) :test #'string=)))

(defun response-header-values (response name)
  "The values of all headers NAME, a lower-case string, of RESPONSE, in order."
  (loop for (header . value) in (response-headers response)
        when (string= header name) collect value))

(defun response-text (response)
  "The body of RESPONSE as a string, in ISO 8859-1 where its Content-Type says so,
else in UTF-8."
  (let ((content-type (or (response-header response "content-type") "")))
    (decode (response-body response)
            (if (search "8859-1" content-type) :latin-1 :utf-8))))

;;; The head

(define-condition broken-response (error)
  ((what :initarg :what :reader broken-response-what))
  (:report (lambda (condition stream)
             (format stream "Not a response: ~A." (broken-response-what condition))))
  (:documentation "What the server sent is not HTTP/1.1, or it hung up too early."))

(defun read-response-line (connection)
  "The next line from CONNECTION without its CRLF; NIL when CONNECTION ends before it."
  (loop with octets = '()
        for octet = (next-octet connection)
        do (case octet
             ((nil) (if octets
                        (error 'broken-response :what "it ends within a line")
                        (return nil)))
             (10 (return (map 'string #'code-char
                              (nreverse (if (eql (first octets) 13) (rest octets) octets)))))
             (t (push octet octets)))))

(defun parse-status-line (line)
  "A response with what LINE tells: version, status and reason."
  (let ((space (position #\Space line)))
    (unless (and space (uiop:string-prefix-p "HTTP/1." line))
      (error 'broken-response :what (format nil "its first line is ~S" line)))
    (multiple-value-bind (status end)
        (parse-integer line :start space :junk-allowed t)
      (make-response :version (subseq line 0 space)
                     :status status
                     :reason (string-left-trim " " (subseq line end))))))

(defun parse-header-line (line)
  "LINE as a pair of name and value."
  (let ((colon (or (position #\: line)
                   (error 'broken-response :what (format nil "a header line is ~S" line)))))
    (cons (subseq line 0 colon)
          (string-trim '(#\Space #\Tab) (subseq line (1+ colon))))))

(defun in-lower-case (headers)
  "The alist HEADERS with its names in lower case."
  (loop for (name . value) in headers collect (cons (string-downcase name) value)))

(defun read-head (connection)
  "The next response from CONNECTION up to its empty line, without the body."
  (let* ((line (or (read-response-line connection)
                   (error 'broken-response :what "the connection has ended")))
         (response (parse-status-line line)))
    (setf (response-headers response)
          (in-lower-case (loop for line = (read-response-line connection)
                               until (equal line "")
                               collect (parse-header-line (or line "")))))
    response))

;;; The body

(defun receive-few (connection count)
  "The next COUNT octets from CONNECTION, read one by one; fewer at its end."
  (as-octets (loop repeat count
                   for octet = (next-octet connection)
                   while octet collect octet)))

(defun read-octets (connection count)
  "The next COUNT octets from CONNECTION."
  (let ((octets (if (< count 10000)
                    (receive-few connection count)
                    (receive-many connection count))))
    (unless (= count (length octets))
      (error 'broken-response
             :what (format nil "it ends after ~D of ~D octets" (length octets) count)))
    octets))

(defun read-chunk (connection)
  "The next chunk of a chunked body from CONNECTION; NIL for the last, empty one,
whose trailer is read too."
  (let ((size (parse-integer (or (read-response-line connection) "")
                             :radix 16 :junk-allowed t)))
    (cond ((null size)
           (error 'broken-response :what "a chunk has no size"))
          ((zerop size)
           (loop until (equal (read-response-line connection) ""))
           nil)
          (t
           (prog1 (read-octets connection size)
             (read-response-line connection))))))

(defun bodyless-p (response head-p)
  "Whether RESPONSE ends with its head; HEAD-P tells that it answers a HEAD request."
  (or head-p
      (<= 100 (response-status response) 199)
      (member (response-status response) '(204 304))))

(defun read-body (connection response head-p)
  "The octets of RESPONSE's body, by the framing that its headers tell."
  (let ((length (response-header response "content-length")))
    (cond ((bodyless-p response head-p)
           (octets))
          ((equalp (response-header response "transfer-encoding") "chunked")
           (octets (loop for chunk = (read-chunk connection)
                         while chunk collect chunk)))
          (length
           (read-octets connection (parse-integer length)))
          (t
           (receive-rest connection)))))

(defun read-response (connection &key head)
  "Exactly one response from CONNECTION.  HEAD tells that it answers a HEAD request."
  (let ((response (read-head connection)))
    (setf (response-body response) (read-body connection response head))
    response))

(defun chunk-text (connection)
  "The text of the next chunk; NIL for the last."
  (let ((chunk (read-chunk connection)))
    (and chunk (decode chunk))))

(defun chunked-p (response)
  "Whether RESPONSE says that its body is chunked."
  (equalp "chunked" (response-header response "transfer-encoding")))

(defun content-length (response)
  "The Content-Length of RESPONSE as an integer, or NIL."
  (let ((header (response-header response "content-length")))
    (and header (parse-integer header))))
