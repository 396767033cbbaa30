(in-package #:hunchentoot-recycling-taskmaster.http)

;;;; The parser of request heads goes line by line, and judges a line as soon as its octets tell:
;;;; where they run out first, it goes on with that line when more have come.  So the decision to
;;;; refuse a request depends on its octets alone, not on how they were split in transit.  A line is
;;;; looked at once for each arrival of its octets.
;;;;
;;;; It is strict: if it were more lenient than a proxy in front of it, an attacker could make the
;;;; two see different requests.

(defvar *spelling-kept-p* nil
  "True to keep the client's spelling of a header field name that has no keyword; NIL to change such
a name to upper case.  It is set once, before the first request.")

(defstruct (parser (:include opaque) (:constructor make-parser
                                         (&optional (limits *default-limits*)
                                          &aux (budget (limits-request-line-octets limits))))
                   (:copier nil) (:predicate nil))
  "Reads request heads off a connection, one after the other; see PARSE-HEAD.  A parser holds the
parsed part of an incomplete head, but none of its octets."
  (limits *default-limits* :type limits)
  ;; What has come since the last head: nothing, empty lines or a part of one, or some of a request.
  (progress :nothing :type (member :nothing :empty-lines :request))
  (line 0 :type index)                  ; the start of the current line within the head
  (budget 0 :type index)                ; how many octets the section may have from there on
  ;; The head as far as it was read; NIL beyond the request line if it was forgotten.
  (head nil :type (or null head))
  (fields '() :type list)               ; as SETTLE-HEAD gets them, the last field first
  (field-count 0 :type index)
  (seen 0 :type role))                  ; the union of the roles of all fields

(defun reset-parser (parser &optional (limits (parser-limits parser)))
  "Makes PARSER ready for a new request under LIMITS, and returns PARSER.  The caller needs this
only to drop an unfinished head, after a PROTOCOL-ERROR, or to change LIMITS between requests."
  (declare (type parser parser) (type limits limits) #.*plain-policy*)
  (setf (parser-limits parser) limits
        (parser-progress parser) :nothing
        (parser-line parser) 0
        (parser-budget parser) (limits-request-line-octets limits)
        (parser-head parser) nil
        (parser-fields parser) '()
        (parser-field-count parser) 0
        (parser-seen parser) 0)
  parser)

(defun forget-head (parser)
  "Frees the strings that PARSER has made for an unfinished head, so that a connection that waits
for the rest of the head holds only its octets.  When the head is complete, PARSER reads the whole
head again."
  (declare (type parser parser))
  (setf (parser-head parser) nil
        (parser-fields parser) '()))

(defun parser-begun-p (parser)
  "True if PARSER has seen an octet of a request, not counting empty lines before the request."
  (eq :request (parser-progress parser)))

(defun parser-fresh-p (parser)
  "True if PARSER has seen no octet since its last request, not even of an empty line."
  (eq :nothing (parser-progress parser)))

(defun refuse-octet (octet refusal)
  "Refuses OCTET at the end of a word: a line feed as a bare one, any other octet with REFUSAL."
  (refuse (if (= octet +line-feed+) :bare-line-feed refusal)))

(declaim (inline expect-line-feed))
(defun expect-line-feed (octet)
  "Refuses OCTET, which follows a carriage return, unless it is a line feed."
  ;; RFC 9112, section 2.2: MUST consider an element with a bare CR invalid.
  (unless (= octet +line-feed+)
    (refuse :bare-carriage-return)))

(defun refuse-name-end (octet line-start-p first-p)
  "Refuses OCTET, which stands where a colon must follow a field name.  LINE-START-P is true if the
name is empty; FIRST-P is true if the field would have been the first."
  (refuse-octet octet (cond ((not (octet-in-class-p octet +whitespace+))
                             :malformed-field-name)
                            ((not line-start-p) :whitespace-before-colon)
                            (first-p :whitespace-before-fields)
                            (t :folded-line))))

(defun read-request-line (head octets start end)
  "Reads the request line in OCTETS from START below END into HEAD, as far as it has come.  Returns
the position after it, or NIL where more has to come."
  (declare (type head head) (type octets octets) (type index start end) #.*plain-policy*)
  ;; RFC 9112, section 3: request-line = method SP request-target SP HTTP-version
  (let ((stop (run-end octets start end +token+)))
    (when (= stop end)
      (return-from read-request-line nil))
    (unless (and (= (aref octets stop) +space+) (< start stop))
      (refuse-octet (aref octets stop) :malformed-method))
    (setf (head-method head)
          (let ((word (find-word *methods* octets start stop 0)))
            (if word
                (word-keyword word)
                (let ((name (latin-1-text octets start stop)))
                  (or (find-symbol name '#:keyword) name))))
          start (1+ stop)))
  (let ((stop (run-end octets start end +visible+)))
    (when (= stop end)
      (return-from read-request-line nil))
    (let ((octet (aref octets stop)))
      (cond ((= octet +carriage-return+)
             (refuse :missing-version))
            ((not (and (= octet +space+) (< start stop)))
             (refuse-octet octet :malformed-target))))
    (setf (head-uri head) (latin-1-text octets start stop)
          start (1+ stop)))
  (let ((stop (run-end octets start end +visible+)))
    (when (= stop end)
      (return-from read-request-line nil))
    (unless (= (aref octets stop) +carriage-return+)
      (refuse-octet (aref octets stop) :malformed-version))
    ;; RFC 9112, section 2.3: HTTP-version = HTTP-name "/" DIGIT "." DIGIT, case-sensitive.
    (flet ((digit-p (position)
             (octet-in-class-p (aref octets position) +digit+)))
      (unless (and (= 8 (- stop start))
                   (loop for char across "HTTP/"
                         for position from start
                         always (= (char-code char) (aref octets position)))
                   (digit-p (+ start 5))
                   (= (char-code #\.) (aref octets (+ start 6)))
                   (digit-p (+ start 7)))
        (refuse :malformed-version)))
    (unless (= (char-code #\1) (aref octets (+ start 5)))
      (refuse :unsupported-version))
    ;; RFC 9110, section 2.5: a later minor version counts as the latest known one.
    (setf (head-protocol head) (if (= (char-code #\0) (aref octets (+ start 7)))
                                   :http/1.0
                                   :http/1.1)
          start (1+ stop)))
  (when (< start end)
    (expect-line-feed (aref octets start))
    (let ((uri (head-uri head)))
      (declare (type text uri))
      ;; RFC 9112, section 3.2: no form has a fragment.  Some proxies would read it as a part of the
      ;; path, and others not.
      (when (find #\# uri)
        (refuse :fragment-in-target))
      (unless (and (char= #\/ (schar uri 0)) ; RFC 9112, section 3.2.1
                   (not (eq :connect (head-method head))))
        (settle-unusual-target head)))
    (1+ start)))

(defun read-field (parser octets start end)
  "Reads the field line in OCTETS from START below END for PARSER.  Returns the position after it,
or NIL where more has to come."
  (declare (type parser parser) (type octets octets) (type index start end) #.*plain-policy*)
  ;; RFC 9112, section 5: field-line = field-name ":" OWS field-value OWS
  (let* ((name-end (run-end octets start end +token+))
         (value-end (if (< name-end end) (run-end octets (1+ name-end) end +value+) end)))
    (declare (type index name-end value-end))
    (when (= name-end end)
      (return-from read-field nil))
    (unless (and (= (aref octets name-end) +colon+) (< start name-end))
      (refuse-name-end (aref octets name-end) (= start name-end)
                       (zerop (parser-field-count parser))))
    (when (= (parser-field-count parser) (limits-header-count (parser-limits parser)))
      (refuse :too-many-headers))
    (unless (or (= value-end end) (= (aref octets value-end) +carriage-return+))
      (refuse-octet (aref octets value-end) :control-in-value))
    (unless (< (1+ value-end) end)
      (return-from read-field nil))
    (expect-line-feed (aref octets (1+ value-end)))
    (incf (parser-field-count parser))
    (let* ((word (find-word *headers* octets start name-end 32))
           (name (if word
                     (word-keyword word)
                     (let* ((spelling (latin-1-text octets start name-end))
                            (name (string-upcase spelling)))
                       (or (find-symbol name '#:keyword)
                           (if *spelling-kept-p* spelling name)))))
           (role (if word (word-role word) +unknown-field+))
           (seen (parser-seen parser))
           (earlier nil)
           (from (1+ name-end))
           (to value-end))
      (declare (type index from to))
      (loop while (and (< from to) (octet-in-class-p (aref octets from) +whitespace+))
            do (incf from))
      (loop while (and (< from to) (octet-in-class-p (aref octets (1- to)) +whitespace+))
            do (decf to))
      (when (logtest role seen)
        ;; RFC 9112, section 3.2, and RFC 9110, section 8.6.  A server may accept equal values of
        ;; Content-Length as one.  This server refuses them, since no honest client sends them.
        (cond ((= role +host+) (refuse :repeated-host))
              ((= role +content-length+) (refuse :repeated-content-length)))
        (setf earlier (if (symbolp name)
                          (assoc name (parser-fields parser) :test #'eq)
                          (assoc-if (lambda (other)
                                      (and (stringp other) (string-equal name other)))
                                    (parser-fields parser)))))
      (let ((value (latin-1-text octets from to)))
        (cond (earlier
               (setf (cdr earlier) (cons value (if (listp (cdr earlier))
                                                   (cdr earlier)
                                                   (list (cdr earlier))))))
              (t
               (push (cons name value) (parser-fields parser))
               (setf (parser-seen parser) (logior role seen))))))
    (+ 2 value-end)))

(defun parse-head (parser octets start end)
  "Continues to parse a request head with PARSER, in OCTETS from START below END.  Returns two
values: the HEAD and the position after its last octet, if the head is complete; else NIL and the
position of its first octet.  In the second case, the caller keeps the octets from that position on,
receives more, and calls again.  START is then the position of the first octet of the head; the
caller may have moved the octets within the buffer.  The head shares no memory with OCTETS.
Signals a PROTOCOL-ERROR with status 400, 413, 414, 417, 431, 501 or 505 as soon as the octets
received so far cannot become an acceptable request (RFC 9112, section 2.2)."
  (declare (type parser parser) (type index start end) #.*plain-policy*)
  (check-range octets start end)
  (let ((line (+ start (parser-line parser)))
        (limits (parser-limits parser)))
    (declare (type index line))
    (assert (<= line end) (end) "PARSE-HEAD was given fewer octets than before.")
    (loop
      ;; The request line, with the empty lines before it, must end within the budget, and so must
      ;; the fields.  No octet beyond it is looked at.
      (let* ((stop (min end (+ line (parser-budget parser))))
             (request-line-p (= line start))
             (empty-p (and (< line stop) (= (aref octets line) +carriage-return+)))
             (next (cond ((= line stop) nil)
                         (empty-p
                          (when (< (1+ line) stop)
                            (expect-line-feed (aref octets (1+ line)))
                            (+ 2 line)))
                         (request-line-p
                          (read-request-line (or (parser-head parser)
                                                 (setf (parser-head parser) (start-head)))
                                             octets line stop))
                         (t (read-field parser octets line stop)))))
        (declare (type index stop) (type (or null index) next))
        (cond ((null next)
               (when (< stop end)
                 (refuse (cond ((not request-line-p) :headers-too-large)
                               ((or (= line stop) empty-p) :too-many-empty-lines)
                               ((head-method (parser-head parser)) :target-too-long)
                               (t :method-too-long))))
               (setf (parser-line parser) (- line start)
                     (parser-progress parser)
                     (cond ((and request-line-p (or (= line end) empty-p))
                            (if (= start end) (parser-progress parser) :empty-lines))
                           (t :request)))
               (return (values nil start)))
              ((and empty-p request-line-p) ; RFC 9112, section 2.2: it is ignored
               (decf (parser-budget parser) 2)
               (setf (parser-progress parser) :empty-lines
                     start next             ; the caller can drop the octets before
                     line next))
              (empty-p
               (let ((head (parser-head parser)))
                 (when head
                   (settle-head head (nreverse (parser-fields parser)) (parser-seen parser)
                                limits))
                 (reset-parser parser)
                 (when head
                   (return (values head next)))
                 (setf end next             ; it was forgotten: once more
                       line start)))
              (t
               (decf (parser-budget parser) (- next line))
               (when request-line-p     ; the limit of the fields is that of the whole head
                 (setf (parser-budget parser)
                       (max 0 (- (limits-header-octets limits)
                                 (- (limits-request-line-octets limits)
                                    (parser-budget parser))))))
               (setf line next)))))))

(defun known-request-line (parser octets start end)
  "Returns the method, the target and the protocol of a request whose head is unfinished or was
refused; NIL for each one that is not known.  PARSER is the parser of the head; the octets received
so far are in OCTETS from START below END.  Afterwards PARSER must be reset before it is used."
  (let ((head (parser-head parser)))
    (unless head                        ; it was forgotten, if anything has come
      (setf head (start-head))
      (handler-case (read-request-line head octets start end)
        (protocol-error () nil)))
    (values (head-method head)
            (and (plusp (length (head-uri head))) (head-uri head))
            (head-protocol head))))
