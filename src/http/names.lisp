(in-package #:hunchentoot-recycling-taskmaster.http)

;;; What a request's octets are called in Lisp, without making symbols of them: a
;;; client could fill the KEYWORD package, which is never collected.

(defun method-name (octets start end)
  "The method that is OCTETS from START below END: a keyword if there is one, or a string.
Lower case stays what it is (RFC 9110, section 9.1)."
  (or (find-word *methods* octets start end)
      (let ((name (latin-1-text octets start end)))
        (or (find-symbol name '#:keyword) name))))

(defvar *spelling-kept-p* nil
  "True if the name of a header field that no keyword has stays as the client spells it; else it is
in upper case.  Set once, before there is a request.")

(defun unknown-field-name (octets start end)
  "The name of a field that is OCTETS from START below END, of none of *HEADER-NAMES*: a keyword if
there is one, or else a string, spelled as *SPELLING-KEPT-P* says."
  (let ((name (upper-case-text octets start end)))
    (or (find-symbol name '#:keyword)
        (if *spelling-kept-p* (latin-1-text octets start end) name))))

(declaim (inline field-name))
(defun field-name (octets start end)
  "The name of a field that is OCTETS from START below END, and its role.  It is a keyword
if there is one (any that a program mentions), or else a string (see *SPELLING-KEPT-P*)."
  (multiple-value-bind (keyword role) (find-word *headers* octets start end)
    (if keyword
        (values keyword role)
        (values (unknown-field-name octets start end) +unknown-field+))))

(defun protocol-name (octets start end)
  "The protocol that OCTETS from START below END name, :HTTP/1.0 or :HTTP/1.1."
  (or (and (< start end) (find-word *protocols* octets start end))
      (later-protocol-name octets start end)))

(defun later-protocol-name (octets start end)
  "As PROTOCOL-NAME, for versions that are not among *PROTOCOLS*."
  ;; RFC 9112, section 2.3: HTTP-version = HTTP-name "/" DIGIT "." DIGIT, case-sensitive.
  (let ((text (latin-1-text octets start end)))
    (unless (and (= 8 (length text))
                 (string= "HTTP/" text :end2 5)
                 (digit-char-p (schar text 5))
                 (char= #\. (schar text 6))
                 (digit-char-p (schar text 7)))
      (refuse :malformed-version))
    ;; RFC 9110, section 2.5: a later minor version is read as the latest we know.
    (if (char= #\1 (schar text 5))
        :http/1.1
        (refuse :unsupported-version))))
