(in-package #:hunchentoot-recycling-taskmaster.http)

;;; The state of a head parser, and the steps by which its phases (parser.lisp) change it.
;;;
;;; Invariants:
;;; - START is the position of the head, and BASE the position of the current line, LINE octets
;;;   after START.  OFFSET and MARK count from BASE, since the caller may move the octets
;;;   between two calls.
;;; - The current section (request line or header fields) must end within BUDGET octets from
;;;   BASE.  A phase never sees an octet beyond them.

(defstruct (parser (:include opaque) (:constructor %make-parser (limits))
                   (:copier nil) (:predicate nil))
  "Reads request heads off a connection, one after the other; see PARSE-HEAD.  A parser holds the
parsed part of an incomplete head, but none of its octets."
  (limits *default-limits* :type limits)
  (phase 'read-empty-line :type symbol)
  (start 0 :type index)
  (base 0 :type index)
  (line 0 :type index)
  (offset 0 :type index)                ; the number of octets of the line that were examined
  (mark 0 :type index)                  ; the start of the current word within the line
  (budget 0 :type index)
  (head nil :type (or null head))       ; the head as far as it was read
  (fields '() :type list)               ; alist, newest first
  (field-count 0 :type index)
  (field-name nil :type (or symbol string)) ; the name of the current field
  (field-role 0 :type role)
  (seen 0 :type role)                   ; the union of the roles of FIELDS
  (repeated-p nil :type boolean)        ; true if a value in FIELDS is a list, newest first
  ;; True if the parser checks the octets without storing their words; see FORGET-HEAD.
  (judging-p nil :type boolean))

(defun reset-parser (parser &optional (limits (parser-limits parser)))
  "Makes PARSER ready for a new request under LIMITS, and returns PARSER.  The caller needs this
only to drop an unfinished head, after a PROTOCOL-ERROR, or to change LIMITS between requests."
  (declare (type parser parser) (type limits limits) #.*plain-policy*)
  (setf (parser-limits parser) limits
        (parser-phase parser) 'read-empty-line
        (parser-line parser) 0
        (parser-offset parser) 0
        (parser-budget parser) (limits-request-line-octets limits)
        (parser-head parser) nil
        (parser-fields parser) '()
        (parser-field-count parser) 0
        (parser-field-name parser) nil
        (parser-seen parser) 0
        (parser-repeated-p parser) nil
        (parser-judging-p parser) nil)
  parser)

(defun forget-head (parser)
  "Frees the strings that PARSER has made for an unfinished head, so that a connection that waits
for the rest of the head holds only its octets.  PARSER continues to check each octet once.  When
the head is complete, PARSER reads the whole head again."
  (declare (type parser parser))
  (when (parser-head parser)
    (setf (parser-head parser) nil
          (parser-fields parser) '()
          (parser-field-name parser) nil
          (parser-repeated-p parser) nil
          (parser-judging-p parser) t)))

(defun make-parser (&optional (limits *default-limits*))
  "A parser of request heads under LIMITS."
  (reset-parser (%make-parser limits)))

(defun parser-begun-p (parser)
  "True if PARSER has seen an octet of a request, not counting empty lines before the request."
  (check-type parser parser)
  (not (member (parser-phase parser) '(read-empty-line end-empty-line))))

(defun parser-fresh-p (parser)
  "True if PARSER has seen no octet since its last request, not even of an empty line."
  (declare (type parser parser) #.*plain-policy*)
  (and (eq (parser-phase parser) 'read-empty-line)
       (= (parser-budget parser) (limits-request-line-octets (parser-limits parser)))))

;;; Moving on

(defmacro proceed (phase parser octets position end)
  "Makes PHASE the phase of PARSER, with its word beginning at POSITION of OCTETS.  Calls PHASE if
there are octets before END; else returns NIL."
  (let ((start (gensym "START")))
    `(let ((,start ,position))
       (declare (type index ,start))
       (setf (parser-phase ,parser) ',phase
             (parser-mark ,parser) (- ,start (parser-base ,parser)))
       (and (< ,start ,end)
            (,phase ,parser ,octets ,start ,end)))))

(declaim (inline begin-line))
(defun begin-line (parser phase position budget)
  "Makes PHASE begin a line at POSITION with BUDGET octets left; returns POSITION."
  (setf (parser-phase parser) phase
        (parser-base parser) position
        (parser-budget parser) budget)
  position)

(declaim (inline remaining-budget))
(defun remaining-budget (parser position)
  "The octets of the budget that are left at POSITION."
  (- (parser-budget parser) (- position (parser-base parser))))

;;; Collecting fields

(declaim (inline note-field-name))
(defun note-field-name (parser octets start end)
  "Stores OCTETS from START below END as the name of the current field."
  (declare (type parser parser) #.*plain-policy*)
  (when (= (parser-field-count parser) (limits-header-count (parser-limits parser)))
    (refuse :too-many-headers))
  (incf (parser-field-count parser))
  (setf (values (parser-field-name parser) (parser-field-role parser))
        (field-name octets start end)))

(declaim (inline add-field))
(defun add-field (parser value)
  "Adds VALUE, a string, to the fields under the name of the current field."
  (declare (type parser parser) #.*plain-policy*)
  (let* ((name (parser-field-name parser))
         (role (parser-field-role parser))
         (seen (parser-seen parser))
         (earlier (and (logtest role seen)
                       (find-field name (parser-fields parser)))))
    (cond (earlier
           (repeat-field role earlier value)
           (setf (parser-repeated-p parser) t))
          (t
           (push (cons name value) (parser-fields parser))
           (setf (parser-seen parser) (logior role seen))))))

(defun judge-field (parser)
  "Records the role of the current field, whose value the parser does not store."
  (declare (type parser parser) #.*plain-policy*)
  (let ((role (parser-field-role parser)))
    (when (logtest role (parser-seen parser))
      (refuse-repeated role))
    (setf (parser-seen parser) (logior role (parser-seen parser)))))

(defun refuse-repeated (role)
  "Refuses a second field of ROLE if the head may have only one."
  ;; RFC 9112, section 3.2, and RFC 9110, section 8.6.  A server may accept equal values of
  ;; Content-Length as one.  This server refuses them, since no honest client sends them.
  (cond ((= role +host+) (refuse :repeated-host))
        ((= role +content-length+) (refuse :repeated-content-length))))

(defun repeat-field (role entry value)
  "Adds VALUE to the values of ENTRY.  Refuses it if the head may have only one field of ROLE."
  (refuse-repeated role)
  (when (stringp (cdr entry))
    (setf (cdr entry) (list (cdr entry))))
  (push value (cdr entry)))

(defun joined-values (name values)
  "Joins VALUES, the latest first, of the fields called NAME into one string.  All values are joined
at once, since joining them two by two would take quadratic time."
  (let* ((separator (if (eq name :cookie) "; " ","))
         (gap (length separator))
         (position (+ (reduce #'+ values :key #'length) (* gap (1- (length values)))))
         (joined (make-string position)))
    (loop for (value . more) on values
          do (replace joined value :start1 (decf position (length value)))
             (when more
               (replace joined separator :start1 (decf position gap))))
    joined))

(defun finished-fields (parser)
  "The alist of the fields that PARSER has read, in the order of first appearance."
  (let ((fields (nreverse (parser-fields parser))))
    (when (parser-repeated-p parser)
      (dolist (field fields)
        (when (listp (cdr field))
          (setf (cdr field) (joined-values (car field) (cdr field))))))
    fields))
