(in-package #:hunchentoot-recycling-taskmaster)

;;;; The path, query and cookies of a request, as Hunchentoot's strings and alists of strings.
;;;; Hunchentoot splits them by regular expressions; that for cookies takes quadratic time for white
;;;; space.  The code here looks at each character a fixed number of times, with the same result.

(defun decoded (text start end external-format ascii-p &optional (plus-p t))
  "A fresh string: TEXT from START to END, URL-decoded in EXTERNAL-FORMAT, which is a superset of
ASCII if ASCII-P.  A plus is a space if PLUS-P."
  (declare (type text text) (type index start end) #.*plain-policy*)
  (let ((decoded (make-string (- end start)))
        (position start)
        (fill 0))
    (declare (type index position fill))
    (flet ((digit (position)
             (and (< position end) (digit-char-p (schar text position) 16))))
      (loop while (and ascii-p (< position end))
            do (let ((char (schar text position)))
                 (case char
                   (#\+ (when plus-p (setf char #\Space)))
                   (#\% (let ((high (digit (+ position 1))) (low (digit (+ position 2))))
                          (setf char (code-char (if (and high low) (+ (* 16 high) low) 255)))
                          (incf position 2))))
                 (setf ascii-p (< (char-code char) 128)
                       (schar decoded fill) char)
                 (incf fill)
                 (incf position))))
    (cond ((not ascii-p)
           (apply 'hunchentoot:url-decode (text-part text start end) external-format
                  (if plus-p '() '(nil)))) ; since 1.3.0
          ((= fill (length decoded)) decoded)
          (t (text-part decoded 0 fill)))))

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

(defun text-elements (text separator &optional (other separator))
  "The elements of TEXT, strings, which the characters SEPARATOR and OTHER separate, without the
white space around them.  Empty elements count, except at the end."
  (declare (type text text) (type character separator other) #.*plain-policy*)
  (let ((elements '()))
    (loop for start of-type index = 0 then (1+ end)
          for end of-type index = (or (position-if (lambda (char)
                                                     (or (char= char separator)
                                                         (char= char other)))
                                                   text :start start)
                                      (length text))
          do (push (string-trim '(#\Space #\Tab) (text-part text start end)) elements)
          until (= end (length text)))
    (nreverse (member "" elements :test-not #'equal))))

(defun cookie-alist (cookies)
  "An alist of the names and values in COOKIES, a text, as Hunchentoot makes it."
  (loop for element in (text-elements cookies #\, #\;)
        for equals = (or (position #\= element) (length element))
        collect (cons (string-trim " " (subseq element 0 equals))
                      (subseq element (min (length element) (1+ equals))))))

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
                               '~A' in request has been ignored."
                     charset)
                    nil)))))

;;;; Functions of Hunchentoot that read what a client has sent, and that would intern it, match it
;;;; by a regular expression that backtracks, or read a number of any length.  We wrap them, so that
;;;; they take linear time for any input and make no symbols.

;;; Lists in header fields, and charsets

(defun forwarded-address (hunchentoots &optional (request hunchentoot:*request*))
  "As REAL-REMOTE-ADDR for REQUEST; HUNCHENTOOTS is that function.  X-Forwarded-For says nothing
more where it was believed or not before."
  (declare (ignore hunchentoots))
  (let ((forwarded (and (not (behind-proxies-p (hunchentoot:request-acceptor request)))
                        (hunchentoot:header-in :x-forwarded-for request))))
    (if forwarded
        (let ((addresses (text-elements (coerce forwarded 'text) #\,)))
          (values (first addresses) addresses))
        (hunchentoot:remote-addr request))))

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

(defconstant +most-index-digits+ 4
  "How many digits an index of an array of parameters may have.")

(defun array-parameter (hunchentoots name type parameters)
  "An array called NAME of PARAMETERS converted to TYPE, as HUNCHENTOOTS, a function, makes it; but
without those with indices of more than +MOST-INDEX-DIGITS+, since clients choose them."
  (let ((longest (+ (length name) (length "[]") +most-index-digits+)))
    (funcall hunchentoots name type
             (remove-if (lambda (parameter) (> (length (car parameter)) longest)) parameters))))
