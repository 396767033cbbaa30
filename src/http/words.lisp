(in-package #:hunchentoot-recycling-taskmaster.http)

;;; The known words of HTTP, so that a client's octets become keywords without a new string or an
;;; interned symbol.
;;;
;;; Invariant: a comparison with FOLD is exact for all octets that can occur.  To compare a header
;;; name, the search sets bit 5 of each octet, which makes letters lower case.  Known names consist
;;; of letters, digits and "-", and bit 5 turns no other token octet into one of those.

(deftype role ()
  "A set of header fields, in bits; see +HOST+ and the constants after it."
  '(unsigned-byte 32))

;;; A word table is a flat hash table with open addressing: a word whose place is taken gets the
;;; next free place.  Each line of a head needs one lookup, and flat vectors cause few cache misses.

(defconstant +place-count+ 256)

(defconstant +groups-in-word+ (/ 32 +group-size+)
  "The number of octet groups in the longest word.")

(defmacro do-places ((place hash) &body body)
  "Runs BODY with PLACE bound to HASH and then to each following place, until BODY returns."
  `(loop for ,place of-type (integer 0 (,+place-count+)) = ,hash
           then (logand (1- +place-count+) (1+ ,place))
         do (progn ,@body)))

(defstruct (word-table (:include opaque) (:constructor make-word-table (folds)) (:copier nil))
  "Words by the hash of their octets.  FOLDS has the bit to set in each octet, 32 or 0, for a whole
group."
  (folds 0 :type octet-group :read-only t)
  (sizes (make-array +place-count+ :element-type 'octet :initial-element 0)
   :type octets :read-only t)           ; zero for a free place
  (groups (make-array (* +place-count+ +groups-in-word+)
                      :element-type 'octet-group :initial-element 0)
   :type (simple-array octet-group (*)) :read-only t) ; +GROUPS-IN-WORD+ for each place
  (keywords (make-array +place-count+ :initial-element nil) :type simple-vector :read-only t)
  (roles (make-array +place-count+ :element-type 'role :initial-element 0)
   :type (simple-array role (*)) :read-only t))

(declaim (inline word-hash))
(defun word-hash (octets start end fold)
  "The first place for the word, not empty, in OCTETS from START below END.  It depends on the
length and three octets, with the factors that cause the fewest collisions."
  (flet ((at (index) (logior fold (aref octets index))))
    (declare (inline at))
    (logand (1- +place-count+)
            (+ (* 58 (- end start))
               (* 27 (at start))
               (* 11 (at (ash (+ start end) -1)))
               (* 31 (at (1- end)))))))

(defun add-word (table spelling keyword role)
  "Enters the word with SPELLING, folded, into TABLE, with its KEYWORD and ROLE."
  (let* ((size (length spelling))
         (fold (logand 255 (word-table-folds table)))
         ;; LAST-GROUP fills the last group up with zeros.  Folded, each of them is FOLD.
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
  "A table of NAMES, strings in upper case, and their keywords."
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
  "The methods that become keywords without a lookup in the KEYWORD package.")

(defparameter *protocols* (case-sensitive-words '("HTTP/1.1" "HTTP/1.0"))
  "The protocols that this server speaks.")

;;; Each header field has a role, a set of one bit.  The fields that control a connection have a
;;; bit each.  The other fields share the rest of the bits: if a bit was not seen in a head, none
;;; of its fields was.

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
  "The bit of each header field that this layer interprets.")

(defparameter *header-names*
  '(;; RFC 9110
    "Accept" "Accept-Charset" "Accept-Encoding" "Accept-Language" "Accept-Ranges" "Allow"
    "Authentication-Info" "Authorization" "Connection" "Content-Encoding"
    "Content-Language" "Content-Length" "Content-Location" "Content-Range" "Content-Type"
    "Date" "ETag" "Expect" "From" "Host" "If-Match" "If-Modified-Since" "If-None-Match"
    "If-Range" "If-Unmodified-Since" "Last-Modified" "Location" "Max-Forwards"
    "Proxy-Authenticate" "Proxy-Authorization" "Range" "Referer" "Retry-After" "Server"
    "TE" "Trailer" "Upgrade" "User-Agent" "Vary" "Via" "WWW-Authenticate"
    ;; RFC 9111 and 9112, and their predecessors
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
    ;; other fields that browsers send
    "DNT" "Origin" "Referrer-Policy" "Save-Data" "Upgrade-Insecure-Requests"
    "X-Requested-With" "Sec-CH-UA" "Sec-CH-UA-Mobile" "Sec-CH-UA-Platform"
    "Sec-Fetch-Dest" "Sec-Fetch-Mode" "Sec-Fetch-Site" "Sec-Fetch-User" "Sec-GPC"
    "Access-Control-Request-Headers" "Access-Control-Request-Method" "Last-Event-ID"
    ;; common fields of replies
    "Access-Control-Allow-Credentials" "Access-Control-Allow-Headers"
    "Access-Control-Allow-Methods" "Access-Control-Allow-Origin"
    "Access-Control-Expose-Headers" "Access-Control-Max-Age" "Content-Disposition"
    "Content-Security-Policy" "Link" "Permissions-Policy" "Server-Timing" "Refresh"
    "X-Accel-Buffering" "X-Content-Type-Options" "X-Frame-Options" "X-Powered-By"
    "X-XSS-Protection")
  "The header fields that become keywords without a lookup in the KEYWORD package.")

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

;;; Header fields of replies

(defstruct (line-starts (:include opaque) (:copier nil))
  "The starts of lines for known header fields, by the hashes of their keywords."
  (keywords (make-array +place-count+ :initial-element nil)
   :type simple-vector :read-only t)    ; NIL for a free place
  (octets (make-array +place-count+ :initial-element nil)
   :type simple-vector :read-only t)    ; as sent: "Content-Type: "
  (names (make-array +place-count+ :initial-element nil)
   :type simple-vector :read-only t))   ; in lower case: "content-type"

(declaim (inline keyword-hash))
(defun keyword-hash (keyword)
  "The first place for KEYWORD."
  (logand (1- +place-count+) (sxhash (the symbol keyword))))

(defparameter *line-starts*
  (let ((table (make-line-starts)))
    (dolist (name *header-names* table)
      (let ((keyword (header-keyword name)))
        (do-places (place (keyword-hash keyword))
          (unless (svref (line-starts-keywords table) place)
            ;; A reply spells the name as STRING-CAPITALIZE and Hunchentoot do: Www-Authenticate,
            ;; Etag.
            (setf (svref (line-starts-keywords table) place) keyword
                  (svref (line-starts-octets table) place)
                  (ascii-octets (format nil "~A: " (string-capitalize name)))
                  (svref (line-starts-names table) place)
                  (coerce (string-downcase name) 'text))
            (return))))))
  "The starts of lines in replies.  The table is filled at load time, since SXHASH may differ
between compile time and load time.")

(declaim (type line-starts *line-starts*))

(defun field-spelling (name)
  "NAME, the name of a header field, a keyword or a string, as a string in lower case.  The caller
must not modify it."
  (declare #.*plain-policy*)
  (or (and (symbolp name)
           (do-places (place (keyword-hash name))
             (let ((other (svref (line-starts-keywords *line-starts*) place)))
               (cond ((eq name other) (return (svref (line-starts-names *line-starts*) place)))
                     ((null other) (return nil))))))
      (string-downcase name)))
