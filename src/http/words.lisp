(in-package #:hunchentoot-recycling-taskmaster.http)

;;; The words of HTTP that are known beforehand, so that a client's octets become
;;; keywords without making a string or interning a symbol.
;;;
;;; Invariant: FOLD makes comparison exact on the octets that can occur.  A header
;;; name is compared with its letters forced to lower case by bit 5; known names
;;; consist of letters, digits and "-", and no other token octet is mapped to one of
;;; those by setting bit 5.

(deftype role ()
  "A set of header fields, in bits; see +HOST+ and the constants after it."
  '(unsigned-byte 32))

;;; Tables that lie flat, since what is looked up for each line of a head is often no more
;;; in the processor's nearest memory: places in several vectors, by a hash; a word for whose
;;; hash the place was taken has the next that was free.

(defconstant +place-count+ 256)

(defconstant +groups-in-word+ (/ 32 +group-size+)
  "How many groups of octets the longest word has.")

(defmacro do-places ((place hash) &body body)
  "Runs BODY with PLACE being HASH and then each that follows, until it returns."
  `(loop for ,place of-type (integer 0 (,+place-count+)) = ,hash
           then (logand (1- +place-count+) (1+ ,place))
         do (progn ,@body)))

(defstruct (word-table (:include opaque) (:constructor make-word-table (folds)) (:copier nil))
  "Words by the hash of their octets, folded with FOLD (32 or 0); a group of these is FOLDS."
  (folds 0 :type octet-group :read-only t)
  (sizes (make-array +place-count+ :element-type 'octet :initial-element 0)
   :type octets :read-only t)           ; zero where a place is free
  (groups (make-array (* +place-count+ +groups-in-word+)
                      :element-type 'octet-group :initial-element 0)
   :type (simple-array octet-group (*)) :read-only t) ; +GROUPS-IN-WORD+ for each place
  (keywords (make-array +place-count+ :initial-element nil) :type simple-vector :read-only t)
  (roles (make-array +place-count+ :element-type 'role :initial-element 0)
   :type (simple-array role (*)) :read-only t))

(declaim (inline word-hash))
(defun word-hash (octets start end fold)
  "The place that the word, not empty, in OCTETS from START below END should have.
Length and three octets; the factors are those that make the fewest words go elsewhere."
  (flet ((at (index) (logior fold (aref octets index))))
    (declare (inline at))
    (logand (1- +place-count+)
            (+ (* 58 (- end start))
               (* 27 (at start))
               (* 11 (at (ash (+ start end) -1)))
               (* 31 (at (1- end)))))))

(defun add-word (table spelling keyword role)
  "Enters the word of SPELLING, folded, into TABLE: it stands for KEYWORD and ROLE."
  (let* ((size (length spelling))
         (fold (logand 255 (word-table-folds table)))
         ;; Behind the word stands what FOLD makes of zeros.
         (octets (make-array (* +groups-in-word+ +group-size+)
                             :element-type 'octet :initial-element fold)))
    (assert (<= 1 size (length octets)))
    (replace octets (ascii-octets spelling))
    (do-places (place (word-hash octets 0 size fold))
      (when (zerop (aref (word-table-sizes table) place))
        (setf (aref (word-table-sizes table) place) size
              (aref (word-table-keywords table) place) keyword
              (aref (word-table-roles table) place) role)
        (dotimes (i +groups-in-word+)
          (setf (aref (word-table-groups table) (+ i (* place +groups-in-word+)))
                (octet-group octets (* i +group-size+))))
        (return)))))

(defun case-sensitive-words (names)
  "A table of NAMES, strings in upper case, as words that stand for their keywords."
  (let ((table (make-word-table (in-each 0))))
    (dolist (name names table)
      (add-word table name (intern name '#:keyword) 0))))

(defparameter *methods*
  ;; RFC 9110, section 9.1: the method token is case-sensitive.  RFC 5789 (PATCH),
  ;; RFC 4918 (WebDAV), RFC 3253 (REPORT), RFC 5323 (SEARCH).
  (case-sensitive-words
   '("GET" "HEAD" "POST" "PUT" "DELETE" "CONNECT" "OPTIONS" "TRACE" "PATCH"
     "COPY" "LOCK" "MKCOL" "MOVE" "PROPFIND" "PROPPATCH" "UNLOCK"
     "REPORT" "SEARCH" "QUERY" "PURGE"))
  "The methods that become keywords without a look into the KEYWORD package.")

(defparameter *protocols* (case-sensitive-words '("HTTP/1.1" "HTTP/1.0"))
  "The protocols that are spoken here.")

;;; Each header field has a role, a set of one bit.  The fields on which the life of a
;;; connection depends have a bit of their own.  The others share the rest: where the
;;; bit has not been seen in a head, neither has the field.

(defconstant +host+ 1)
(defconstant +content-length+ 2)
(defconstant +transfer-encoding+ 4)
(defconstant +connection+ 8)
(defconstant +upgrade+ 16)
(defconstant +expect+ 32)
(defconstant +unknown-field+ (ash 1 31))

(defun shared-role (number)
  "One of the 25 bits between +EXPECT+ and +UNKNOWN-FIELD+ for the known field NUMBER."
  (ash 1 (+ 6 (mod number 25))))

(defparameter *header-roles*
  `(("Host" . ,+host+) ("Content-Length" . ,+content-length+)
    ("Transfer-Encoding" . ,+transfer-encoding+) ("Connection" . ,+connection+)
    ("Upgrade" . ,+upgrade+) ("Expect" . ,+expect+))
  "The bit of each header field that this layer itself obeys.")

(defparameter *header-names*
  '(;; RFC 9110
    "Accept" "Accept-Charset" "Accept-Encoding" "Accept-Language" "Accept-Ranges" "Allow"
    "Authentication-Info" "Authorization" "Connection" "Content-Encoding"
    "Content-Language" "Content-Length" "Content-Location" "Content-Range" "Content-Type"
    "Date" "ETag" "Expect" "From" "Host" "If-Match" "If-Modified-Since" "If-None-Match"
    "If-Range" "If-Unmodified-Since" "Last-Modified" "Location" "Max-Forwards"
    "Proxy-Authenticate" "Proxy-Authorization" "Range" "Referer" "Retry-After" "Server"
    "TE" "Trailer" "Upgrade" "User-Agent" "Vary" "Via" "WWW-Authenticate"
    ;; RFC 9111 and 9112, and their forerunners
    "Age" "Cache-Control" "Expires" "Pragma" "Warning" "Transfer-Encoding" "Keep-Alive"
    "Content-MD5" "Proxy-Connection"
    ;; cookies, transport security, proxies, priorities
    "Cookie" "Set-Cookie" "Strict-Transport-Security" "Alt-Svc" "Forwarded" "Priority"
    "X-Forwarded-For" "X-Forwarded-Host" "X-Forwarded-Port" "X-Forwarded-Proto"
    "X-Real-IP" "X-Request-ID" "X-Correlation-ID" "Traceparent" "Tracestate"
    ;; WebDAV and WebSockets
    "DAV" "Depth" "Destination" "If" "Lock-Token" "Overwrite" "TimeOut"
    "Sec-WebSocket-Accept" "Sec-WebSocket-Extensions" "Sec-WebSocket-Key"
    "Sec-WebSocket-Protocol" "Sec-WebSocket-Version" "HTTP2-Settings"
    ;; what browsers send of themselves
    "DNT" "Origin" "Referrer-Policy" "Save-Data" "Upgrade-Insecure-Requests"
    "X-Requested-With" "Sec-CH-UA" "Sec-CH-UA-Mobile" "Sec-CH-UA-Platform"
    "Sec-Fetch-Dest" "Sec-Fetch-Mode" "Sec-Fetch-Site" "Sec-Fetch-User" "Sec-GPC"
    "Access-Control-Request-Headers" "Access-Control-Request-Method" "Last-Event-ID"
    ;; what replies commonly carry
    "Access-Control-Allow-Credentials" "Access-Control-Allow-Headers"
    "Access-Control-Allow-Methods" "Access-Control-Allow-Origin"
    "Access-Control-Expose-Headers" "Access-Control-Max-Age" "Content-Disposition"
    "Content-Security-Policy" "Link" "Permissions-Policy" "Server-Timing" "Refresh"
    "X-Accel-Buffering" "X-Content-Type-Options" "X-Frame-Options" "X-Powered-By"
    "X-XSS-Protection")
  "The names of header fields that are known without looking them up.")

(defun header-keyword (name)
  "The keyword for the header field NAME."
  (intern (string-upcase name) '#:keyword))

(defparameter *headers*
  (let ((table (make-word-table (in-each 32))))
    (loop for name in *header-names*
          for number from 0
          do (add-word table (string-downcase name)
                       (header-keyword name)
                       (or (cdr (assoc name *header-roles* :test #'string=))
                           (shared-role number))))
    table)
  "The known header fields by their octets.")

(declaim (type word-table *methods* *protocols* *headers*))

;;; What replies say

(defstruct (line-starts (:include opaque) (:copier nil))
  "How lines of known header fields begin, by the hashes of their keywords."
  (keywords (make-array +place-count+ :initial-element nil)
   :type simple-vector :read-only t)    ; NIL where a place is free
  (octets (make-array +place-count+ :initial-element nil)
   :type simple-vector :read-only t)    ; as sent: "Content-Type: "
  (names (make-array +place-count+ :initial-element nil)
   :type simple-vector :read-only t))   ; in lower case: "content-type"

(declaim (inline keyword-hash))
(defun keyword-hash (keyword)
  "The place that KEYWORD should have."
  (logand (1- +place-count+) (sxhash (the symbol keyword))))

(defparameter *line-starts*
  (let ((table (make-line-starts)))
    (dolist (name *header-names* table)
      (let ((keyword (header-keyword name)))
        (do-places (place (keyword-hash keyword))
          (unless (svref (line-starts-keywords table) place)
            ;; A reply spells it as STRING-CAPITALIZE does, as Hunchentoot always has:
            ;; Www-Authenticate, Etag.
            (setf (svref (line-starts-keywords table) place) keyword
                  (svref (line-starts-octets table) place)
                  (ascii-octets (format nil "~A: " (string-capitalize name)))
                  (svref (line-starts-names table) place)
                  (coerce (string-downcase name) 'text))
            (return))))))
  "How lines of replies begin.  Filled when loaded, not when compiled: SXHASH may differ between
the two.")

(declaim (type line-starts *line-starts*))

(defun field-spelling (name)
  "The name of a header field, NAME, a keyword or a string, in lower case: a string, which nobody
may change."
  (declare #.*plain-policy*)
  (or (and (symbolp name)
           (do-places (place (keyword-hash name))
             (let ((other (svref (line-starts-keywords *line-starts*) place)))
               (cond ((eq name other) (return (svref (line-starts-names *line-starts*) place)))
                     ((null other) (return nil))))))
      (string-downcase name)))
