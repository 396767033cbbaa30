(in-package #:hunchentoot-recycling-taskmaster.http)

;;; Conditional requests and ranges, for content whose last change and size are known.

(defun entity-tag (seconds nanoseconds size strong-p)
  "An entity tag, a string, for content of SIZE octets that last changed at SECONDS, a universal
time, and NANOSECONDS: the same for the same content wherever it is served from.  STRONG-P says that
content which changes from now on will have another time (RFC 9110, section 8.8.3)."
  (format nil "~:[W/~;~]\"~(~36R-~36R-~36R~)\"" strong-p seconds nanoseconds size))

(defun tag-weak-p (tag)
  (declare (type string tag))
  (and (>= (length tag) 2) (string= "W/" tag :end2 2)))

(defun opaque-tag-start (tag)
  (if (tag-weak-p tag) 2 0))

(defun tag-listed-p (tag list strong-p)
  "True when TAG is in LIST, the text of If-Match or If-None-Match, by the strong comparison or the
weak one (RFC 9110, section 8.8.3.2)."
  (declare (type string tag list))
  (let ((list (coerce list 'text)))
    (declare (type text list))
    (if (string= list "*")
        t
        ;; A tag may have a comma, but none of its pieces is a tag then.
        (do-elements (list start end)
          (let ((other (subseq list start end)))
            (when (and (not (and strong-p (or (tag-weak-p tag) (tag-weak-p other))))
                       (string= tag other :start1 (opaque-tag-start tag)
                                          :start2 (opaque-tag-start other)))
              (return t)))))))

(defun precondition (head tag date)
  "What the request HEAD wants of content with the entity TAG, which last changed at DATE, a string:
:PROCEED, :NOT-MODIFIED (304) or :FAILED (412) (RFC 9110, section 13.2.2)."
  (let ((if-match (head-header head :if-match))
        (if-none-match (head-header head :if-none-match))
        (retrieval-p (member (head-method head) '(:get :head))))
    (cond ((and if-match (not (tag-listed-p tag if-match t)))
           :failed)
          ((if if-none-match
               (tag-listed-p tag if-none-match nil)
               (and retrieval-p (equal date (head-header head :if-modified-since))))
           (if retrieval-p :not-modified :failed))
          (t :proceed))))

(defun range-current-p (head tag date)
  "True unless the request HEAD wants its range only of other content than that with the entity TAG,
which last changed at DATE, a string or NIL if that is too recent to tell (RFC 9110, section
13.1.5)."
  (let ((validator (head-header head :if-range)))
    (cond ((null validator) t)
          ((find #\" validator) (and (not (tag-weak-p tag)) (string= tag validator)))
          (t (equal date validator)))))

(defun range-position (value start end)
  "The number whose digits VALUE has from START to END, or one beyond all content."
  (let ((start (or (position #\0 value :start start :end end :test #'char/=) (1- end))))
    (or (decimal-number value start end +most-integer-digits+)
        +most-content+)))

(defun parse-range (value size)
  "The first and the last octet that VALUE, the text of Range, asks for, of content of SIZE octets;
NIL when it is none of the ranges that are served: one first octet, and perhaps a last.  Whether
there are that many is the caller's to check (RFC 9110, section 14.1.2)."
  (let ((dash (and (> (length value) 6)
                   (string-equal "bytes=" value :end2 6)
                   (position #\- value :start 6))))
    (when (and dash (> dash 6)
               (every #'digit-char-p (subseq value 6 dash))
               (every #'digit-char-p (subseq value (1+ dash))))
      (values (range-position value 6 dash)
              (if (= (1+ dash) (length value))
                  (1- size)
                  (range-position value (1+ dash) (length value)))))))
