(in-package #:hunchentoot-recycling-taskmaster.http)

;;; The request head parser is a state machine.  Each phase is a function that gets the octets
;;; from where the last phase stopped.  A phase takes one word and calls the next phase
;;; (PROCEED).  At the end of a line, the phase returns the position of the next line.  When
;;; the octets run out first, the phase returns NIL, and PARSE-HEAD calls it again with the
;;; octets that follow.  So the parser examines each octet once, in order, and the decision to
;;; refuse a request depends on its octets alone, not on how they were split in transit.

(defun refuse-octet (octet refusal)
  "Refuses OCTET at the end of a word: a line feed as a bare one, any other octet with REFUSAL."
  (refuse (if (= octet +line-feed+) :bare-line-feed refusal)))

(declaim (inline expect-line-feed))
(defun expect-line-feed (octet)
  "Refuses OCTET, which follows a carriage return, unless it is a line feed."
  ;; RFC 9112, section 2.2: MUST consider an element with a bare CR invalid.
  (unless (= octet +line-feed+)
    (refuse :bare-carriage-return)))

(defmacro define-phase (name (parser octets position end) documentation &body body)
  "Defines NAME as a phase of PARSER that gets OCTETS from POSITION below END, at least one.  BODY
returns the position of the next line, or NIL to wait for more octets."
  `(defun ,name (,parser ,octets ,position ,end)
     ,documentation
     (declare (type parser ,parser) (type octets ,octets) (type index ,position ,end)
              (ignorable ,end) #.*plain-policy*)
     ,@body))

;;; The request line.  RFC 9112, section 3: request-line = method SP request-target SP
;;; HTTP-version.  The parser accepts exactly one space between words.  If it were more lenient
;;; than a proxy in front of it, an attacker could make the two see different requests.

(define-phase read-empty-line (parser octets position end)
  "Skips empty lines before the request line (RFC 9112, section 2.2)."
  (if (= (aref octets position) +carriage-return+)
      (proceed end-empty-line parser octets (1+ position) end)
      (proceed read-method parser octets position end)))

(define-phase end-empty-line (parser octets position end)
  "Takes the line feed of an empty line.  The empty line counts against the request line's budget."
  (expect-line-feed (aref octets position))
  (let ((next (1+ position)))
    (setf (parser-start parser) next)   ; the caller can drop the octets before NEXT
    (begin-line parser 'read-empty-line next (remaining-budget parser next))))

(define-phase read-method (parser octets position end)
  "Takes the method and the space after it."
  (let ((start (parser-base parser))
        (stop (run-end octets position end +token+)))
    (when (< stop end)
      (unless (and (= (aref octets stop) +space+) (< start stop))
        (refuse-octet (aref octets stop) :malformed-method))
      (setf (parser-head parser) (start-head (method-name octets start stop)))
      (proceed read-target parser octets (1+ stop) end))))

(define-phase read-target (parser octets position end)
  "Takes the request target and the space after it."
  (let ((start (+ (parser-base parser) (parser-mark parser)))
        (stop (visible-end octets position end)))
    (when (< stop end)
      (let ((octet (aref octets stop)))
        (cond ((= octet +carriage-return+)
               (refuse :missing-version))
              ((not (and (= octet +space+) (< start stop)))
               (refuse-octet octet :malformed-target))))
      (unless (parser-judging-p parser)
        (setf (head-uri (parser-head parser)) (latin-1-text octets start stop)))
      (proceed read-version parser octets (1+ stop) end))))

(define-phase read-version (parser octets position end)
  "Takes the version and the carriage return after it."
  (let ((start (+ (parser-base parser) (parser-mark parser)))
        (stop (visible-end octets position end)))
    (when (< stop end)
      (unless (= (aref octets stop) +carriage-return+)
        (refuse-octet (aref octets stop) :malformed-version))
      (let ((protocol (protocol-name octets start stop)))
        (unless (parser-judging-p parser)
          (setf (head-protocol (parser-head parser)) protocol)))
      (proceed end-request-line parser octets (1+ stop) end))))

(define-phase end-request-line (parser octets position end)
  "Takes the line feed of the request line, and checks the target."
  (expect-line-feed (aref octets position))
  (when (parser-judging-p parser)
    (read-request-line-again parser octets (parser-base parser) position))
  (settle-target (parser-head parser))
  (let ((next (1+ position)))
    (begin-line parser 'read-name next (budget-after-request-line parser next))))

(defun read-request-line-again (parser octets start end)
  "Reads the request line again, now to store its words in PARSER, which has only checked them so
far.  The line, or its first part, is in OCTETS from START below END.  Signals the same refusal as
the first reading."
  (setf (parser-judging-p parser) nil
        (parser-base parser) start)
  (when (< start end)
    (read-method parser octets start end)))

(defun budget-after-request-line (parser position)
  "The number of octets that the header lines may have: the limit of the whole head, less the
request line, which ends at POSITION."
  (let ((limits (parser-limits parser)))
    (max 0 (- (limits-header-octets limits)
              (- (limits-request-line-octets limits) (remaining-budget parser position))))))

;;; The field lines.  RFC 9112, section 5: field-line = field-name ":" OWS field-value OWS

(define-phase read-name (parser octets position end)
  "Takes the name of a field and the colon after it, or the beginning of an empty line."
  (let ((start (parser-base parser))
        (stop (run-end octets position end +token+)))
    (when (< stop end)
      (cond ((and (= (aref octets stop) +colon+) (< start stop))
             (note-field-name parser octets start stop)
             (proceed read-value parser octets (1+ stop) end))
            ((and (= (aref octets stop) +carriage-return+) (= start stop))
             (proceed end-head parser octets (1+ stop) end))
            (t
             (refuse-name-end (aref octets stop) (= start stop)
                              (zerop (parser-field-count parser))))))))

(defun refuse-name-end (octet line-start-p first-p)
  "Refuses OCTET, which stands where a colon must follow a field name.  LINE-START-P is true if the
name is empty; FIRST-P is true if the field would have been the first."
  (refuse-octet octet (cond ((not (octet-in-class-p octet +whitespace+))
                             :malformed-field-name)
                            ((not line-start-p) :whitespace-before-colon)
                            (first-p :whitespace-before-fields)
                            (t :folded-line))))

(define-phase read-value (parser octets position end)
  "Takes the value of a field and the carriage return after it."
  (let ((start (+ (parser-base parser) (parser-mark parser)))
        (stop (value-end octets position end)))
    (when (< stop end)
      (unless (= (aref octets stop) +carriage-return+)
        (refuse-octet (aref octets stop) :control-in-value))
      (if (parser-judging-p parser)
          (judge-field parser)
          (add-field parser (value-text octets start stop)))
      (proceed end-field parser octets (1+ stop) end))))

(define-phase end-field (parser octets position end)
  "Takes the line feed of a field line."
  (expect-line-feed (aref octets position))
  (let ((next (1+ position)))
    (begin-line parser 'read-name next (remaining-budget parser next))))

(define-phase end-head (parser octets position end)
  "Takes the line feed of the empty line that ends the head."
  (expect-line-feed (aref octets position))
  (setf (parser-phase parser) nil)
  (1+ position))

;;; The whole head

(defun refuse-over-budget (phase)
  "Refuses a section that is longer than its limit.  PHASE, in which the budget ran out, tells which
section that is."
  (refuse (ecase phase
            ((read-empty-line end-empty-line) :too-many-empty-lines)
            (read-method :method-too-long)
            ((read-target read-version end-request-line) :target-too-long)
            ((read-name read-value end-field end-head) :headers-too-large))))

(defun finished-head (parser)
  "Returns the head that PARSER has read, after the checks that need all of its fields.  PARSER is
then ready for the next head."
  (declare (type parser parser) #.*plain-policy*)
  (let ((head (parser-head parser))
        (seen (parser-seen parser)))
    (setf (head-headers head) (finished-fields parser))
    (settle-host head seen)
    (settle-connection head seen)
    (settle-framing head seen (parser-limits parser))
    (settle-expectation head seen)
    (reset-parser parser)
    head))

(defun read-head-again (parser)
  "Sends PARSER, which has only checked a whole head, back to its start, to read and store it."
  (reset-parser parser)
  (setf (parser-base parser) (parser-start parser)))

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
  (setf (parser-start parser) start
        (parser-base parser) (+ start (parser-line parser)))
  (let ((position (+ (parser-base parser) (parser-offset parser))))
    (declare (type index position))
    (assert (<= position end) (end) "PARSE-HEAD was given fewer octets than before.")
    (loop
      (let* ((base (parser-base parser))
             (stop (min end (+ base (parser-budget parser))))
             (next (and (< position stop)
                        (funcall (parser-phase parser) parser octets position stop))))
        (declare (type index base stop) (type (or null index) next))
        (cond ((null next)
               (when (< stop end)
                 (refuse-over-budget (parser-phase parser)))
               (setf (parser-line parser) (- base (parser-start parser))
                     (parser-offset parser) (- stop base))
               (return (values nil (parser-start parser))))
              ((parser-phase parser)
               (setf position next))
              ((parser-judging-p parser)
               (setf end next)
               (read-head-again parser)
               (setf position (parser-base parser)))
              (t
               (return (values (finished-head parser) next))))))))

(defun known-request-line (parser octets start end)
  "Returns the method, the target and the protocol of a request whose head is unfinished or was
refused; NIL for each one that is not known.  PARSER is the parser of the head; the octets received
so far are in OCTETS from START below END.  Afterwards PARSER must be reset before it is used."
  (when (parser-judging-p parser)
    (handler-case (read-request-line-again parser octets start end)
      (protocol-error () nil)))
  (let ((head (parser-head parser)))
    (if head
        (values (head-method head)
                (and (plusp (length (head-uri head))) (head-uri head))
                (and (not (member (parser-phase parser) '(read-target read-version)))
                     (head-protocol head)))
        (values nil nil nil))))
