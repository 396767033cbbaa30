(in-package #:hunchentoot-recycling-taskmaster)

;;;; The path, query and cookies of a request, as Hunchentoot's strings and alists of strings.
;;;; Hunchentoot splits them by regular expressions; that for cookies takes quadratic time for white
;;;; space.  The code here looks at each character a fixed number of times, with the same result.

(defun decoded (text start end external-format ascii-p &optional (plus-p t))
  "A fresh string: TEXT from START to END, URL-decoded in EXTERNAL-FORMAT, which is a superset of
ASCII if ASCII-P.  A plus is a space if PLUS-P."
  (declare (type text text) (type index start end) #.*plain-policy*)
  (cond ((not ascii-p)
         (url-decoded (text-part text start end) external-format plus-p))
        ((loop for position of-type index from start below end
               for char = (schar text position)
               never (or (char= char #\%) (char= char #\+) (char> char #\~)))
         (text-part text start end))
        (t
         (or (decoded-ascii text start end plus-p)
             (url-decoded (text-part text start end) external-format plus-p)))))

(defun decoded-ascii (text start end plus-p)
  "TEXT from START to END, URL-decoded, if the result is ASCII; else NIL.  A plus is a space if
PLUS-P."
  (declare (type text text) (type index start end) #.*plain-policy*)
  (let ((decoded (make-string (- end start)))
        (position start)
        (fill 0))
    (declare (type index position fill))
    (flet ((digit (position)
             (or (and (< position end) (digit-char-p (schar text position) 16))
                 (return-from decoded-ascii nil))))
      (loop while (< position end)
            do (let ((char (schar text position)))
                 (case char
                   (#\+ (when plus-p (setf char #\Space)))
                   (#\% (setf char (code-char (+ (* 16 (digit (+ position 1)))
                                                 (digit (+ position 2)))))
                    (incf position 2)))
                 (unless (< (char-code char) 128)
                   (return-from decoded-ascii nil))
                 (setf (schar decoded fill) char)
                 (incf fill)
                 (incf position))))
    (text-part decoded 0 fill)))

(declaim (inline white-p))
(defun white-p (char)
  "True when CHAR is a space or a tab."
  (or (char= char #\Space) (char= char #\Tab)))

(defun query-alist (query external-format ascii-p)
  "An alist of the names and values in the string QUERY, decoded in EXTERNAL-FORMAT, which is a
superset of ASCII if ASCII-P.  Empty elements count, except at the end."
  (declare (type text query) #.*plain-policy*)
  (let ((size (1+ (or (position #\& query :test #'char/= :from-end t) -1)))
        (start 0)
        (alist '()))
    (declare (type index size start))
    (loop while (< start size)
          do (let* ((end (text-position #\& query start size))
                    (equals (text-position #\= query start end)))
               (declare (type index end equals))
               (push (cons (string-trim " " (decoded query start equals external-format ascii-p))
                           (decoded query (min end (1+ equals)) end external-format ascii-p))
                     alist)
               (setf start (1+ end))))
    (nreverse alist)))

;;; Lists in header fields

(defun map-list-elements (function text separator &optional (other separator))
  "A list of the values of FUNCTION for the start and end of each element of TEXT.  The characters
SEPARATOR and OTHER separate elements, with the white space beside them; white space at both ends of
TEXT belongs to the elements.  Empty elements count, except at the end."
  (declare (type function function) (type text text) (type character separator other)
           #.*plain-policy*)
  (let ((size (length text)) (start 0) (results '()) (filled '()))
    (declare (type index size start))
    (loop
      (let* ((stop (loop for position of-type index from start below size
                         until (let ((char (schar text position)))
                                 (or (char= char separator) (char= char other)))
                         finally (return position)))
             (end (if (= stop size)
                      size
                      (loop for position of-type index from stop above start
                            while (white-p (schar text (1- position)))
                            finally (return position)))))
        (declare (type index stop end))
        (push (funcall function start end) results)
        (when (< start end)
          (setf filled results))        ; up to here
        (when (= stop size)
          (return (nreverse filled)))
        (setf start (loop for position of-type index from (1+ stop) below size
                          while (white-p (schar text position))
                          finally (return position)))))))

(defun cookie-alist (cookies)
  "An alist of the names and values in COOKIES, a text, as Hunchentoot makes it."
  (declare (type text cookies) #.*plain-policy*)
  (flet ((cookie (start end)
           (let ((equals (text-position #\= cookies start end)))
             (declare (type index equals))
             (cons (string-trim " " (text-part cookies start equals))
                   (text-part cookies (min end (1+ equals)) end)))))
    (declare (dynamic-extent #'cookie))
    (map-list-elements #'cookie cookies #\, #\;)))

(defun list-of-elements (value)
  "A list of the elements of VALUE, a string with commas between them.  Empty elements count, except
at the end."
  (let ((text (coerce value 'text)))
    (map-list-elements (lambda (start end) (text-part text start end)) text #\,)))

;;; The charset of content

(defun encoding-of (external-format)
  "How ENCODE-STRING calls EXTERNAL-FORMAT; NIL where it does not know it."
  (and (eq (flexi-streams:external-format-eol-style external-format) :lf)
       (case (flexi-streams:external-format-name external-format)
         (:utf-8 :utf-8)
         (:iso-8859-1 :latin-1))))

(defun format-named (charset)
  "The external format that CHARSET, a string, names, or NIL.  Interns nothing."
  (ignore-errors (flexi-streams:make-external-format charset :eol-style :lf)))

(defconstant +most-told+ 40
  "How many characters of a client's text a message may show.")

(defun external-format-of-type (type)
  "The external format of content of TYPE, the value of a Content-Type or NIL; as with Hunchentoot,
NIL unless that is a text type with a known charset.  Signals MALFORMED-MEDIA-TYPE where TYPE is no
Content-Type."
  (let ((charset (and type (media-type-parameter "charset" type "text"))))
    (and charset
         (or (format-named charset)
             ;; Hunchentoot warns, and its handler logs that.  But nothing muffles the warning, so
             ;; it is also printed, which has no limit.
             (progn (hunchentoot:log-message*
                     :warning "Warning while processing connection: Invalid character set ~
                               '~A~:[~;...~]' in request has been ignored."
                     (subseq charset 0 (min +most-told+ (length charset)))
                     (> (length charset) +most-told+))
                    nil)))))

;;;; Functions of Hunchentoot that read what a client has sent, and that would intern it, match it
;;;; by a regular expression that backtracks, or read a number of any length.  We wrap them, so that
;;;; they take linear time for any input and make no symbols.

;;; Sessions

(defconstant +most-session-octets+ 512
  "The longest session identifier, in characters, that is looked up.  Hunchentoot's are far
shorter.")

(defmethod hunchentoot:session-verify ((request hunchentoot:request))
  (let* ((name (hunchentoot:session-cookie-name hunchentoot:*acceptor*))
         (id (or (hunchentoot:cookie-in name request)
                 (hunchentoot:get-parameter name request))))
    (and id
         (<= (length id) +most-session-octets+)
         (hunchentoots-session request))))

;;; Lists in header fields, and charsets

(defun forwarded-address (hunchentoots &optional (request hunchentoot:*request*))
  "As REAL-REMOTE-ADDR for REQUEST; HUNCHENTOOTS is that function.  X-Forwarded-For says nothing
more where it was believed or not before."
  (declare (ignore hunchentoots))
  (let ((forwarded (and (not (behind-proxies-p (hunchentoot:request-acceptor request)))
                        (hunchentoot:header-in :x-forwarded-for request))))
    (if forwarded
        (let ((addresses (list-of-elements forwarded)))
          (values (first addresses) addresses))
        (hunchentoot:remote-addr request))))

(defun client-keeps-p (hunchentoots request)
  "As Hunchentoot's function KEEP-ALIVE-P for REQUEST; HUNCHENTOOTS is that function."
  (declare (ignore hunchentoots))
  (let* ((options (list-of-elements (or (hunchentoot:header-in :connection request) "")))
         (wanted-p (member "keep-alive" options :test #'string-equal)))
    (values (and (hunchentoot:acceptor-persistent-connections-p hunchentoot:*acceptor*)
                 (case (hunchentoot:server-protocol request)
                   (:http/1.1 (not (member "close" options :test #'string-equal)))
                   (:http/1.0 wanted-p)))
            wanted-p)))

(defun guarded-format (hunchentoots type)
  "As EXTERNAL-FORMAT-OF-TYPE for TYPE; HUNCHENTOOTS is Hunchentoot's function for that, which
interns."
  (declare (ignore hunchentoots))
  (external-format-of-type type))

;;; Parameters of easy handlers

(defconstant +most-integer-characters+ 100
  "The longest text that is taken for an integer.")

(defun converted-parameter (hunchentoots argument type)
  "Converts the parameter ARGUMENT to TYPE as HUNCHENTOOTS, a function, does; but returns NIL for a
keyword that does not exist, and for an integer that is too long."
  (cond ((and (stringp argument) (eq type 'keyword))
         (values (find-symbol (string-upcase argument) '#:keyword)))
        ((not (and (stringp argument) (eq type 'integer)
                   (> (length argument) +most-integer-characters+)))
         (funcall hunchentoots argument type))))

(defconstant +most-array-elements+ 10000
  "How many elements an array of parameters may have, since clients choose the indices.")

(defun element-index (name array-name)
  "The index of the parameter NAME in the array of parameters ARRAY-NAME; NIL where it is not in it,
or beyond +MOST-ARRAY-ELEMENTS+."
  (let ((start (length array-name)) (end (1- (length name))))
    (and (< start end)
         (char= #\[ (char name start))
         (char= #\] (char name end))
         (string= array-name name :end2 start)
         (let ((index (decimal-number name (1+ start) end +most-integer-digits+)))
           (and index
                (< index +most-array-elements+)
                index)))))

(defun array-parameter (hunchentoots name type parameters)
  "An array called NAME of PARAMETERS converted to TYPE, as HUNCHENTOOTS, a function, makes it; but
without elements that would make it too large."
  (funcall hunchentoots name type
           (remove-if-not (lambda (parameter) (element-index (car parameter) name)) parameters)))
