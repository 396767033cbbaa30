(in-package #:hunchentoot-recycling-taskmaster.http)

(defstruct (head (:include opaque) (:constructor start-head (method)) (:copier nil))
  "The head of one request.  It shares no memory with the input buffer."
  ;; The method of HEAD, case-sensitive: a keyword if a keyword of that name exists, as it does for
  ;; all known methods; else a string (RFC 9112, section 3.1).
  (method nil :type (or symbol string))
  ;; The request target of HEAD, a string, undecoded (RFC 9112, section 3.2).
  (uri "" :type string)
  ;; The form of the target of HEAD: :ORIGIN, :ABSOLUTE, :AUTHORITY or :ASTERISK (RFC 9112, section
  ;; 3.2).
  (target-form :origin :type (member :origin :absolute :authority :asterisk))
  ;; The version of HEAD: :HTTP/1.0, or :HTTP/1.1 for 1.1 and every later minor version (RFC 9110,
  ;; section 2.5).
  (protocol :http/1.1 :type (member :http/1.0 :http/1.1))
  ;; The header fields of HEAD, an alist in the order of first appearance. A name is a keyword if
  ;; that keyword exists, as it does for all known names; else a string, so that no client can fill
  ;; the KEYWORD package. The string is in upper case or, if *SPELLING-KEPT-P* is true, as the
  ;; client first spelled it. A value is a string without surrounding white space. The values of a
  ;; repeated field are joined by a comma, those of Cookie by "; " (RFC 9110, section 5.2; RFC
  ;; 9113, section 8.2.3).
  (headers '() :type list)
  ;; The host and port that HEAD is for, a string; NIL if an HTTP/1.0 client names none. The
  ;; target's host takes precedence over the Host field (RFC 9112, section 3.3).
  (host nil :type (or null string))
  ;; The framing of the content of HEAD: :NONE if there is no content, a positive number of octets,
  ;; or :CHUNKED. The end of the connection never delimits the content of a request (RFC 9112,
  ;; section 6.3).
  (framing :none :type (or (member :none :chunked) content-size))
  ;; True if the client of HEAD lets the connection persist (RFC 9112, section 9.3).
  (keep-alive-p nil :type boolean)
  ;; True if HEAD has the connection option keep-alive (RFC 9112, section C.2.2).
  (keep-alive-requested-p nil :type boolean)
  ;; True if HEAD has the connection option close (RFC 9112, section 9.6).
  (close-requested-p nil :type boolean)
  ;; The value of Upgrade in HEAD, a string; NIL if there is none, if the connection option upgrade
  ;; is missing, or if the version is not 1.1 (RFC 9110, section 7.8).
  (upgrade nil :type (or null string))
  ;; True if the client of HEAD waits for 100 (Continue) before it sends the content (RFC 9110,
  ;; section 10.1.1).
  (expect-100-continue-p nil :type boolean))

(defun find-field (name headers)
  "The entry for NAME, a keyword or a TEXT, in the alist HEADERS; or NIL."
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
