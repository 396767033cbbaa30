(in-package #:hunchentoot-recycling-taskmaster.http)

;;; What a request's octets are called in Lisp, without making symbols of them: a
;;; client could fill the KEYWORD package, which is never collected.

(defun keyword-or-name (name)
  "The keyword of that NAME if there is one; or NAME."
  (or (find-symbol name '#:keyword) name))

(defun method-name (octets start end)
  "The method that is OCTETS from START below END: a keyword if there is one, or a string.
Lower case stays what it is (RFC 9110, section 9.1)."
  (or (find-word *methods* octets start end)
      (keyword-or-name (latin-1-text octets start end))))

(declaim (inline field-name))
(defun field-name (octets start end)
  "The name of a field that is OCTETS from START below END, and its role.  It is a keyword
if there is one (any that a program mentions), or else an upper-case string."
  (multiple-value-bind (keyword role) (find-word *headers* octets start end)
    (if keyword
        (values keyword role)
        (values (keyword-or-name (upper-case-text octets start end)) +unknown-field+))))

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
