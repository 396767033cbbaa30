(in-package #:hunchentoot-recycling-taskmaster.http)

;;; The media type of content: token "/" token, with parameters (RFC 9110, section 8.3.1).  Text
;;; after the type that is not a parameter is ignored, as in Hunchentoot.  The engine and
;;; Hunchentoot must agree about which content is a form: a form that only Hunchentoot recognized
;;; would escape the limits of forms.

(define-condition malformed-media-type (recycling-error)
  ()
  (:report "A Content-Type is malformed.")
  (:documentation "The value of a Content-Type is not acceptable (RFC 9110, section 8.3.1)."))

(defun media-type-end (text)
  "The end of the type in TEXT, a Content-Type, and the position of its slash; NIL if TEXT has no
slash after its first token."
  (declare (type text text) #.*plain-policy*)
  (let* ((size (length text))
         (slash (text-run-end text 0 size +token+)))
    (when (= (1+ slash) size)
      ;; The subtype is missing.
      (when (char= #\/ (schar text slash)) (error 'malformed-media-type)))
    (when (zerop size)
      (error 'malformed-media-type))
    (and (< slash size)
         (char= #\/ (schar text slash))
         (values (text-run-end text (1+ slash) size +token+) slash))))

(defun quoted-end (text start lenient-p)
  "The position of the closing quote of the quoted string that begins in TEXT before START.  If the
quote is missing: the end of TEXT if LENIENT-P, else an error."
  (declare (type text text) (type index start) #.*plain-policy*)
  ;; RFC 9110, section 5.6.4
  (loop with size of-type index = (length text)
        with position of-type index = start
        while (< position size)
        do (case (schar text position)
             (#\" (return position))
             (#\\ (incf position)))
           (incf position)
        finally (return (if lenient-p size (error 'malformed-media-type)))))

(defun parameter-value-end (text start)
  "The end of the parameter value, other than a quoted string, that begins in TEXT at START."
  (declare (type text text) (type index start) #.*plain-policy*)
  ;; RFC 9110, section 5.6.6, requires a token, but clients send boundaries with other characters.
  (loop for position of-type index from start below (length text)
        until (let ((char (schar text position)))
                (or (char= char #\;) (char= char #\Space) (char= char #\Tab)))
        finally (return position)))

(defun parameter-range (text start name lenient-p)
  "The start and the end, without quotes, of the value of the first parameter NAME in TEXT, whose
parameters begin at START; and true if the value is quoted.  NIL if there is no such parameter.  At
a parameter without a value, stops if LENIENT-P, else signals MALFORMED-MEDIA-TYPE."
  (declare (type text text name) (type index start) #.*plain-policy*)
  (let ((size (length text)) (position start) (from nil) (to 0) (quoted nil))
    (declare (type index position to))
    (flet ((skip (start)
             (setf position (text-run-end text start size +whitespace+))
             (and (< position size)
                  (schar text position))))
      (loop
        (unless (and (eql #\; (skip position))
                     (skip (1+ position)))
          (return (and from (values from to quoted))))
        (let* ((name-start position)
               (name-end (text-run-end text name-start size +token+)))
          (unless (and (eql #\= (skip name-end))
                       (skip (1+ position)))
            (when lenient-p
              (return (and from (values from to quoted))))
            (error 'malformed-media-type))
          (let* ((quote-p (char= #\" (schar text position)))
                 (value (if quote-p (1+ position) position))
                 (end (if quote-p
                          (quoted-end text value lenient-p)
                          (parameter-value-end text value))))
            (declare (type index value end))
            (when (and (null from) (string-equal name text :start2 name-start :end2 name-end))
              (setf from value to end quoted quote-p))
            (setf position (if quote-p (min size (1+ end)) end))))))))

(defun unescaped (text start end)
  "A fresh string: TEXT from START below END without the backslashes that escape a quote or a
backslash.  Others stay: browsers escape none, and paths and patterns have them."
  (with-output-to-string (output)
    (loop with position = start
          while (< position end)
          do (when (and (char= #\\ (char text position))
                        (< (1+ position) end)
                        (find (char text (1+ position)) "\"\\"))
               (incf position))
             (write-char (char text position) output)
             (incf position))))

(defun parameter-value (text start end quoted)
  "The parameter value in TEXT from START below END.  QUOTED is true if it was in quotes."
  (if quoted
      (unescaped text start end)
      (text-part text start end)))

(defun media-type-p (type text)
  "True if the string TEXT, the value of a Content-Type, names the media type TYPE, a string.
Parameters do not matter (RFC 9110, section 8.3.1)."
  (let* ((text (coerce text 'text))
         (end (handler-case (media-type-end text)
                (malformed-media-type () nil))))
    (and end
         (= end (length type))
         (string-equal type text :end2 end))))

(defun media-type-parameter (name text &optional (kind nil))
  "The value, a fresh string, of the parameter NAME, a string in lower case, in the string TEXT, the
value of a Content-Type.  NIL if TEXT has no such parameter, or if KIND is a string other than the
part of the type before the slash.  Signals MALFORMED-MEDIA-TYPE if TEXT is not a media type (RFC
9110, section 8.3.1)."
  (let ((text (coerce text 'text)) (name (coerce name 'text)))
    (multiple-value-bind (type-end slash) (media-type-end text)
      (when type-end
        (multiple-value-bind (start end quoted) (parameter-range text type-end name nil)
          (and start
               (or (null kind)
                   (string-equal kind text :end2 slash))
               (parameter-value text start end quoted)))))))
