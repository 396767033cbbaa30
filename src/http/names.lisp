(in-package #:hunchentoot-recycling-taskmaster.http)

;;; What a request's octets are called in Lisp, without making symbols of them: a
;;; client could fill the KEYWORD package, which is never collected.

(defun existing-keyword (name)
  "The keyword of that NAME if there is one; or NIL."
  (values (find-symbol name '#:keyword)))

(defun method-name (octets start end)
  "The method that is OCTETS from START below END: a keyword if there is one, or a string.
Lower case stays what it is (RFC 9110, section 9.1)."
  (let ((place (find-word *methods* octets start end)))
    (if place
        (svref (word-table-keywords *methods*) place)
        (let ((name (latin-1-text octets start end)))
          (or (existing-keyword name) name)))))

(defun unknown-field-name (octets start end)
  "The name of a field that is OCTETS from START below END and no word of *HEADERS*."
  (let ((name (upper-case-text octets start end)))
    (or (existing-keyword name) name)))

(declaim (inline field-name))
(defun field-name (octets start end)
  "The name of a field that is OCTETS from START below END, and its role.  It is a keyword
if there is one (any that a program mentions), or else an upper-case string."
  (let ((place (find-word *headers* octets start end)))
    (if place
        (values (svref (word-table-keywords *headers*) place)
                (aref (word-table-roles *headers*) place))
        (values (unknown-field-name octets start end) +unknown-field+))))

(defun protocol-name (octets start end)
  "The protocol that OCTETS from START below END name, :HTTP/1.0 or :HTTP/1.1."
  (let ((place (and (< start end) (find-word *protocols* octets start end))))
    (if place
        (svref (word-table-keywords *protocols*) place)
        (later-protocol-name octets start end))))

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
