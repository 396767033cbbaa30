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

(defstruct (word (:copier nil))
  "One known word: a method or the name of a header field."
  (keyword nil :type symbol :read-only t)
  (octets (make-octets 0) :type octets :read-only t) ; folded, as compared
  (line-start (make-octets 0) :type octets :read-only t) ; as sent: "Content-Type: "
  (role 0 :type role :read-only t))     ; of a header; see below

(defstruct (word-table (:copier nil))
  "Words by the hash of their octets, folded with FOLD (32 or 0)."
  (fold 0 :type octet :read-only t)
  (buckets (make-array 256 :initial-element '()) :type (simple-vector 256) :read-only t))

(declaim (inline word-hash))
(defun word-hash (octets start end fold)
  "An index of a bucket for the word, not empty, in OCTETS from START below END.
Length and three octets; the factors are those that keep the buckets shortest."
  (flet ((at (index) (logior fold (aref octets index))))
    (declare (inline at))
    (logand 255 (+ (* 58 (- end start))
                   (* 27 (at start))
                   (* 11 (at (ash (+ start end) -1)))
                   (* 31 (at (1- end)))))))

(defun add-word (table word)
  "Enters WORD into TABLE."
  (let ((octets (word-octets word)))
    (push word (svref (word-table-buckets table)
                      (word-hash octets 0 (length octets) (word-table-fold table))))))

(defun case-sensitive-words (names)
  "A table of NAMES, strings in upper case, as words that stand for their keywords."
  (let ((table (make-word-table :fold 0)))
    (dolist (name names table)
      (add-word table (make-word :keyword (intern name '#:keyword)
                                 :octets (ascii-octets name))))))

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
  "The bit of each header field that this storey itself obeys.")

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

(defun header-word (name number)
  "The WORD for the header field NAME, the known field NUMBER.  A reply spells it as
STRING-CAPITALIZE does, as Hunchentoot always has: Www-Authenticate, Etag."
  (make-word :keyword (intern (string-upcase name) '#:keyword)
             :octets (ascii-octets (string-downcase name))
             :line-start (ascii-octets (format nil "~A: " (string-capitalize name)))
             :role (or (cdr (assoc name *header-roles* :test #'string=))
                       (shared-role number))))

(defparameter *headers*
  (let ((table (make-word-table :fold 32)))
    (loop for name in *header-names*
          for number from 0
          do (add-word table (header-word name number)))
    table)
  "The known header fields by their octets.")

(declaim (inline keyword-bucket))
(defun keyword-bucket (keyword)
  "An index of the bucket for KEYWORD."
  (logand 255 (sxhash (the symbol keyword))))

(defparameter *headers-by-keyword*
  (let ((buckets (make-array 256 :initial-element '())))
    (loop for words across (word-table-buckets *headers*)
          do (dolist (word words)
               (push word (svref buckets (keyword-bucket (word-keyword word))))))
    buckets)
  "The known header fields by their keywords.  Filled when loaded, not when compiled:
SXHASH may differ between the two.")
