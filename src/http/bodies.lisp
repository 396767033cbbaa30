(in-package #:hunchentoot-recycling-taskmaster.http)

;;;; A body decoder finds the content among the octets of a body.  Like the head parser, it gives
;;;; the same result however the octets are split, and keeps none: it looks again at a line around
;;;; the content that came in part.
;;;;
;;;; The decoder checks trailer fields like header fields, and drops them.  RFC 9110, section 6.5.1,
;;;; allows that, and a trailer field must not change the meaning of the head.

(defconstant +extension-octets+ (* 16 1024)
  "The maximum number of octets of all chunk extensions of one body (RFC 9112, section 7.1.1).")

(defconstant +trailer-octets+ (* 8 1024)
  "The maximum number of octets of the trailer fields of one body, with their line ends.")

(defconstant +most-size-digits+ 64
  "The maximum number of digits of a chunk size, so that no client sends leading zeros for ever.")

(defstruct (body-decoder (:include opaque) (:constructor %make-body-decoder ()) (:copier nil)
                         (:conc-name decoder-))
  "Finds the content of one request; see DECODE-BODY."
  ;; What comes next: all content, or the line with the size of a chunk, its content, the line end
  ;; behind that, a trailer field; NIL after the end of the body.
  (phase nil :type (member nil :content :size :chunk :chunk-end :trailer))
  (remaining 0 :type content-size)      ; octets of content up to the next phase
  (room 0 :type content-size)           ; octets that further chunks may have
  (budget 0 :type index))               ; octets that extensions, then trailers, may have

(defun make-body-decoder (framing &optional (limits *default-limits*))
  "A decoder for a body with FRAMING, a HEAD-FRAMING, under LIMITS."
  (let ((decoder (%make-body-decoder)))
    (case framing
      (:none)
      (:chunked
       (setf (decoder-phase decoder) :size
             (decoder-room decoder) (or (limits-body-octets limits) +most-content+)
             (decoder-budget decoder) +extension-octets+))
      (t
       (setf (decoder-phase decoder) (and (plusp framing) :content)
             (decoder-remaining decoder) framing)))
    decoder))

(defun body-done-p (decoder)
  "True if DECODER has seen the last octet of the body."
  (null (decoder-phase decoder)))

(defun body-octets-due (decoder)
  "The number of octets, at least 1 and at most a buffer's size, that the client must still send
before the body can end.  A caller that reads that many never waits for octets beyond the body.
DECODER has not seen the end of the body."
  (max 1 (min (decoder-remaining decoder) (* 16 1024))))

(defun extensions-p (octets start end)
  "True if OCTETS from START below END are chunk extensions (RFC 9112, section 7.1.1)."
  (declare (type octets octets) (type index start end) #.*plain-policy*)
  ;; chunk-ext = *( BWS ";" BWS chunk-ext-name [ BWS "=" BWS chunk-ext-val ] ), where a name is a
  ;; token and a value a token or a quoted-string.
  (flet ((skip (class)
           (< start (setf start (run-end octets start end class))))
         (next-p (char)
           (when (and (< start end) (= (char-code char) (aref octets start)))
             (incf start))))
    (loop until (= start end)
          always (and (progn (skip +whitespace+)
                             (next-p #\;))
                      (progn (skip +whitespace+)
                             (skip +token+))
                      (let ((name-end start))
                        (skip +whitespace+)
                        (cond ((not (next-p #\=)) (setf start name-end))
                              ((progn (skip +whitespace+)
                                      (next-p #\"))
                               ;; RFC 9110, section 5.6.4: a backslash, then any octet of a value
                               (loop until (next-p #\")
                                     do (next-p #\\)
                                     always (< start end)
                                     do (incf start)))
                              (t (skip +token+))))))))

(defun read-chunk-size (decoder octets start end)
  "Reads the line in OCTETS from START below END that begins a chunk.  Returns the position after
it, or NIL where more has to come."
  (declare (type body-decoder decoder) (type octets octets) (type index start end)
           #.*plain-policy*)
  ;; RFC 9112, section 7.1:
  ;; chunk = chunk-size [ chunk-ext ] CRLF chunk-data CRLF, chunk-size = 1*HEXDIG
  (let* ((size 0)
         (size-end (or (position-if-not (lambda (octet) (digit-char-p (code-char octet) 16))
                                        octets :start start :end end)
                       end))
         (line-end (run-end octets size-end end +value+))
         (extensions (- line-end size-end)))
    (declare (type index size-end line-end extensions) (type content-size size))
    (when (= start size-end)
      (refuse :malformed-chunk))
    ;; MUST anticipate large numerals and prevent overflows.
    (loop for position from start below size-end
          do (when (or (<= +most-size-digits+ (- position start))
                       (> size (ash +most-content+ -4)))
               (refuse :body-too-large))
             (setf size (+ (* 16 size) (digit-char-p (code-char (aref octets position)) 16))))
    (when (> size (decoder-room decoder))
      (refuse :body-too-large))
    ;; Section 7.1.1: a recipient MUST ignore unrecognized extensions, and ought to limit their
    ;; total length.
    (when (> extensions (decoder-budget decoder))
      (refuse :chunk-extensions-too-large))
    (let ((next (line-end-after octets line-end end :malformed-chunk)))
      (when next
        (unless (extensions-p octets size-end line-end)
          (refuse :malformed-chunk))
        (decf (decoder-budget decoder) extensions)
        (decf (decoder-room decoder) size)
        (setf (decoder-remaining decoder) size
              (decoder-phase decoder) :chunk)
        (when (zerop size)
          (setf (decoder-budget decoder) +trailer-octets+
                (decoder-phase decoder) :trailer)))
      next)))

(defun decode-body (decoder octets start end)
  "Finds content in OCTETS from START below END.  Returns three positions: the start of the content,
its end (equal to the start if there is none), and the end of the octets that DECODER has used.  The
caller calls again from that third position until BODY-DONE-P of DECODER is true; with more octets
if all were used, or, where a line came in part, none.  DECODER uses no octet after the body.
Signals a PROTOCOL-ERROR with status 400, 413 or 431 as soon as the octets received so far cannot
become an acceptable body (RFC 9112, section 7.1)."
  (declare (type body-decoder decoder) (type index start end) #.*plain-policy*)
  (check-range octets start end)
  (loop
    (let ((phase (decoder-phase decoder))
          (next nil))
      (declare (type (or null index) next))
      (when (or (null phase) (= start end))
        (return (values start start start)))
      (ecase phase
        ((:content :chunk)
         (let* ((size (min (decoder-remaining decoder) (- end start)))
                (stop (+ start size)))
           (when (zerop (decf (decoder-remaining decoder) size))
             (setf (decoder-phase decoder) (and (eq :chunk phase) :chunk-end)))
           (return (values start stop stop))))
        (:size
         (setf next (read-chunk-size decoder octets start end)))
        (:chunk-end
         (when (setf next (line-end-after octets start end :malformed-chunk))
           (setf (decoder-phase decoder) :size)))
        ;; RFC 9112, section 7.1.2: trailer-section = *( field-line CRLF )
        (:trailer
         (cond ((= +carriage-return+ (aref octets start))
                (when (setf next (line-end-after octets start end :malformed-field))
                  (setf (decoder-phase decoder) nil)))
               (t
                (setf next (read-field octets start end))
                (let ((count (- (or next end) start)))
                  (when (> count (decoder-budget decoder))
                    (refuse :trailers-too-large))
                  (when next
                    (decf (decoder-budget decoder) count)))))))
      (unless next
        (return (values start start start)))
      (setf start next))))

;;;; The media type of content, and the parts of a multipart form.

;;; The media type of content: token "/" token, with parameters (RFC 9110, section 8.3.1).  Nothing
;;; is refused: what follows a parameter that is malformed is ignored, as is what is none.

(defun media-type-end (text)
  "The end of the type in TEXT, a Content-Type, and the position of its slash; NIL if TEXT has no
slash after its first token."
  (declare (type text text) #.*plain-policy*)
  (let* ((size (length text))
         (slash (text-run-end text 0 size +token+)))
    (and (< slash size)
         (char= #\/ (schar text slash))
         (values (text-run-end text (1+ slash) size +token+) slash))))

(defun parameter-value-end (text start)
  "The end of the parameter value, other than a quoted string, that begins in TEXT at START."
  ;; RFC 9110, section 5.6.6, requires a token, but clients send boundaries with other characters.
  (or (position-if (lambda (char) (member char '(#\; #\Space #\Tab))) text :start start)
      (length text)))

(defun parameter-in (text start name)
  "The value, a fresh string, of the first parameter NAME in TEXT, whose parameters begin at START;
NIL if there is none."
  (declare (type text text) (type string name) (type index start) #.*plain-policy*)
  (let ((size (length text)) (position start))
    (declare (type index position))
    (flet ((skip (start)                ; white space; the character behind it
             (setf position (text-run-end text start size +whitespace+))
             (and (< position size)
                  (schar text position))))
      (loop
        (unless (and (eql #\; (skip position))
                     (skip (1+ position)))
          (return nil))
        (let* ((name-end (text-run-end text position size +token+))
               (wanted-p (string-equal name text :start2 position :end2 name-end))
               (first (and (eql #\= (skip name-end))
                           (skip (1+ position))))
               (value (case first
                        ((nil) (return nil))
                        ;; RFC 9110, section 5.6.4.  Of the backslashes only those go that escape a
                        ;; quote or a backslash: browsers escape none, and paths and patterns have
                        ;; them.
                        (#\" (with-output-to-string (stream)
                               (loop
                                 (incf position)
                                 (when (= position size)
                                   (return))
                                 (when (char= #\" (schar text position))
                                   (incf position)
                                   (return))
                                 (when (and (char= #\\ (schar text position))
                                            (< (1+ position) size)
                                            (find (schar text (1+ position)) "\"\\"))
                                   (incf position))
                                 (write-char (schar text position) stream))))
                        (t (text-part text position
                                      (setf position (parameter-value-end text position)))))))
          (when wanted-p
            (return value)))))))

(defun media-type-p (type text)
  "True if the string TEXT, the value of a Content-Type, names the media type TYPE, a string.
Parameters do not matter (RFC 9110, section 8.3.1)."
  (let ((end (media-type-end (coerce text 'text))))
    (and end
         (string-equal type text :end2 end))))

(defun media-type-parameter (name text &optional (kind nil))
  "The value, a fresh string, of the parameter NAME, a string, in the string TEXT, the value of a
Content-Type.  NIL if TEXT has no such parameter, or if KIND is a string other than the part of the
type before the slash (RFC 9110, section 8.3.1)."
  (let ((text (coerce text 'text)))
    (multiple-value-bind (type-end slash) (media-type-end text)
      (and type-end
           (or (null kind) (string-equal kind text :end2 slash))
           (parameter-in text type-end name)))))

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
;;; - A boundary has no carriage return.  So the search for it, from carriage return to carriage
;;;   return, examines no octet more than twice.

(define-condition malformed-multipart (recycling-error)
  ()
  (:report "The head of a part is larger than this server takes, or the form does not end.")
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
  (phase :preamble :type symbol)        ; NIL after the last delimiter
  (fresh-p t :type boolean))

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
  "True if PARSER has seen the last delimiter.  What follows means nothing; no line end need (RFC
2046, section 5.1.1)."
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
        (return (values nil nil nil start)))
      (ecase phase
        (:preamble
         (multiple-value-bind (stop after) (find-delimiter parser octets start end)
           (unless after
             (return (values nil nil nil stop)))
           (setf (multipart-phase parser) :delimiter
                 start after)))
        (:delimiter                     ; is it the last one?
         (let ((hyphens (matching-octets (load-time-value (ascii-octets "--") t) 0
                                         octets start end)))
           (when (and (= 1 hyphens) (= end (1+ start)))
             (return (values nil nil nil start)))
           (setf (multipart-phase parser) (if (= 2 hyphens) nil :rest-of-line))))
        (:rest-of-line
         (let ((stop (octet-position +line-feed+ octets start end)))
           (when (= stop end)
             (return (values nil nil nil end)))
           (setf (multipart-phase parser) :head
                 start (1+ stop))))
        (:head                          ; it may be an empty line only
         (let ((stop (if (= 2 (matching-octets *line-end* 0 octets start end))
                         (+ start 2)
                         (multiple-value-bind (position found-p)
                             (find-octets (load-time-value (coerce '(13 10 13 10) 'octets) t)
                                          octets start end)
                           (and found-p (+ position 4))))))
           (when (> (- (or stop end) start) +part-head-octets+)
             (error 'malformed-multipart))
           (unless stop
             (return (values nil nil nil start)))
           (setf (multipart-fresh-p parser) t
                 (multipart-phase parser) :content)
           (return (values :head start stop stop))))
        (:content
         (multiple-value-bind (stop after) (find-delimiter parser octets start end)
           (declare (type index stop))
           (cond ((< start stop)
                  (setf (multipart-fresh-p parser) nil)
                  (return (values :content start stop stop)))
                 (after
                  (setf (multipart-phase parser) :delimiter)
                  (return (values :end stop stop after)))
                 (t (return (values nil nil nil start))))))))))

;;; The fields in the head of a part (RFC 7578, section 4.2)

(defun part-facts (octets start end)
  "Reads the head of a part, OCTETS from START below END.  Returns three values, each a string or
NIL, whose character codes are octets: the name of the field; the name of the file; and the media
type without parameters (RFC 7578, sections 4.2 and 4.4).  Never signals an error for the octets of
a head, and takes time linear in their number."
  (declare (type octets octets) (type index start end) #.*plain-policy*)
  (check-range octets start end)
  (let ((disposition nil) (value-end 0) (type nil))
    (dolist (line (uiop:split-string (latin-1-text octets start end)
                                     :separator '(#\Return #\Linefeed)))
      (let* ((colon (text-position #\: line 0 (length line)))
             (name (text-part line 0 colon))
             (value (string-left-trim '(#\Space #\Tab)
                                      (text-part line (min (length line) (1+ colon))
                                                 (length line))))
             (end (parameter-value-end value 0)))
        (cond ((and (null disposition)
                    (string-equal "content-disposition" name)
                    (string-equal "form-data" value :end2 end))
               (setf disposition value
                     value-end end))
              ((and (null type) (string-equal "content-type" name))
               (setf type (text-part value 0 end))))))
    (flet ((parameter (name)
             (and disposition (parameter-in disposition value-end name))))
      (values (parameter "name") (parameter "filename") type))))
