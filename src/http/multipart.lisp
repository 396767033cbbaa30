(in-package #:hunchentoot-recycling-taskmaster.http)

;;; A multipart parser finds the parts among the octets of a multipart body.  Like the head parser,
;;; it is a state machine, keeps no octets, and gives the same result however the octets are split.
;;;
;;; A delimiter is a line that begins with two hyphens and the boundary.  The line end before it
;;; belongs to the delimiter, not to the content (RFC 2046, section 5.1.1).  Two hyphens directly
;;; after the boundary close the body; the parser ignores any other text on that line.
;;;
;;; Invariants:
;;; - FRESH-P is true where a delimiter needs no line end before it: at the start of the body and,
;;;   since an empty line has just ended, at the start of a part's content.
;;; - A phase that returns no event and sets no other phase has used all octets that it can.
;;; - A boundary has no carriage return.  So the search for it, from carriage return to carriage
;;;   return, examines no octet more than twice.

(define-condition malformed-multipart (recycling-error)
  ()
  (:report "The head of a part is larger than this server takes.")
  (:documentation "A multipart body is not acceptable."))

(defconstant +part-head-octets+ (* 16 1024)
  "The maximum number of octets in the head of one part, with its empty line.")

(defconstant +boundary-octets+ 1024
  "The maximum number of octets in a boundary.  RFC 2046, section 5.1.1, allows 1 to 70; other
servers have other limits.")

(defstruct (multipart-parser (:include opaque) (:copier nil)
                             (:constructor %make-multipart-parser (delimiter))
                             (:predicate nil) (:conc-name multipart-))
  "Finds the parts of one multipart body; see PARSE-MULTIPART."
  (delimiter (make-octets 0) :type octets :read-only t) ; line end, two hyphens, boundary
  (phase 'skip-preamble :type symbol)   ; NIL after the last delimiter
  (fresh-p t :type boolean)
  (closed-p nil :type boolean)          ; true once the last delimiter has begun
  (judged 0 :type index))               ; octets of a part's head that were searched for its end

(defun boundary-p (text)
  "True if TEXT, a string, can be the boundary of a multipart body."
  (and (<= (length text) +boundary-octets+)
       (every (lambda (char) (<= 32 (char-code char) 255)) text)))

(defun make-multipart-parser (boundary)
  "A parser for a body whose parts are delimited by BOUNDARY, a string.  BOUNDARY-P must be true of
it."
  (check-type boundary (satisfies boundary-p))
  (%make-multipart-parser
   (concatenate 'octets (vector +carriage-return+ +line-feed+) (ascii-octets "--")
                (map 'list #'char-code boundary))))

(defun multipart-done-p (parser)
  "True if PARSER has seen the line end after the last delimiter."
  (null (multipart-phase parser)))

;;; Searching

(defun find-octets (wanted octets start end)
  "Searches OCTETS from START below END for WANTED, which begins with a carriage return.  Returns
its position and true; if it is not there, the position where its first octets may be, or END; and
NIL."
  (declare (type octets wanted octets) (type index start end) #.*plain-policy*)
  (loop
    (let* ((position (octet-position +carriage-return+ octets start end))
           (same (matching-octets wanted 0 octets position end)))
      (declare (type index position same))
      (cond ((= same (length wanted)) (return (values position t)))
            ((= (+ position same) end) (return (values position nil))))
      (setf start (1+ position)))))

(defun find-delimiter (parser octets start end)
  "Searches OCTETS from START below END for the next delimiter.  Returns the end of the octets that
are certainly before it; and the end of the delimiter, or NIL if it was not found."
  (declare (type multipart-parser parser) (type octets octets) (type index start end)
           #.*plain-policy*)
  (let ((delimiter (multipart-delimiter parser)))
    (when (multipart-fresh-p parser)
      (let* ((same (matching-octets delimiter 2 octets start end))
             (stop (+ start same)))
        (cond ((= same (- (length delimiter) 2)) (return-from find-delimiter (values start stop)))
              ((= stop end) (return-from find-delimiter (values start nil)))
              (t (setf (multipart-fresh-p parser) nil)))))
    (multiple-value-bind (position found-p) (find-octets delimiter octets start end)
      (values position (and found-p (+ position (length delimiter)))))))

;;; The phases.  Each gets OCTETS from POSITION below END, at least one, and returns the values of
;;; PARSE-MULTIPART.  A phase that returns no event may have set another phase.

(defmacro define-multipart-phase (name (parser octets position end) documentation &body body)
  "Defines NAME as a phase of PARSER, a multipart parser."
  `(defun ,name (,parser ,octets ,position ,end)
     ,documentation
     (declare (type multipart-parser ,parser) (type octets ,octets) (type index ,position ,end)
              #.*plain-policy*)
     ,@body))

(defmacro without-event (position)
  `(values nil nil nil ,position))

(define-multipart-phase skip-preamble (parser octets position end)
  "Drops the octets before the first delimiter, and takes the delimiter."
  (multiple-value-bind (stop after) (find-delimiter parser octets position end)
    (when after
      (setf (multipart-phase parser) 'judge-delimiter))
    (without-event (or after stop))))

(define-multipart-phase judge-delimiter (parser octets position end)
  "Decides whether a delimiter is the last one."
  (let ((hyphen-p (= +hyphen+ (aref octets position))))
    (cond ((and hyphen-p (= end (1+ position)))
           (without-event position))
          (t
           (setf (multipart-closed-p parser)
                 (and hyphen-p (= +hyphen+ (aref octets (1+ position))))
                 (multipart-phase parser) 'skip-to-return)
           (without-event (if hyphen-p (1+ position) position))))))

(define-multipart-phase skip-to-return (parser octets position end)
  "Drops the rest of the line of a delimiter, and takes the carriage return."
  (let ((stop (octet-position +carriage-return+ octets position end)))
    (declare (type index stop))
    (cond ((= stop end) (without-event end))
          (t
           (setf (multipart-phase parser) 'skip-to-feed)
           (without-event (1+ stop))))))

(define-multipart-phase skip-to-feed (parser octets position end)
  "Takes the line feed at the end of a delimiter."
  (let ((stop (octet-position +line-feed+ octets position end)))
    (declare (type index stop))
    (cond ((= stop end) (without-event end))
          (t
           (setf (multipart-judged parser) 0
                 (multipart-phase parser)
                 (if (multipart-closed-p parser) nil 'read-part-head))
           (without-event (1+ stop))))))

(defun part-head-end (parser octets start end)
  "The end of the head of a part that begins at START; NIL if it is not in OCTETS yet."
  (declare (type multipart-parser parser) (type index start end) #.*plain-policy*)
  (let ((line-end (load-time-value (coerce '(13 10) 'octets) t))
        (empty-line (load-time-value (coerce '(13 10 13 10) 'octets) t)))
    (if (= 2 (the index (matching-octets line-end 0 octets start end)))
        (+ start 2)
        (multiple-value-bind (position found-p)
            (find-octets empty-line octets (min end (+ start (multipart-judged parser))) end)
          (declare (type index position))
          (cond (found-p (+ position 4))
                (t (setf (multipart-judged parser) (- position start))
                   nil))))))

(define-multipart-phase read-part-head (parser octets position end)
  "Finds the head of a part, which may be an empty line only."
  (let ((stop (part-head-end parser octets position end)))
    (when (> (- (or stop end) position) +part-head-octets+)
      (error 'malformed-multipart))
    (cond (stop
           (setf (multipart-fresh-p parser) t
                 (multipart-phase parser) 'take-part)
           (values :head position stop stop))
          (t (without-event position)))))

(define-multipart-phase take-part (parser octets position end)
  "Finds content of a part, or its end."
  (multiple-value-bind (stop after) (find-delimiter parser octets position end)
    (declare (type index stop))
    (cond ((< position stop)
           (setf (multipart-fresh-p parser) nil)
           (values :content position stop stop))
          (after
           (setf (multipart-phase parser) 'judge-delimiter)
           (values :end stop stop after))
          (t (without-event position)))))

;;; The whole body

(defun parse-multipart (parser octets start end)
  "Continues to parse a multipart body with PARSER, in OCTETS from START below END.  Returns four
values: an event; the start and the end of its octets; and the position from which to call again.
  :HEAD     the header lines of a part, with the empty line after them
  :CONTENT  octets of the part, at least one; more may follow
  :END      the end of the part
  NIL       OCTETS have no further event.  Unless MULTIPART-DONE-P is true, the caller keeps the
            octets from the fourth value on, receives more, and calls again.  START is then the
            position of those octets; the caller may have moved them.
Signals MALFORMED-MULTIPART if the head of a part is too large (RFC 2046, section 5.1.1)."
  (declare (type multipart-parser parser) (type index start end) #.*plain-policy*)
  (check-range octets start end)
  (loop
    (let ((phase (multipart-phase parser)))
      (when (or (null phase) (= start end))
        (return (without-event start)))
      (multiple-value-bind (event from to next) (funcall phase parser octets start end)
        (declare (type index next))
        (when (or event (eq phase (multipart-phase parser)))
          (return (values event from to next)))
        (setf start next)))))

;;; The fields in the head of a part (RFC 7578, section 4.2)

(defun head-lines (text)
  "The lines of TEXT, the head of a part, as fresh strings.  A line and its continuation lines are
one string (RFC 5322, section 2.2.3)."
  (declare (type text text) #.*plain-policy*)
  (let ((start 0) (size (length text)) (lines '()))
    (declare (type index start size))
    (flet ((line-end (position)
             (or (search #.(coerce '(#\Return #\Linefeed) 'string) text :start2 position) size)))
      (loop while (< start size)
            do (let ((end (line-end start)))
                 (declare (type index end))
                 (loop while (and (< (+ end 2) size)
                                  (octet-in-class-p (logand 255 (char-code (schar text (+ end 2))))
                                                    +whitespace+))
                       do (fill text #\Space :start end :end (+ end 2))
                          (setf end (line-end end)))
                 (push (text-part text start end) lines)
                 (setf start (min size (+ end 2))))))
    (nreverse lines)))

(defun line-value (line name)
  "The start and the end of the value, without parameters, in LINE; NIL if LINE is not the field
NAME."
  (declare (type text line name) #.*plain-policy*)
  (let ((size (length name)))
    (and (< size (length line))
         (char= #\: (schar line size))
         (string-equal name line :end2 size)
         (let ((start (text-run-end line (1+ size) (length line) +whitespace+)))
           (values start (parameter-value-end line start))))))

(defun field-of-part (lines name &optional value)
  "The first of LINES that is the field NAME and, unless VALUE is NIL, has that value; and the start
and the end of its value.  NIL if there is no such line."
  (dolist (line lines)
    (declare (type text line))
    (multiple-value-bind (start end) (line-value line (coerce name 'text))
      (when (and start
                 (or (null value) (string-equal value line :start2 start :end2 end)))
        (return (values line start end))))))

(defun extended-value (text)
  "The value of TEXT, an ext-value, as a string whose character codes are octets; and its charset
(RFC 8187, section 3.2.1).  TEXT itself and NIL if TEXT is not an ext-value in UTF-8 or
ISO-8859-1."
  (let* ((first (position #\' text))
         (second (and first (position #\' text :start (1+ first))))
         (charset (and second
                       (find (subseq text 0 first) '("utf-8" "iso-8859-1") :test #'string-equal))))
    (if charset
        (multiple-value-bind (octets count)
            (encoded-octets (coerce text 'text) (1+ second) (length text))
          (values (latin-1-text octets 0 count) charset))
        (values text nil))))

(defun file-name-in (parameter)
  "The name of a file, a string whose character codes are octets, or NIL; and its charset, or NIL.
PARAMETER is a function that maps the name of a parameter to its value or NIL."
  (let* ((plain (funcall parameter "filename"))
         ;; RFC 7578, section 4.2, forbids filename* to clients, but some send it for a file.
         (extended (and (null plain) (funcall parameter "filename*"))))
    (if extended
        (extended-value extended)
        (values plain nil))))

(defun part-facts (octets start end)
  "Reads the head of a part, OCTETS from START below END.  Returns four values, each a string or
NIL: the name of the field; the name of the file; the media type without parameters (RFC 7578,
sections 4.2 and 4.4); and the charset of the file's name (RFC 8187) or, if there is no file, of the
content (RFC 7578, section 5.1.2).  The character codes of the first three are octets.  Never
signals an error for the octets of a head, and takes time linear in their number."
  (declare (type octets octets) (type index start end) #.*plain-policy*)
  (check-range octets start end)
  (let ((lines (head-lines (latin-1-text octets start end))))
    (flet ((parameter-in (line to name)
             (and line
                  (multiple-value-bind (start end quoted)
                      (parameter-range line to (coerce name 'text) t)
                    (and start
                         (parameter-value line start end quoted))))))
      (multiple-value-bind (line from to) (field-of-part lines "content-disposition" "form-data")
        (declare (ignore from))
        (multiple-value-bind (type-line type-start type-end) (field-of-part lines "content-type")
          (multiple-value-bind (file-name charset)
              (file-name-in (lambda (name) (parameter-in line to name)))
            (values (parameter-in line to "name")
                    file-name
                    (and type-line
                         (text-part type-line type-start type-end))
                    (if file-name
                        charset
                        (parameter-in type-line type-end "charset")))))))))
