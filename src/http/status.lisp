(in-package #:hunchentoot-recycling-taskmaster.http)

(defparameter *reason-phrases*
  '(;; RFC 9110, section 15
    (100 . "Continue") (101 . "Switching Protocols")
    (200 . "OK") (201 . "Created") (202 . "Accepted")
    (203 . "Non-Authoritative Information") (204 . "No Content") (205 . "Reset Content")
    (206 . "Partial Content")
    (300 . "Multiple Choices") (301 . "Moved Permanently") (302 . "Found")
    (303 . "See Other") (304 . "Not Modified") (305 . "Use Proxy")
    (307 . "Temporary Redirect") (308 . "Permanent Redirect")
    (400 . "Bad Request") (401 . "Unauthorized") (402 . "Payment Required")
    (403 . "Forbidden") (404 . "Not Found") (405 . "Method Not Allowed")
    (406 . "Not Acceptable") (407 . "Proxy Authentication Required")
    (408 . "Request Timeout") (409 . "Conflict") (410 . "Gone") (411 . "Length Required")
    (412 . "Precondition Failed") (413 . "Content Too Large") (414 . "URI Too Long")
    (415 . "Unsupported Media Type") (416 . "Range Not Satisfiable")
    (417 . "Expectation Failed") (421 . "Misdirected Request")
    (422 . "Unprocessable Content") (426 . "Upgrade Required")
    (500 . "Internal Server Error") (501 . "Not Implemented") (502 . "Bad Gateway")
    (503 . "Service Unavailable") (504 . "Gateway Timeout")
    (505 . "HTTP Version Not Supported")
    ;; RFC 4918, 5842 (WebDAV), 3229, 8297, 8470, 6585, 7725, 2295
    (102 . "Processing") (103 . "Early Hints") (207 . "Multi-Status")
    (208 . "Already Reported") (226 . "IM Used") (423 . "Locked")
    (424 . "Failed Dependency") (425 . "Too Early") (428 . "Precondition Required")
    (429 . "Too Many Requests") (431 . "Request Header Fields Too Large")
    (451 . "Unavailable For Legal Reasons") (506 . "Variant Also Negotiates")
    (507 . "Insufficient Storage") (508 . "Loop Detected")
    (511 . "Network Authentication Required")
    ;; RFC 2324
    (418 . "I'm a teapot"))
  "The reason phrases of the known status codes.")

(deftype status-code ()
  "A status code has three digits (RFC 9112, section 4).  Codes from 600 on are undefined (RFC 9110,
section 15), but a program and its clients may agree on one."
  '(integer 100 999))

(defun reason-phrase (status)
  "The reason phrase of the status code STATUS, a string; NIL for an unknown one."
  (cdr (assoc status *reason-phrases*)))

(defun status-line (status reason)
  "The octets of the status line for STATUS with the string REASON."
  ;; RFC 9112, section 4: status-line = HTTP-version SP status-code SP [ reason-phrase ]
  (ascii-octets (format nil "HTTP/1.1 ~D ~A~C~C" status reason #\Return #\Linefeed)))

(defparameter *status-lines*
  (let ((lines (make-array 1000 :initial-element nil)))
    (loop for (status . reason) in *reason-phrases*
          do (setf (svref lines status) (status-line status reason)))
    lines)
  "Status lines, ready to send, by status code; NIL for unknown codes.")

(defun body-allowed-p (status)
  "True if a reply with STATUS, an integer, may have content; NIL for 1xx, 204 and 304 (RFC 9110,
sections 15.2, 15.3.5 and 15.4.5)."
  (not (or (<= 100 status 199) (= status 204) (= status 304))))
