(in-package #:hunchentoot-recycling-taskmaster.http)

;;; The alphabet of HTTP/1.1: single octets by name, and classes of octets as bits of one table, so
;;; that a scan needs one lookup for each octet.

(defconstant +line-feed+ 10)
(defconstant +carriage-return+ 13)
(defconstant +space+ 32)
(defconstant +quote+ 34)
(defconstant +hyphen+ 45)
(defconstant +colon+ 58)
(defconstant +semicolon+ 59)
(defconstant +equals+ 61)
(defconstant +backslash+ 92)

(eval-when (:compile-toplevel :load-toplevel :execute)

  (defun member-octets (part)
    "A list of the octets in PART of a class: a string of them, or a range (FIRST . LAST)."
    (if (stringp part)
        (coerce (ascii-octets part) 'list)
        (loop for octet from (car part) to (cdr part) collect octet)))

  (defun class-table (classes)
    "A table from each octet to the bits of its CLASSES."
    (let ((table (make-array 256 :element-type 'octet :initial-element 0)))
      (loop for parts in classes
            for bit = 1 then (ash bit 1)
            do (dolist (octet (mapcan #'member-octets (copy-list parts)))
                 (setf (aref table octet) (logior bit (aref table octet)))))
      table)))

(defmacro define-octet-classes (table &rest classes)
  "Defines TABLE, and for each of CLASSES, (NAME . PARTS), the constant NAME: its bit."
  `(progn
     ,@(loop for (name) in classes
             for bit = 1 then (ash bit 1)
             collect `(defconstant ,name ,bit))
     (declaim (type (octets 256) ,table))
     (defparameter ,table (class-table ',(mapcar #'rest classes))
       "Maps each octet to the bits of its classes.")))

(define-octet-classes *octet-classes*

  ;; RFC 9110, section 5.6.2: token = 1*tchar; tchar = "!" / "#" / "$" / "%" / "&" /
  ;; "'" / "*" / "+" / "-" / "." / "^" / "_" / "`" / "|" / "~" / DIGIT / ALPHA
  (+token+ "!#$%&'*+-.^_`|~" (48 . 57) (65 . 90) (97 . 122))

  ;; RFC 5234, appendix B.1: VCHAR = %x21-7E.  A request target may have these octets.  RFC 9112,
  ;; section 3.2, allows fewer, but browsers send | and ", and no function here splits a target
  ;; at an octet that the RFC excludes.
  (+visible+ (33 . 126))

  ;; RFC 9110, section 5.5: field-vchar = VCHAR / obs-text (%x80-FF), with SP and
  ;; HTAB between them.  Every other control character is invalid.
  (+value+ (9 . 9) (32 . 126) (128 . 255))

  ;; RFC 9110, section 5.6.3: OWS = *( SP / HTAB )
  (+whitespace+ (9 . 9) (32 . 32))

  ;; RFC 3986, section 3.2.2: reg-name = *( unreserved / pct-encoded / sub-delims ).  This class
  ;; leaves out pct-encoded, which is three octets; see REG-NAME-END.
  (+reg-name+ "-._~!$&'()*+,;=" (48 . 57) (65 . 90) (97 . 122))

  ;; RFC 3986, section 3.2.2: between the brackets of an IP-literal, IPv6address
  ;; (hexadecimal digits, ":" and ".") or IPvFuture (unreserved, sub-delims, ":")
  (+ip-literal+ "-._~!$&'()*+,;=:" (48 . 57) (65 . 90) (97 . 122))

  ;; RFC 5234, appendix B.1: DIGIT = %x30-39
  (+digit+ (48 . 57)))
