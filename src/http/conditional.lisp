(in-package #:hunchentoot-recycling-taskmaster.http)

;;; Conditional requests and range requests for content with a known size and time of change.

(defun entity-tag (seconds nanoseconds size strong-p)
  "An entity tag, a string, for content of SIZE octets that last changed at SECONDS, a universal
time, and NANOSECONDS.  The tag does not depend on the place of the file.  STRONG-P is true if any
further change is sure to give the content another time; else the tag is weak (RFC 9110, section
8.8.3)."
  (format nil "~:[W/~;~]\"~(~36R-~36R-~36R~)\"" strong-p seconds nanoseconds size))

(defun tag-weak-p (tag)
  (declare (type string tag))
  (and (>= (length tag) 2) (string= "W/" tag :end2 2)))

(defun opaque-tag-start (tag)
  (if (tag-weak-p tag) 2 0))

(defun tag-listed-p (tag list strong-p)
  "True if TAG is in LIST, the text of If-Match or If-None-Match.  The comparison is strong if
STRONG-P, else weak (RFC 9110, section 8.8.3.2).  If TAG is NIL, it is only in \"*\"."
  (declare (type (or null string) tag) (type string list))
  (let ((list (coerce list 'text)))
    (declare (type text list))
    (cond ((string= list "*") t)
          ((null tag) nil)
          (t
           ;; A comma within a tag splits it into pieces, but none of the pieces is a valid tag.
           (do-elements (list start end)
             (let ((other (subseq list start end)))
               (when (and (not (and strong-p (or (tag-weak-p tag) (tag-weak-p other))))
                          (string= tag other :start1 (opaque-tag-start tag)
                                             :start2 (opaque-tag-start other)))
                 (return t))))))))

(defun precondition (head tag date)
  "Evaluates the preconditions of the request HEAD for content with the entity TAG that last changed
at DATE, both strings or NIL.  Returns :PROCEED, :NOT-MODIFIED (304) or :FAILED (412) (RFC 9110,
section 13.2.2)."
  (let ((if-match (head-header head :if-match))
        (if-none-match (head-header head :if-none-match))
        (retrieval-p (member (head-method head) '(:get :head))))
    (cond ((and if-match (not (tag-listed-p tag if-match t)))
           :failed)
          ((if if-none-match
               (tag-listed-p tag if-none-match nil)
               (and retrieval-p date (equal date (head-header head :if-modified-since))))
           (if retrieval-p :not-modified :failed))
          (t :proceed))))

(defun range-current-p (head tag date)
  "True if If-Range in the request HEAD is absent or matches the content with the entity TAG that
last changed at DATE, so that its Range applies.  TAG is a string or NIL; DATE is one, or NIL if a
date is no strong validator: the change is too recent, or the content with another coding may have
the same date (RFC 9110, sections 8.8.1, 8.8.2.2 and 13.1.5)."
  (let ((validator (head-header head :if-range)))
    (cond ((null validator) t)
          ((find #\" validator) (and tag (not (tag-weak-p tag)) (string= tag validator)))
          (t (equal date validator)))))

(defun range-position (value start end)
  "The decimal number in VALUE from START to END; +MOST-CONTENT+ if it has too many digits."
  (let ((start (or (position #\0 value :start start :end end :test #'char/=) (1- end))))
    (or (decimal-number value start end +most-integer-digits+)
        +most-content+)))

(defun parse-range (value size)
  "The positions of the first and the last octet that VALUE, the text of Range, asks for, in content
of SIZE octets.  NIL unless VALUE is a single range; the server ignores others.  The caller checks
the positions against SIZE (RFC 9110, section 14.1.2)."
  (let ((dash (and (> (length value) 6)
                   (string-equal "bytes=" value :end2 6)
                   (position #\- value :start 6))))
    (when (and dash (> (length value) 7)
               (every #'digit-char-p (subseq value 6 dash))
               (every #'digit-char-p (subseq value (1+ dash))))
      (flet ((last-number ()
               (range-position value (1+ dash) (length value))))
        (cond ((= dash 6)               ; so many octets at the end
               (values (max 0 (- size (last-number))) (1- size)))
              ((= (1+ dash) (length value))
               (values (range-position value 6 dash) (1- size)))
              (t
               (values (range-position value 6 dash) (last-number))))))))
