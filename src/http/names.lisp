(in-package #:hunchentoot-recycling-taskmaster.http)

;;; Lisp names for the octets of a request.  No function here interns a symbol, since a client
;;; could fill the KEYWORD package, which is never collected.

(defun method-name (octets start end)
  "The method in OCTETS from START below END: a keyword if it exists, else a string.  The case of
letters is significant (RFC 9110, section 9.1)."
  (or (find-word *methods* octets start end)
      (let ((name (latin-1-text octets start end)))
        (or (find-symbol name '#:keyword) name))))

(defvar *spelling-kept-p* nil
  "True to keep the client's spelling of a header field name that has no keyword; NIL to change such
a name to upper case.  It is set once, before the first request.")

(defun unknown-field-name (octets start end)
  "The field name in OCTETS from START below END, none of *HEADER-NAMES*: a keyword if it exists,
else a string, spelled according to *SPELLING-KEPT-P*."
  (let ((name (upper-case-text octets start end)))
    (or (find-symbol name '#:keyword)
        (if *spelling-kept-p* (latin-1-text octets start end) name))))

(declaim (inline field-name))
(defun field-name (octets start end)
  "The field name in OCTETS from START below END, and its role.  The name is a keyword if that
keyword exists, as it does if a program mentions it; else a string (see *SPELLING-KEPT-P*)."
  (multiple-value-bind (keyword role) (find-word *headers* octets start end)
    (if keyword
        (values keyword role)
        (values (unknown-field-name octets start end) +unknown-field+))))

(defun protocol-name (octets start end)
  "The protocol in OCTETS from START below END: :HTTP/1.0 or :HTTP/1.1.  Refuses any other."
  (or (and (< start end) (find-word *protocols* octets start end))
      (later-protocol-name octets start end)))

(defun later-protocol-name (octets start end)
  "Like PROTOCOL-NAME, for versions that are not in *PROTOCOLS*."
  ;; RFC 9112, section 2.3: HTTP-version = HTTP-name "/" DIGIT "." DIGIT, case-sensitive.
  (let ((text (latin-1-text octets start end)))
    (unless (and (= 8 (length text))
                 (string= "HTTP/" text :end2 5)
                 (digit-char-p (schar text 5))
                 (char= #\. (schar text 6))
                 (digit-char-p (schar text 7)))
      (refuse :malformed-version))
    ;; RFC 9110, section 2.5: a later minor version counts as the latest known one.
    (if (char= #\1 (schar text 5))
        :http/1.1
        (refuse :unsupported-version))))
