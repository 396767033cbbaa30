(in-package #:hunchentoot-recycling-taskmaster.http)

(define-record (head (:include opaque) (:constructor start-head (method)) (:copier nil))
  "The head of one request.  It refers to nothing of the buffer it was read from."
  (method nil :type (or symbol string)
   :documentation "The method of HEAD, case-sensitively: a keyword where one of that
name exists (known methods always), else a string (RFC 9112, section 3.1).")
  (uri "" :type string
   :documentation "The request target of HEAD, a string, undecoded (RFC 9112, section 3.2).")
  (target-form :origin :type (member :origin :absolute :authority :asterisk)
   :documentation "Which of the forms of RFC 9112, section 3.2, the target of HEAD has:
:ORIGIN, :ABSOLUTE, :AUTHORITY or :ASTERISK.")
  (protocol :http/1.1 :type (member :http/1.0 :http/1.1)
   :documentation "The version of HEAD: :HTTP/1.0, or :HTTP/1.1 for that and every later
minor version (RFC 9110, section 2.5).")
  (headers '() :type list
   :documentation "The header fields of HEAD, an alist in the order of first appearance.
A name is a keyword where one exists, known names always; else a string, so that no
client can fill the KEYWORD package: in upper case, or with *SPELLING-KEPT-P* as the
client spells it where it appears first.  A value is a string without surrounding white
space; the values of a repeated field are joined by a comma, those of Cookie by \"; \"
(RFC 9110, section 5.2; RFC 9113, section 8.2.3).")
  (host nil :type (or null string)
   :documentation "The host and port that HEAD is for, a string, or NIL (HTTP/1.0 only).
That of the target, if it names one, else that of Host (RFC 9112, section 3.3).")
  (framing :none :type (or (member :none :chunked) content-size)
   :documentation "How the content of HEAD is delimited: :NONE (there is none), a positive
number of octets, or :CHUNKED (RFC 9112, section 6.3).  It is never the end of the
connection.")
  (keep-alive-p nil :type boolean
   :documentation "True if the client of HEAD lets the connection persist (RFC 9112,
section 9.3).")
  (keep-alive-requested-p nil :type boolean
   :documentation "True if HEAD has the connection option keep-alive (RFC 9112,
section C.2.2).")
  (close-requested-p nil :type boolean
   :documentation "True if HEAD has the connection option close (RFC 9112, section 9.6).")
  (upgrade nil :type (or null string)
   :documentation "The value of Upgrade in HEAD, if the connection option upgrade makes it
valid, and the version is 1.1; else NIL (RFC 9110, section 7.8).")
  (expect-100-continue-p nil :type boolean
   :documentation "True if the client of HEAD waits for an interim reply before it sends
content (RFC 9110, section 10.1.1)."))

(defun find-field (name headers)
  "The entry of the alist HEADERS for NAME, a keyword or, of a field without one, a TEXT; or NIL."
  (if (symbolp name)
      (assoc name headers :test #'eq)
      (assoc-if (lambda (other)
                  (and (stringp other) (text-equal name other)))
                headers)))

(defun head-header (head name)
  "The value in HEAD of the header field NAME, a keyword or a string; or NIL."
  (check-type head head)
  (let ((headers (head-headers head)))
    (cdr (if (symbolp name)
             (find-field name headers)
             (assoc name headers :test #'string-equal)))))
