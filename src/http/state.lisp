(in-package #:hunchentoot-recycling-taskmaster.http)

;;; What a parser remembers, and how its phases (parser.lisp) change it.
;;;
;;; Invariants:
;;; - START is where the head begins, and BASE where the current line does: LINE octets
;;;   behind it.  OFFSET and MARK count from BASE, since the caller may move the octets
;;;   between two calls.
;;; - BUDGET octets from BASE on the current section (request line or header fields)
;;;   must end.  A phase never sees an octet beyond it.

(defstruct (parser (:include opaque) (:constructor %make-parser (limits))
                   (:copier nil) (:predicate nil))
  "Reads request heads off a connection, one after the other; see PARSE-HEAD.
Holds what is known of a head that has not arrived whole, and no octets."
  (limits *default-limits* :type limits)
  (phase 'read-empty-line :type symbol)
  (start 0 :type index)
  (base 0 :type index)
  (line 0 :type index)
  (offset 0 :type index)                ; how much of the line has been judged
  (mark 0 :type index)                  ; where in the line the current word begins
  (budget 0 :type index)
  (head nil :type (or null head))       ; what has been understood so far
  (fields '() :type list)               ; alist, newest first
  (field-count 0 :type index)
  (field-name nil :type (or symbol string)) ; of the line being read
  (field-role 0 :type role)
  (seen 0 :type role)                   ; the roles of FIELDS together
  (repeated-p nil :type boolean)        ; a value of FIELDS is a list, newest first
  ;; Octets are judged, and what they say is not remembered; see FORGET-HEAD.
  (judging-p nil :type boolean))

(defun reset-parser (parser &optional (limits (parser-limits parser)))
  "Makes PARSER await a new request under LIMITS; returns it.  Needed only to drop an
unfinished head, after a PROTOCOL-ERROR, and to change LIMITS between two requests."
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
  "Drops what PARSER remembers of an unfinished head, strings above all: a connection that waits for
the rest has the octets, and no more.  PARSER goes on to judge each octet once, and reads the whole
head again when that has come.  What it returns does not matter."
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
  "True if PARSER has seen an octet of a request, empty lines before it apart."
  (check-type parser parser)
  (not (member (parser-phase parser) '(read-empty-line end-empty-line))))

(defun parser-fresh-p (parser)
  "True if PARSER has seen no octet since its last request, not even of an empty line."
  (declare (type parser parser) #.*plain-policy*)
  (and (eq (parser-phase parser) 'read-empty-line)
       (= (parser-budget parser) (limits-request-line-octets (parser-limits parser)))))

;;; Moving on

(defmacro proceed (phase parser octets position end)
  "Makes PHASE the next of PARSER, its word beginning at POSITION of OCTETS, and calls it
if there are octets before END; else returns NIL."
  (let ((start (gensym "START")))
    `(let ((,start ,position))
       (declare (type index ,start))
       (setf (parser-phase ,parser) ',phase
             (parser-mark ,parser) (- ,start (parser-base ,parser)))
       (and (< ,start ,end)
            (,phase ,parser ,octets ,start ,end)))))

(declaim (inline begin-line))
(defun begin-line (parser phase position budget)
  "Makes PHASE begin a line at POSITION with BUDGET octets to go; returns POSITION."
  (setf (parser-phase parser) phase
        (parser-base parser) position
        (parser-budget parser) budget)
  position)

(declaim (inline remaining-budget))
(defun remaining-budget (parser position)
  "What is left of the budget at POSITION."
  (- (parser-budget parser) (- position (parser-base parser))))

;;; Collecting fields

(declaim (inline note-field-name))
(defun note-field-name (parser octets start end)
  "Remembers OCTETS from START below END as the name of the field being read."
  (declare (type parser parser) #.*plain-policy*)
  (when (= (parser-field-count parser) (limits-header-count (parser-limits parser)))
    (refuse :too-many-headers))
  (incf (parser-field-count parser))
  (setf (values (parser-field-name parser) (parser-field-role parser))
        (field-name octets start end)))

(declaim (inline add-field))
(defun add-field (parser value)
  "Adds VALUE, a string, to the fields under the name being read."
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
  "Notes that the field being read has ended, of which nothing is remembered."
  (declare (type parser parser) #.*plain-policy*)
  (let ((role (parser-field-role parser)))
    (when (logtest role (parser-seen parser))
      (refuse-repeated role))
    (setf (parser-seen parser) (logior role (parser-seen parser)))))

(defun refuse-repeated (role)
  "Refuses a field of ROLE, of which there was one before, where it must not be repeated."
  ;; RFC 9112, section 3.2, and RFC 9110, section 8.6.  Equal values of Content-Length
  ;; may be taken as one; no honest client sends them, so they are not.
  (cond ((= role +host+) (refuse :repeated-host))
        ((= role +content-length+) (refuse :repeated-content-length))))

(defun repeat-field (role entry value)
  "Adds VALUE to those of ENTRY, unless fields of ROLE must not be repeated."
  (refuse-repeated role)
  (when (stringp (cdr entry))
    (setf (cdr entry) (list (cdr entry))))
  (push value (cdr entry)))

(defun joined-values (name values)
  "VALUES, the latest first, of the fields called NAME as one string.  One step for all:
joining two at a time would copy the first as often as there are others."
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
