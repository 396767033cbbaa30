(in-package #:hunchentoot-recycling-taskmaster.http)

;;; Where in the octets of a multipart body its parts are.  Like the parser of heads it is a machine
;;; of phases, keeps no octets, and finds the same however they arrive.
;;;
;;; A delimiter is a line that begins with two hyphens and the boundary.  Its line end before
;;; belongs to it, and not to the content (RFC 2046, section 5.1.1).  Whatever else is on that line
;;; means nothing, except two hyphens at once, which close the body.
;;;
;;; Invariants:
;;; - FRESH-P is true where a delimiter needs no line end before it: at the very beginning, and where
;;;   a part's content begins, since the empty line ended just there.
;;; - A phase that finds nothing and remains the phase has taken all that it can judge.
;;; - A boundary has no carriage return, so the search for one, from carriage return to carriage
;;;   return, looks at no octet more than twice.

(define-condition malformed-multipart (recycling-error)
  ()
  (:report "The head of a part is larger than this server takes.")
  (:documentation "A multipart body is not acceptable."))

(defconstant +part-head-octets+ (* 16 1024)
  "The most octets of the head of one part, the empty line included.")

(defconstant +boundary-octets+ 1024
  "The most octets of a boundary.  RFC 2046, section 5.1.1, allows 70, and none that is empty; other
servers take more and less.")

(defstruct (multipart-parser (:include opaque) (:copier nil)
                             (:constructor %make-multipart-parser (delimiter))
                             (:predicate nil) (:conc-name multipart-))
  "Finds the parts of one multipart body; see PARSE-MULTIPART."
  (delimiter (make-octets 0) :type octets :read-only t) ; line end, two hyphens, boundary
  (phase 'skip-preamble :type symbol)   ; NIL: the last delimiter has ended
  (fresh-p t :type boolean)
  (closed-p nil :type boolean)          ; the last delimiter has begun
  (judged 0 :type index))               ; octets of a head in which it does not end

(defun boundary-p (text)
  "True when TEXT, a string, can be the boundary of a multipart body."
  (and (<= (length text) +boundary-octets+)
       (every (lambda (char) (<= 32 (char-code char) 255)) text)))

(defun make-multipart-parser (boundary)
  "A parser of a body whose parts BOUNDARY, a string for which BOUNDARY-P is true, delimits."
  (check-type boundary (satisfies boundary-p))
  (%make-multipart-parser
   (concatenate 'octets (vector +carriage-return+ +line-feed+) (ascii-octets "--")
                (map 'list #'char-code boundary))))

(setf (documentation 'multipart-closed-p 'function)
      "True if PARSER has seen the last delimiter; its line end may be missing.")

(defun multipart-done-p (parser)
  "True if PARSER has seen the line end after the last delimiter."
  (null (multipart-phase parser)))

;;; Searching

(defun find-octets (wanted octets start end)
  "Where in OCTETS from START below END those of WANTED are, which begin with a carriage return;
second, true.  Where they are not, from where on they could still come, or END; and NIL."
  (declare (type octets wanted octets) (type index start end) #.*plain-policy*)
  (loop
    (let* ((position (octet-position +carriage-return+ octets start end))
           (same (matching-octets wanted 0 octets position end)))
      (declare (type index position same))
      (cond ((= same (length wanted)) (return (values position t)))
            ((= (+ position same) end) (return (values position nil))))
      (setf start (1+ position)))))

(defun find-delimiter (parser octets start end)
  "Where in OCTETS from START below END what is before the next delimiter ends, as far as is known;
second, where the delimiter ends, or NIL."
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

;;; The phases.  Each is given OCTETS from POSITION below END, at least one, and returns as
;;; PARSE-MULTIPART does; without an event it may have made another phase the next.

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
  "Drops what comes before the first delimiter, and takes that."
  (multiple-value-bind (stop after) (find-delimiter parser octets position end)
    (when after
      (setf (multipart-phase parser) 'judge-delimiter))
    (without-event (or after stop))))

(define-multipart-phase judge-delimiter (parser octets position end)
  "Finds out whether a delimiter is the last."
  (let ((hyphen-p (= +hyphen+ (aref octets position))))
    (cond ((and hyphen-p (= end (1+ position)))
           (without-event position))
          (t
           (setf (multipart-closed-p parser)
                 (and hyphen-p (= +hyphen+ (aref octets (1+ position))))
                 (multipart-phase parser) 'skip-to-return)
           (without-event (if hyphen-p (1+ position) position))))))

(define-multipart-phase skip-to-return (parser octets position end)
  "Drops what is left of the line of a delimiter, and takes the carriage return."
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
  "Where the head of a part that begins at START ends, or NIL when that is not known yet."
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

;;; The whole

(defun parse-multipart (parser octets start end)
  "Reads on in OCTETS, from START below END, with PARSER.  Returns four values: what comes next;
from where and up to where in OCTETS it is; and from where on to read on.
  :HEAD     the header lines of a part, with the empty line after them
  :CONTENT  octets of the part, never none; there may be more
  :END      the part is over
  NIL       nothing more in OCTETS.  Unless MULTIPART-DONE-P, call again when more octets have come,
            START being where those from the last position on are by then.
Signals MALFORMED-MULTIPART when the head of a part is too large (RFC 2046, section 5.1.1)."
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

;;; What the head of a part says (RFC 7578, section 4.2)

(defun head-lines (text)
  "The lines of TEXT, the head of a part, as fresh strings; one that is continued is one (RFC 5322,
section 2.2.3)."
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
  "From where to where in LINE the value is that it gives the field NAME, without parameters; NIL
where it is another's."
  (declare (type text line name) #.*plain-policy*)
  (let ((size (length name)))
    (and (< size (length line))
         (char= #\: (schar line size))
         (string-equal name line :end2 size)
         (let ((start (text-run-end line (1+ size) (length line) +whitespace+)))
           (values start (parameter-value-end line start))))))

(defun field-of-part (lines name &optional value)
  "The first of LINES, of the head of a part, that gives the field NAME a value, or VALUE; with
where the value begins and ends.  NIL where none does."
  (dolist (line lines)
    (declare (type text line))
    (multiple-value-bind (start end) (line-value line (coerce name 'text))
      (when (and start
                 (or (null value) (string-equal value line :start2 start :end2 end)))
        (return (values line start end))))))

(defun extended-value (text)
  "The octets, as characters with these codes, that TEXT, an ext-value, has, and their charset
(RFC 8187, section 3.2.1).  TEXT itself and NIL where it is none, or its charset is neither UTF-8
nor ISO-8859-1."
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
  "The name of a file, as characters whose codes are octets, or NIL; and its charset, where that is
told.  PARAMETER is a function that returns the value of the parameter of a name, or NIL."
  (let* ((plain (funcall parameter "filename"))
         ;; RFC 7578, section 4.2, has clients not send it; those that do mean a file.
         (extended (and (null plain) (funcall parameter "filename*"))))
    (if extended
        (extended-value extended)
        (values plain nil))))

(defun part-facts (octets start end)
  "What the head of a part, which is OCTETS from START below END, says: three strings of characters
whose codes are octets, or NIL.  The name of the field, the name of the file, and its type without
parameters, RFC 7578, sections 4.2 and 4.4.  Fourth, the charset, a string or NIL: of a file that of
its name (RFC 8187), else that of the content (RFC 7578, section 5.1.2).  It takes time with the
number of octets, and nothing in it is an error."
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
