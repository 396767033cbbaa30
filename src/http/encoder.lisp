(in-package #:hunchentoot-recycling-taskmaster.http)

;;; hot: replies become octets.  The functions under *HOT-POLICY*, whose names begin with PUT, check
;;; nothing: their callers ensure that TARGET has room, and that strings have the declared types.
;;; Each returns the position after the last octet that it has written.
;;;
;;; Invariant: the octets of an output before its fill are final; those after it are free.  Each
;;; function that appends sets the fill last, so a function that signals has appended nothing.

(defconstant +output-size+ 4096
  "The initial size of an output, in octets.  Most heads fit into it, with a short page.")

(defconstant +kept-output-size+ (* 128 1024)
  "RESET-OUTPUT gives the vector of an output back if it has more octets than this.")

(defstruct (output (:include opaque) (:copier nil)
                   (:constructor make-output (&optional (octets (make-octets +output-size+)))))
  "A buffer of replies to send: octets in a vector that grows."
  ;; The vector that holds the octets of OUTPUT. OUTPUT replaces it when it grows.
  (octets nil :type octets)
  ;; The number of octets in OUTPUT. The caller may reduce it to remove octets.
  (fill 0 :type index))

(defun reset-output (output)
  "Empties OUTPUT, frees the memory of a large reply, and returns OUTPUT."
  (when (> (length (output-octets output)) +kept-output-size+)
    (setf (output-octets output) (make-octets +output-size+)))
  (setf (output-fill output) 0)
  output)

(defun grow-output (output size)
  "Makes room in OUTPUT for SIZE octets in all; returns its vector."
  (let ((grown (make-octets (max size (* 2 (length (output-octets output)))))))
    (replace grown (output-octets output) :end2 (output-fill output))
    (setf (output-octets output) grown)))

(declaim (inline reserve))
(defun reserve (output count)
  "Makes room in OUTPUT for COUNT more octets; returns its vector and its fill."
  (declare (type output output) (type index count))
  (let ((fill (output-fill output))
        (octets (output-octets output)))
    (values (if (<= (+ fill count) (length octets))
                octets
                (grow-output output (+ fill count)))
            fill)))

(defmacro append-to ((output octets position count) &body body)
  "Makes room in OUTPUT for COUNT octets.  BODY writes octets into OCTETS from POSITION on and
returns their end, which becomes the fill."
  `(multiple-value-bind (,octets ,position) (reserve ,output ,count)
     (setf (output-fill ,output) (progn ,@body))))

;;; Octets

(declaim (ftype (function (octets index octets index index) index) put-octets)
         (ftype (function (octets index content-size) index) put-number)
         (ftype (function (octets index text index) (or null index)) put-codes)
         (ftype (function (text) index) utf-8-size)
         (ftype (function (octets index index text) (or null index)) put-utf-8))

(defun put-octets (target position source start end)
  "Puts SOURCE from START below END into TARGET at POSITION."
  (declare (type octets target source) (type index position start end) #.*hot-policy*)
  (replace target source :start1 position :start2 start :end2 end)
  (the index (+ position (the index (- end start)))))

(declaim (inline put-line-end))
(defun put-line-end (target position)
  "Puts CR and LF into TARGET at POSITION."
  (declare (type octets target) (type index position))
  (setf (aref target position) 13
        (aref target (1+ position)) 10)
  (the index (+ position 2)))

(defun put-number (target position number)
  "Puts the decimal digits of NUMBER into TARGET at POSITION."
  (declare (type octets target) (type index position) (type content-size number)
           #.*hot-policy*)
  (let ((end (+ position
                (loop for rest of-type content-size = number then (floor rest 10)
                      count t of-type (integer 0 60)
                      while (>= rest 10)))))
    (declare (type index end))
    (loop for place of-type fixnum downfrom (1- end) to position
          do (multiple-value-bind (rest digit) (floor number 10)
               (setf (aref target place) (+ 48 digit)
                     number rest)))
    end))

(defun encode-by (output count function)
  "Appends COUNT octets, an integer, that FUNCTION writes to OUTPUT.  FUNCTION gets a vector of
octets, a start and an end, and returns true if it has written all octets between them; else nothing
is appended.  Returns T if the octets were appended, else NIL."
  (declare (type output output) (type index count) #.*plain-policy*)
  (multiple-value-bind (octets start) (reserve output count)
    (let ((end (+ start count)))
      (when (funcall function octets start end)
        (setf (output-fill output) end)
        t))))

(defun encode-octets (output source &optional (start 0) (end (length source)))
  "Appends the octets of SOURCE from START below END to OUTPUT."
  (declare (type output output) #.*plain-policy*)
  (check-range source start end)
  (append-to (output octets position (- end start))
    (put-octets octets position source start end))
  (values))

(defparameter *body-copy-limit* (* 64 1024)
  "The maximum number of octets that ENCODE-BODY copies.  To copy that many takes less time than
another system call.  A body in one segment with its head also does not wait for a delayed
acknowledgement of the head.")

(defun encode-body (output body)
  "Appends BODY, octets, to OUTPUT if they are at most *BODY-COPY-LIMIT*, and returns true.  Else
returns NIL, and the caller sends them after OUTPUT."
  (declare (type output output) (type octets body) #.*plain-policy*)
  (when (<= (length body) (the index *body-copy-limit*))
    (encode-octets output body)
    t))

(defun encode-decimal (output number)
  "Appends the decimal digits of NUMBER, a CONTENT-SIZE, to OUTPUT."
  (declare (type output output) (type content-size number) #.*plain-policy*)
  (append-to (output octets position 19)
    (put-number octets position number))
  (values))

;;; Strings.  RFC 3629, section 3, excludes surrogates.  In some Lisps strings are UTF-16, so a
;;; surrogate pair becomes the character that it encodes.  Any other surrogate becomes U+FFFD.

(defun put-codes (target position text limit)
  "Puts the codes of TEXT into TARGET at POSITION.  NIL if one is not below LIMIT, 128 or 256."
  (declare (type octets target) (type index position limit) (type text text) #.*hot-policy*)
  (loop for char across text
        for code = (char-code char)
        unless (< code limit)
          return nil
        do (setf (aref target position) (the octet code)
                 position (the index (1+ position)))
        finally (return position)))

(defmacro do-code-points ((code size text) &body body)
  "Runs BODY for each code point of TEXT, with CODE and its SIZE, the number of its octets in
UTF-8."
  (let ((i (gensym "I")) (low (gensym "LOW")))
    `(loop with ,i of-type index = 0
           while (< ,i (length ,text))
           do (let ((,code (char-code (schar ,text ,i))))
                (declare (type (unsigned-byte 21) ,code))
                (setf ,i (the index (1+ ,i)))
                (when (<= #xD800 ,code #xDFFF)
                  (let ((,low (if (< ,i (length ,text)) (char-code (schar ,text ,i)) 0)))
                    (cond ((and (< ,code #xDC00) (<= #xDC00 ,low #xDFFF))
                           (setf ,code (+ #x10000 (ash (- ,code #xD800) 10) (- ,low #xDC00))
                                 ,i (the index (1+ ,i))))
                          (t (setf ,code #xFFFD)))))
                (let ((,size (cond ((< ,code #x80) 1)
                                   ((< ,code #x800) 2)
                                   ((< ,code #x10000) 3)
                                   (t 4))))
                  ,@body)))))

(defun utf-8-size (text)
  "The number of octets of TEXT in UTF-8."
  (declare (type text text) #.*hot-policy*)
  (let ((sum 0))
    (declare (type index sum))
    (do-code-points (code size text)
      (setf sum (the index (+ sum size))))
    sum))

(defun put-utf-8 (target position limit text)
  "Puts TEXT in UTF-8 into TARGET at POSITION.  NIL if its octets go beyond LIMIT, as they may if
another thread has changed TEXT since its size was computed."
  (declare (type octets target) (type index position limit) (type text text) #.*hot-policy*)
  (do-code-points (code size text)
    (let ((end (+ position size)))
      (declare (type index end))
      (when (> end limit)
        (return-from put-utf-8 nil))
      (if (= 1 size)
          (setf (aref target position) code)
          ;; The last octets have six bits each; the first has as many ones as there are octets, and
          ;; the other bits.
          (loop for place of-type index downfrom (1- end) above position
                do (setf (aref target place) (logior #x80 (logand #x3F code))
                         code (ash code -6))
                finally (setf (aref target position)
                              (logior (logand #xFF (ash #xFF00 (- size))) code))))
      (setf position end)))
  position)

(defun encoded-length (string encoding)
  "The number of octets of STRING in ENCODING, :UTF-8 or :LATIN-1; NIL if Latin-1 cannot encode a
character of it.  In UTF-8, U+FFFD replaces a lone surrogate, so every string can be encoded (RFC
3629, section 3)."
  (declare (type string string) #.*plain-policy*)
  (let ((text (coerce string 'text))
        (limit (ecase encoding (:utf-8 128) (:latin-1 256))))
    (declare (type index limit))
    (cond ((locally (declare #.*hot-policy*)
             (loop for char across text
                   always (< (char-code char) limit)))
           (length text))
          ((eq encoding :utf-8) (utf-8-size text)))))

(defun encode-string (output string encoding &optional size)
  "Appends STRING in ENCODING, :UTF-8 or :LATIN-1, to OUTPUT, and returns true.  Returns NIL and
appends nothing if ENCODING cannot encode a character of STRING.  SIZE is the ENCODED-LENGTH of
STRING, an integer, or NIL if the caller has not computed it.  Signals an error if STRING does not
have SIZE octets."
  (declare (type output output) (type string string) (type (or null index) size)
           #.*plain-policy*)
  (let* ((text (coerce string 'text))
         (size (or size (encoded-length text encoding))))
    (when size
      (multiple-value-bind (octets position) (reserve output size)
        (let ((end (cond ((= size (length text))
                          (put-codes octets position text (if (eq encoding :utf-8) 128 256)))
                         ((eq encoding :utf-8)
                          (put-utf-8 octets position (+ position size) text)))))
          (unless (eql end (+ position size))
            (error "A string does not have ~D octets in ~A." size encoding))
          (setf (output-fill output) end)
          t)))))

;;; Status lines

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

(defun reason-phrase (status)
  "The reason phrase of the status code STATUS, a string; NIL for an unknown one."
  (cdr (assoc status *reason-phrases*)))

(defparameter *status-lines*
  ;; RFC 9112, section 4: status-line = HTTP-version SP status-code SP [ reason-phrase ]
  (map 'vector (lambda (status)
                 (ascii-octets (format nil "HTTP/1.1 ~D ~@[~A~]~C~C" status (reason-phrase status)
                                       #\Return #\Linefeed)))
       (loop for status below 1000 collect status))
  "Status lines, ready to send, by status code.")

(defun body-allowed-p (status)
  "True if a reply with STATUS, an integer, may have content; NIL for 1xx, 204 and 304 (RFC 9110,
sections 15.2, 15.3.5 and 15.4.5)."
  (not (or (<= 100 status 199) (= status 204) (= status 304))))

;;; The head of a reply

(define-condition invalid-header (recycling-error)
  ((name :initarg :name :reader invalid-header-name
         :documentation "The name of the field, as the program set it.")
   (value :initarg :value :reader invalid-header-value
          :documentation "The value of the field, as the program set it."))
  (:report (lambda (condition stream)
             (format stream "The header field ~S with the value ~S cannot be sent."
                     (invalid-header-name condition) (invalid-header-value condition))))
  (:documentation "A program set a header field whose name is not a token, or whose value has a
control character or a character beyond Latin-1.  Such a value could end the line early, so that the
rest of it would be read as another line, or another reply (RFC 9110, section 5.5)."))

(defun encode-status-line (output status)
  "Appends the status line for STATUS, an integer from 100 to 999, to OUTPUT, with its REASON-PHRASE
or none (RFC 9112, section 4)."
  (declare (type output output) #.*plain-policy*)
  (check-type status (integer 100 999)) ; three digits
  (encode-octets output (svref *status-lines* status)))

;;; A reply spells the name of a known field as STRING-CAPITALIZE and Hunchentoot do:
;;; Www-Authenticate, Etag.

(defun line-start (name)
  "The octets with which a line begins that has the field NAME, a symbol or a string."
  (ascii-octets (concatenate 'string (if (symbolp name) (string-capitalize name) name) ": ")))

(dolist (name *header-names*)
  (let ((keyword (intern (string-upcase name) '#:keyword)))
    (setf (get keyword 'line-start) (line-start keyword)
          (get keyword 'spelling) (coerce (string-downcase name) 'text))))

(defun field-spelling (name)
  "NAME, the name of a header field, a keyword or a string, as a string in lower case.  The caller
must not modify it."
  (or (and (symbolp name) (get name 'spelling))
      (string-downcase name)))

(defun encode-header (output name value)
  "Appends the header field NAME with VALUE to OUTPUT.  NAME is a symbol, which is capitalized as by
STRING-CAPITALIZE, or a string, which is sent unchanged.  VALUE is a string, an integer, or another
object to PRINC.  Signals INVALID-HEADER, and appends nothing, if NAME is not a token, or if VALUE
has a control character other than Tab or a character beyond Latin-1.  So CR, LF and NUL are never
sent (RFC 9110, sections 5.1 and 5.5)."
  (declare (type output output) (type (or symbol string) name) #.*plain-policy*)
  (flet ((check (valid-p)
           (unless valid-p
             (error 'invalid-header :name name :value value))))
    (let ((line-start (or (and (symbolp name) (get name 'line-start))
                          (progn (check (token-p (string name)))
                                 (line-start name))))
          (sendable (typecase value
                      (content-size value)
                      (t (coerce (if (stringp value)
                                     value
                                     (let ((*print-base* 10) (*print-radix* nil))
                                       (princ-to-string value)))
                                 'text)))))
      (declare (type octets line-start) (type (or content-size text) sendable))
      (append-to (output octets position (+ (length line-start)
                                            (if (integerp sendable) 19 (length sendable))
                                            2))
        (let* ((start (put-octets octets position line-start 0 (length line-start)))
               (end (if (integerp sendable)
                        (put-number octets start sendable)
                        (put-codes octets start sendable 256))))
          (check (and end (= (the index end) (run-end octets start end +value+))))
          (put-line-end octets end)))))
  (values))

(defun imf-fixdate (universal-time)
  "UNIVERSAL-TIME, in seconds, in the date format of HTTP: a fresh string of 29 characters such as
\"Sun, 06 Nov 1994 08:49:37 GMT\" (RFC 9110, section 5.6.7)."
  (multiple-value-bind (second minute hour day month year weekday)
      (decode-universal-time universal-time 0)
    (format nil "~A, ~2,'0D ~A ~4,'0D ~2,'0D:~2,'0D:~2,'0D GMT"
            (nth weekday '("Mon" "Tue" "Wed" "Thu" "Fri" "Sat" "Sun")) day
            (nth (1- month) '("Jan" "Feb" "Mar" "Apr" "May" "Jun"
                              "Jul" "Aug" "Sep" "Oct" "Nov" "Dec"))
            year hour minute second)))

(defmacro rendered-second (variable second render)
  "The result of RENDER, a form for a function, for the universal time SECOND.  All threads share
one result per second.  VARIABLE, a global variable with the initial value (NIL), caches it."
  ;; Invariant: the pair (SECOND . RENDERED) and its contents never change.  Each second gets a
  ;; new pair, which one assignment publishes.  So a thread that reads VARIABLE once gets a
  ;; consistent pair.
  (let ((pair (gensym "PAIR")) (now (gensym "SECOND")))
    `(let ((,pair ,variable) (,now ,second))
       (unless (eql ,now (car ,pair))
         (setf ,pair (cons ,now (funcall ,render ,now)))
         (set-published ,variable ,pair))
       (cdr ,pair))))

(defvar *date-line* '(nil)
  "The pair of a second and the octets of its Date line; see RENDERED-SECOND.")

(defun encode-date (output second)
  "Appends the Date field for SECOND, a universal time, to OUTPUT.  All threads share one rendering
per second (RFC 9110, section 6.6.1)."
  (encode-octets output (rendered-second *date-line* second
                          (lambda (second)
                            (ascii-octets (format nil "Date: ~A~C~C" (imf-fixdate second)
                                                  #\Return #\Linefeed))))))

(defun encode-head (output status headers &key cookies second)
  "Appends the head of a reply to OUTPUT: the status line for STATUS; a field for each entry with a
value in HEADERS, an alist of names and values as in ENCODE-HEADER; a Set-Cookie field for each
string in the list COOKIES; and Date for SECOND, a universal time, unless it is NIL.  Appends
nothing if it signals INVALID-HEADER (RFC 9112, sections 4 and 5)."
  (declare (type output output) #.*plain-policy*)
  (let ((start (output-fill output)))
    (unless-returned (progn
                       (encode-status-line output status)
                       (loop for (name . value) in headers
                             when value
                               do (encode-header output name value))
                       (dolist (cookie cookies)
                         (encode-header output :set-cookie cookie))
                       (when second
                         (encode-date output second))
                       (encode-octets output *line-end*))
      (setf (output-fill output) start)))
  (values))

(defun encoded-head-end (octets start end)
  "The end of the head of a reply that ENCODE-HEAD has made in OCTETS from START below END; NIL if
that does not come before END."
  (declare (type octets octets) (type index start end) #.*plain-policy*)
  (loop for position of-type index = (octet-position +line-feed+ octets start end)
          then (octet-position +line-feed+ octets (1+ position) end)
        while (< (+ position 2) end)
        when (= +line-feed+ (aref octets (+ position 2)))
          return (+ position 3)))

(defun map-encoded-head (function octets start end)
  "Calls FUNCTION for each field of a head that ENCODE-HEAD has made, whole, in OCTETS from START to
END: with the name, as PARSE-HEAD has them, the start and the end of that, and of the value.
Returns the status."
  (declare (type octets octets) (type index start end) (type function function)
           #.*plain-policy*)
  (loop with line of-type index = (+ 2 (octet-position +carriage-return+ octets start end))
        until (= (+ line 2) end)
        do (let ((colon (octet-position +colon+ octets line end))
                 (line-end (octet-position +carriage-return+ octets line end)))
             (funcall function (word-in *headers* octets line colon 32)
                      line colon (+ 2 colon) line-end)
             (setf line (+ 2 line-end))))
  (encoded-number octets (+ start 9) (+ start 12))) ; after the version

(defun encoded-number (octets start end)
  "The number whose digits are in OCTETS from START below END."
  (declare (type octets octets))
  (loop with number = 0
        for position from start below end
        do (setf number (+ (* 10 number) (- (aref octets position) (char-code #\0))))
        finally (return number)))

;;; Chunks.  RFC 9112, section 7.1: chunk = chunk-size CRLF chunk-data CRLF

(defparameter *last-chunk* (coerce '(48 13 10 13 10) 'octets)
  "The end of a chunked body: the chunk of size 0, and no trailer field (RFC 9112, section 7.1).")

(defun frame-chunk (octets start digits end)
  "Makes a chunk of OCTETS from START on: with its size in so many DIGITS, and its data up to END.
Returns the end of the chunk."
  (declare (type octets octets) (type index start digits end) #.*plain-policy*)
  (check-range octets start (+ end 2))
  (let ((size (- end start digits 2)))
    (loop for i from (+ start digits -1) downto start
          do (setf (aref octets i) (char-code (char "0123456789abcdef" (ldb (byte 4 0) size)))
                   size (ash size -4))))
  (put-line-end octets (+ start digits))
  (put-line-end octets end))

(defun chunk-of (octets)
  "A fresh vector of octets: a chunk with OCTETS, at least one, as its data (RFC 9112, section
7.1)."
  (let* ((size (length octets))
         (digits (ceiling (integer-length size) 4))
         (chunk (make-octets (+ digits 2 size 2))))
    (replace chunk octets :start1 (+ digits 2))
    (frame-chunk chunk 0 digits (+ digits 2 size))
    chunk))

;;; Server-sent events: the format text/event-stream (HTML Living Standard, section 9.2).

(define-condition malformed-event (recycling-error)
  ((field :initarg :field :reader malformed-event-field)
   (value :initarg :value :reader malformed-event-value))
  (:report (lambda (condition stream)
             (format stream "~S cannot be the ~(~A~) of a server-sent event."
                     (malformed-event-value condition) (malformed-event-field condition))))
  (:documentation "A value cannot be a field of a server-sent event."))

(defun line-end-p (char)
  (or (char= char #\Return) (char= char #\Newline)))

(defun check-event-field (field value &rest forbidden)
  "VALUE, for FIELD, as a string.  Signals MALFORMED-EVENT if it has a line end or one of the
characters FORBIDDEN."
  (let ((text (princ-to-string value)))
    (if (find-if (lambda (char) (or (line-end-p char) (member char forbidden))) text)
        (error 'malformed-event :field field :value value)
        text)))

(defun write-lines (text prefix stream)
  "Writes each line of TEXT, after PREFIX, to STREAM.  A line ends with LF, CR, or both."
  (loop with start = 0
        for end = (position-if #'line-end-p text :start start)
        do (write-string prefix stream)
           (write-string text stream :start start :end end)
           (terpri stream)
        while end
        do (setf start (if (and (char= #\Return (char text end))
                                (< (1+ end) (length text))
                                (char= #\Newline (char text (1+ end))))
                           (+ 2 end)
                           (1+ end)))))

(defun utf-8-octets (text)
  "The string TEXT in UTF-8."
  (let* ((size (encoded-length text :utf-8))
         (output (make-output (make-octets size))))
    (encode-string output text :utf-8 size)
    (output-octets output)))

(defun encode-event (data &key event id retry)
  "A server-sent event, a fresh vector of octets.  DATA is a string of any number of lines, or NIL
for an event without data.  EVENT is the type and ID the identifier of the event, strings or other
objects to PRINC.  RETRY is the delay in milliseconds, an integer, after which a client that has
lost its connection tries again.  EVENT, ID and RETRY are NIL for none.  Signals MALFORMED-EVENT if
EVENT or ID has a line end, or ID has a null character (HTML Living Standard, section 9.2.5)."
  (check-type data (or null string))
  (check-type retry (or null unsigned-byte))
  (utf-8-octets
   (with-output-to-string (stream)
     (when event
       (format stream "event: ~A~%" (check-event-field :event event)))
     (when id
       (format stream "id: ~A~%" (check-event-field :id id (code-char 0))))
     (when retry
       (format stream "retry: ~D~%" retry))
     (when data
       (write-lines data "data: " stream))
     (terpri stream))))

(defun encode-comment (&optional (text ""))
  "A comment in a stream of events, a fresh vector of octets, with TEXT, a string.  Clients ignore
it (HTML Living Standard, section 9.2.6)."
  (utf-8-octets
   (with-output-to-string (stream)
     (write-lines text ":" stream)
     (terpri stream))))
