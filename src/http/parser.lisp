(in-package #:hunchentoot-recycling-taskmaster.http)

;;;; The parser of request heads keeps nothing: where a head has come in part, its octets are parsed
;;;; anew when more have come.  It judges a line as soon as its octets tell.  So the decision to
;;;; refuse a request depends on its octets alone, not on how they were split in transit.  A client
;;;; that sends octets one by one costs no more than one that sends as many requests.
;;;;
;;;; It is strict: if it were more lenient than a proxy in front of it, an attacker could make the
;;;; two see different requests.

(defun refuse-octet (octet refusal)
  "Refuses OCTET at the end of a word: a line feed as a bare one, any other octet with REFUSAL."
  (refuse (if (= octet +line-feed+) :bare-line-feed refusal)))

(declaim (inline line-end-after))
(defun line-end-after (octets position end)
  "The position after the line end in OCTETS whose carriage return is at POSITION; NIL where END
comes before.  Refuses a carriage return without a line feed."
  (declare (type octets octets) (type index position end))
  (when (< (1+ position) end)
    ;; RFC 9112, section 2.2: MUST consider an element with a bare CR invalid.
    (unless (= +line-feed+ (aref octets (1+ position)))
      (refuse :bare-carriage-return))
    (the index (+ 2 position))))

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
          start stop))
  (let ((next (line-end-after octets start end))
        (uri (head-uri head)))
    (declare (type text uri))
    (when next
      ;; RFC 9112, section 3.2: no form has a fragment.  Some proxies would read it as a part of the
      ;; path, and others not.
      (when (loop for char across uri thereis (char= #\# char)) ; FIND would call a function
        (refuse :fragment-in-target))
      (unless (and (char= #\/ (schar uri 0)) ; RFC 9112, section 3.2.1
                   (not (eq :connect (head-method head))))
        (settle-unusual-target head)))
    next))

(defun read-field (octets start end first-p)
  "Reads the field line in OCTETS from START below END; FIRST-P is true for the first one.  Returns
the position after it, the name, the value, and the role; or NIL where more has to come."
  (declare (type octets octets) (type index start end) #.*plain-policy*)
  ;; RFC 9112, section 5: field-line = field-name ":" OWS field-value OWS
  (let* ((name-end (run-end octets start end +token+))
         (value-end (if (< name-end end) (run-end octets (1+ name-end) end +value+) end)))
    (declare (type index name-end value-end))
    (when (= name-end end)
      (return-from read-field nil))
    (unless (and (= (aref octets name-end) +colon+) (< start name-end))
      (refuse-name-end (aref octets name-end) (= start name-end) first-p))
    (unless (or (= value-end end) (= (aref octets value-end) +carriage-return+))
      (refuse-octet (aref octets value-end) :control-in-value))
    (let ((next (line-end-after octets value-end end))
          (word (find-word *headers* octets start name-end 32))
          (from (1+ name-end))
          (to value-end))
      (declare (type index from to))
      (unless next
        (return-from read-field nil))
      (loop while (and (< from to) (octet-in-class-p (aref octets from) +whitespace+))
            do (incf from))
      (loop while (and (< from to) (octet-in-class-p (aref octets (1- to)) +whitespace+))
            do (decf to))
      (values next
              (if word
                  (word-keyword word)
                  (let ((name (string-upcase (latin-1-text octets start name-end))))
                    (or (find-symbol name '#:keyword)
                        name)))
              (latin-1-text octets from to)
              (if word (word-role word) +unknown-field+)))))

(defun parse-head (octets start end &optional (limits *default-limits*))
  "Parses the request head in OCTETS from START below END, under LIMITS.  Returns the HEAD and the
position after its last octet.  Returns NIL where it has come in part: then the caller keeps the
octets, receives more, and calls again with all of them.  The head shares no memory with OCTETS.
Signals a PROTOCOL-ERROR with status 400, 413, 414, 417, 431, 501 or 505 as soon as the octets
received so far cannot become an acceptable request (RFC 9112, section 2.2)."
  (declare (type index start end) (type limits limits) #.*plain-policy*)
  (check-range octets start end)
  (let ((head (start-head))
        (request-line-p t)
        (fields '())                    ; as SETTLE-HEAD gets them, the last one first
        (count 0)
        (seen 0)                        ; the union of the roles of all fields
        (line start)
        (most (limits-request-line-octets limits)))
    (declare (type index count line) (type role seen))
    (loop
      ;; The request line, with the empty lines before it, must end within its limit, and so must
      ;; the head.  No octet beyond it is looked at.
      (let* ((stop (max line (min end (+ start most))))
             (empty-p (and (< line stop) (= (aref octets line) +carriage-return+)))
             (next nil))
        (declare (type index stop) (type (or null index) next))
        (cond ((= line stop))
              (empty-p
               (setf next (line-end-after octets line stop)))
              (request-line-p
               (when (setf next (read-request-line head octets line stop))
                 (setf request-line-p nil
                       most (limits-header-octets limits))))
              ((= count (limits-header-count limits))
               (refuse :too-many-headers))
              (t
               (multiple-value-bind (after name value role)
                   (read-field octets line stop (= 0 count))
                 (when (setf next after)
                   (let ((earlier (and (logtest role seen)
                                       (if (symbolp name)
                                           (assoc name fields :test #'eq)
                                           (assoc-if (lambda (other)
                                                       (and (stringp other)
                                                            (string-equal name other)))
                                                     fields)))))
                     ;; RFC 9112, section 3.2, and RFC 9110, section 8.6.  A server may accept equal
                     ;; values of Content-Length as one.  This server refuses them, since no honest
                     ;; client sends them.
                     (cond ((null earlier) (push (cons name value) fields))
                           ((= role +host+) (refuse :repeated-host))
                           ((= role +content-length+) (refuse :repeated-content-length))
                           (t (setf (cdr earlier)
                                    (cons value (if (listp (cdr earlier))
                                                    (cdr earlier)
                                                    (list (cdr earlier))))))))
                   (setf count (1+ count)
                         seen (logior role seen))))))
        (cond ((null next)
               (when (< stop end)
                 (refuse (cond ((not request-line-p) :headers-too-large)
                               ((or (= line stop) empty-p) :too-many-empty-lines)
                               ((head-method head) :target-too-long)
                               (t :method-too-long))))
               (return nil))
              ((and empty-p (not request-line-p))
               (settle-head head (nreverse fields) seen limits)
               (return (values head next))))
        ;; Empty lines before the request line are ignored (RFC 9112, section 2.2).
        (setf line next)))))

(defun request-start (octets start end)
  "The position in OCTETS, from START below END, of a request that has begun behind empty lines; END
if none has."
  (or (position-if-not (lambda (octet)
                         (or (= +carriage-return+ octet) (= +line-feed+ octet)))
                       octets :start start :end end)
      end))

(defun known-request-line (octets start end &optional (limits *default-limits*))
  "A HEAD with the method, the target and the protocol of a request whose head is unfinished or was
refused, in OCTETS from START below END, under LIMITS, as far as they are known."
  (let ((head (start-head))
        (end (min end (+ start (limits-request-line-octets limits)))))
    (handler-case (read-request-line head octets (request-start octets start end) end)
      (protocol-error () nil))
    head))
