(in-package #:hunchentoot-recycling-taskmaster.http)

;;; The alphabet of HTTP/1.1: single octets by name, and sets of octets as bits
;;; of one table, so that a scan asks one question of each octet.

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
    "The octets meant by PART of a class: a string of them, or a range (FIRST . LAST)."
    (if (stringp part)
        (coerce (ascii-octets part) 'list)
        (loop for octet from (car part) to (cdr part) collect octet)))

  (defun class-table (classes)
    "A table from octet to the sum of the bits of those of CLASSES it belongs to."
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
       "From octet to the sum of the classes it belongs to.")))

(define-octet-classes *octet-classes*

  ;; RFC 9110, section 5.6.2: token = 1*tchar; tchar = "!" / "#" / "$" / "%" / "&" /
  ;; "'" / "*" / "+" / "-" / "." / "^" / "_" / "`" / "|" / "~" / DIGIT / ALPHA
  (+token+ "!#$%&'*+-.^_`|~" (48 . 57) (65 . 90) (97 . 122))

  ;; RFC 5234, appendix B.1: VCHAR = %x21-7E.  What may stand in a request target;
  ;; RFC 9112, section 3.2, allows less, but nothing here takes a target apart by
  ;; the octets that it excludes, and browsers do send | and ".
  (+visible+ (33 . 126))

  ;; RFC 9110, section 5.5: field-vchar = VCHAR / obs-text (%x80-FF), with SP and
  ;; HTAB between them.  Every other control character is invalid.
  (+value+ (9 . 9) (32 . 126) (128 . 255))

  ;; RFC 9110, section 5.6.3: OWS = *( SP / HTAB )
  (+whitespace+ (9 . 9) (32 . 32))

  ;; RFC 3986, section 3.2.2: reg-name = *( unreserved / pct-encoded / sub-delims );
  ;; here without pct-encoded, which is three octets
  (+reg-name+ "-._~!$&'()*+,;=" (48 . 57) (65 . 90) (97 . 122))

  ;; RFC 3986, section 3.2.2: between the brackets of an IP-literal, IPv6address
  ;; (hexadecimal digits, ":" and ".") or IPvFuture (unreserved, sub-delims, ":")
  (+ip-literal+ "-._~!$&'()*+,;=:" (48 . 57) (65 . 90) (97 . 122))

  ;; RFC 5234, appendix B.1: DIGIT = %x30-39
  (+digit+ (48 . 57)))
