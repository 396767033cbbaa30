(in-package #:hunchentoot-recycling-taskmaster.http)

;;; The head of a reply.

(define-condition invalid-header (recycling-error)
  ((name :initarg :name :reader invalid-header-name
         :documentation "The name of the field, as the program set it.")
   (value :initarg :value :reader invalid-header-value
          :documentation "The value of the field, as the program set it."))
  (:report (lambda (condition stream)
             (format stream "The header field ~S with the value ~S cannot be sent."
                     (invalid-header-name condition) (invalid-header-value condition))))
  (:documentation "A program set a header field whose name is not a token, or whose value has a
control character or a character beyond Latin-1.  Such a value could end the line early, so that the
rest of it would be read as another line, or another reply (RFC 9110, section 5.5)."))

(defun encode-status-line (output status &optional reason)
  "Appends the status line for STATUS, an integer from 100 to 999, to OUTPUT.  REASON is a string,
or NIL for the REASON-PHRASE of STATUS, or none if STATUS is unknown.  Signals INVALID-HEADER if
REASON has a character other than visible ASCII or space (RFC 9112, section 4)."
  (declare (type output output) #.*plain-policy*)
  (check-type status status-code)
  (let ((line (and (null reason) (svref *status-lines* status))))
    (cond (line
           (encode-octets output line))
          ((every (lambda (char) (char<= #\Space char #\~)) (or reason ""))
           (encode-octets output (status-line status (or reason ""))))
          (t
           (error 'invalid-header :name status :value reason)))))

;;; A reply spells the name of a known field as STRING-CAPITALIZE and Hunchentoot do:
;;; Www-Authenticate, Etag.
(dolist (name *header-names*)
  (let ((keyword (intern (string-upcase name) '#:keyword)))
    (setf (get keyword 'line-start) (ascii-octets (format nil "~A: " (string-capitalize name)))
          (get keyword 'spelling) (coerce (string-downcase name) 'text))))

(defun field-spelling (name)
  "NAME, the name of a header field, a keyword or a string, as a string in lower case.  The caller
must not modify it."
  (or (and (symbolp name) (get name 'spelling))
      (string-downcase name)))

(defun put-name (octets position name text)
  "Puts TEXT, the spelling of the field NAME, with colon and space into OCTETS at POSITION.
Capitalizes it if NAME is a symbol.  Returns the end, or NIL if TEXT is not a valid name."
  (declare (type octets octets) (type index position) #.*plain-policy*)
  (let ((end (and (plusp (length text)) (put-text octets position text +token+))))
    (when end
      (when (symbolp name)
        (put-capitalized octets position text))
      (setf (aref octets end) +colon+
            (aref octets (1+ end)) +space+)
      (+ end 2))))

(defun sendable-value (value)
  "VALUE converted to a CONTENT-SIZE or a SIMPLE-TEXT."
  (declare #.*plain-policy*)
  (typecase value
    (string (simple-text value))
    (content-size value)
    (t (let ((*print-base* 10) (*print-radix* nil))
         (simple-text (princ-to-string value))))))

(defun encode-header (output name value)
  "Appends the header field NAME with VALUE to OUTPUT.  NAME is a symbol, which is capitalized as by
STRING-CAPITALIZE, or a string, which is sent unchanged.  VALUE is a string, an integer, or another
object to PRINC.  Signals INVALID-HEADER, and appends nothing, if NAME is not a token, or if VALUE
has a control character other than Tab or a character beyond Latin-1.  So CR, LF and NUL are never
sent (RFC 9110, sections 5.1 and 5.5)."
  (declare (type output output) (type (or symbol string) name) #.*plain-policy*)
  (let* ((line-start (and (symbolp name) (get name 'line-start)))
         (text (if line-start "" (simple-text (string name))))
         (sendable (sendable-value value))
         (size (+ (if line-start (length line-start) (+ 2 (length text)))
                  (if (integerp sendable) 19 (length sendable)))))
    (declare (type simple-text text) (type (or null octets) line-start)
             (type (or content-size simple-text) sendable))
    (multiple-value-bind (octets position) (reserve output (+ size 2))
      (let* ((start (if line-start
                        (put-octets octets position line-start 0 (length line-start))
                        (put-name octets position name text)))
             (end (cond ((null start) nil)
                        ((integerp sendable) (put-decimal octets start sendable))
                        (t (put-text octets start sendable +value+)))))
        (unless end
          (error 'invalid-header :name name :value value))
        (setf (output-fill output) (put-line-end octets end)))))
  (values))

(defun encode-end-of-head (output)
  "Appends the empty line that ends a head to OUTPUT."
  (encode-line-end output))

(defun encode-head (output status headers &key cookies second reason)
  "Appends the head of a reply to OUTPUT: the status line for STATUS and REASON, as by
ENCODE-STATUS-LINE; a field for each entry with a value in HEADERS, an alist of names and values as
in ENCODE-HEADER; a Set-Cookie field for each string in the list COOKIES; and Date for SECOND, a
universal time, unless it is NIL.  Appends nothing if it signals INVALID-HEADER (RFC 9112, sections
4 and 5)."
  (declare (type output output) #.*plain-policy*)
  (let ((start (output-fill output)))
    (unless-returned (progn
                       (encode-status-line output status reason)
                       (loop for (name . value) in headers
                             when value
                               do (encode-header output name value))
                       (dolist (cookie cookies)
                         (encode-header output :set-cookie cookie))
                       (when second
                         (encode-date output second))
                       (encode-end-of-head output))
      (setf (output-fill output) start)))
  (values))

(defun encode-continue (output)
  "Appends the interim reply 100 to OUTPUT (RFC 9110, section 15.2.1)."
  (encode-head output 100 '()))
