(in-package #:hunchentoot-recycling-taskmaster.http)

;;; hot: octets and their classes, the known words of HTTP, and the loops that touch every octet of
;;; a request.  No function under *HOT-POLICY* checks its arguments.  PARSE-HEAD, DECODE-BODY and
;;; PARSE-MULTIPART ensure that every range lies within its vector.

(declaim (inline check-range))
(defun check-range (octets start end)
  "Signals an error unless OCTETS is a simple vector of octets with the range [START, END)."
  (unless (and (typep octets 'octets)
               (typep start 'index)
               (typep end 'index)
               (<= start end (length octets)))
    (error "[~S, ~S) is not a range of octets in ~S." start end (type-of octets))))

(defun ascii-octets (string)
  "A fresh vector of the character codes of STRING, which must all be below 128."
  (map 'octets #'char-code string))

(defparameter *line-end* (coerce '(13 10) 'octets)
  "The end of a line, of a head, and of a chunk's octets.")

(defconstant +line-feed+ 10)
(defconstant +carriage-return+ 13)
(defconstant +space+ 32)
(defconstant +colon+ 58)

;;; Classes of octets are bits of one table, so that a scan needs one lookup for each octet.

(defconstant +token+ 1 "tchar (RFC 9110, section 5.6.2).")
(defconstant +visible+ 2
  "VCHAR (RFC 5234, appendix B.1).  A request target may have these octets.  RFC 9112, section 3.2,
allows fewer, but browsers send | and \", and no function here splits a target at an octet that the
RFC excludes.")
(defconstant +value+ 4 "field-vchar, SP and HTAB (RFC 9110, section 5.5).")
(defconstant +whitespace+ 8 "OWS (RFC 9110, section 5.6.3).")
(defconstant +reg-name+ 16 "reg-name without pct-encoded (RFC 3986, section 3.2.2).")
(defconstant +ip-literal+ 32 "IPv6address or IPvFuture (RFC 3986, section 3.2.2).")

(declaim (type (octets 256) *octet-classes*))
(defparameter *octet-classes*
  (let ((table (make-octets 256)))
    (dotimes (octet 256 table)
      (flet ((bit-if (class member-p)
               (if member-p class 0))
             (among-p (others)
               (or (<= 48 octet 57) (<= 65 octet 90) (<= 97 octet 122)
                   (find (code-char octet) others))))
        (setf (aref table octet)
              (logior (bit-if +token+ (among-p "!#$%&'*+-.^_`|~"))
                      (bit-if +visible+ (<= 33 octet 126))
                      (bit-if +value+ (or (= octet 9) (<= 32 octet 126) (<= 128 octet)))
                      (bit-if +whitespace+ (or (= octet 9) (= octet 32)))
                      (bit-if +reg-name+ (among-p "-._~!$&'()*+,;="))
                      (bit-if +ip-literal+ (among-p "-._~!$&'()*+,;=:")))))))
  "Maps each octet to the bits of its classes.")

(declaim (inline octet-in-class-p))
(defun octet-in-class-p (octet class)
  "True if OCTET belongs to CLASS, one of the constants above."
  (logtest (the octet class)
           (aref (the (octets 256) (load-time-value *octet-classes* t)) octet)))

;;; Known words: a client's octets become keywords without a new string or an interned symbol.  A
;;; table is a vector with open addressing: a word whose place is taken has the next free place.
;;;
;;; Invariant: a comparison with FOLD, 32 or 0, is exact for all octets that can occur.  To compare
;;; a header name, the search sets bit 5 of each octet, which makes letters lower case.  Known names
;;; consist of letters, digits and "-", and bit 5 turns no other token octet into one of those.

(defconstant +place-count+ 256)

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

(defun make-word-table (names fold)
  "A table of NAMES, strings: pairs of their octets, folded, and their keywords."
  (let ((table (make-array +place-count+ :initial-element nil)))
    (dolist (name names table)
      (let* ((octets (map 'octets (lambda (char) (logior fold (char-code char))) name))
             (place (word-hash octets 0 (length octets) fold)))
        (loop while (svref table place)
              do (setf place (mod (1+ place) +place-count+)))
        (setf (svref table place) (cons octets (intern (string-upcase name) '#:keyword)))))))

(declaim (type simple-vector *versions* *methods* *headers*))
(defparameter *versions* (make-word-table '("HTTP/1.0" "HTTP/1.1") 0)
  "The versions of HTTP that this server speaks.")


(defparameter *methods*
  ;; RFC 9110, section 9.1: the method token is case-sensitive.  RFC 5789 (PATCH),
  ;; RFC 4918 (WebDAV), RFC 3253 (REPORT), RFC 5323 (SEARCH).
  (make-word-table
   '("GET" "HEAD" "POST" "PUT" "DELETE" "CONNECT" "OPTIONS" "TRACE" "PATCH"
     "COPY" "LOCK" "MKCOL" "MOVE" "PROPFIND" "PROPPATCH" "UNLOCK"
     "REPORT" "SEARCH" "QUERY" "PURGE")
   0)
  "The methods that become keywords without a lookup in the KEYWORD package.")

(defparameter *header-names*
  '(;; RFC 9110, 9111 and 9112
    "Accept" "Accept-Encoding" "Accept-Language" "Accept-Ranges" "Age" "Allow" "Authorization"
    "Cache-Control" "Connection" "Content-Encoding" "Content-Language" "Content-Length"
    "Content-Location" "Content-Range" "Content-Type" "Date" "ETag" "Expect" "Expires" "Host"
    "If-Match" "If-Modified-Since" "If-None-Match" "If-Range" "If-Unmodified-Since" "Keep-Alive"
    "Last-Modified" "Location" "Pragma" "Range" "Referer" "Retry-After" "Server" "TE" "Trailer"
    "Transfer-Encoding" "Upgrade" "User-Agent" "Vary" "Via" "WWW-Authenticate"
    ;; cookies, transport security, proxies, priorities
    "Cookie" "Set-Cookie" "Strict-Transport-Security" "Alt-Svc" "Forwarded" "Priority"
    "Proxy-Connection" "X-Forwarded-For" "X-Forwarded-Host" "X-Forwarded-Port" "X-Forwarded-Proto"
    "X-Real-IP" "X-Request-ID" "Traceparent" "Tracestate"
    ;; WebSockets
    "Sec-WebSocket-Accept" "Sec-WebSocket-Extensions" "Sec-WebSocket-Key"
    "Sec-WebSocket-Protocol" "Sec-WebSocket-Version"
    ;; other fields that browsers send
    "DNT" "Origin" "Upgrade-Insecure-Requests" "X-Requested-With" "Sec-CH-UA" "Sec-CH-UA-Mobile"
    "Sec-CH-UA-Platform" "Sec-Fetch-Dest" "Sec-Fetch-Mode" "Sec-Fetch-Site" "Sec-Fetch-User"
    "Access-Control-Request-Headers" "Access-Control-Request-Method" "Last-Event-ID"
    ;; common fields of replies
    "Access-Control-Allow-Credentials" "Access-Control-Allow-Headers"
    "Access-Control-Allow-Methods" "Access-Control-Allow-Origin" "Content-Disposition"
    "Content-Security-Policy" "Link" "Permissions-Policy" "Referrer-Policy" "Server-Timing"
    "X-Accel-Buffering" "X-Content-Type-Options" "X-Frame-Options" "X-XSS-Protection")
  "The header fields that become keywords without a lookup in the KEYWORD package.")

(defparameter *headers* (make-word-table *header-names* 32)
  "The known header fields by their octets, in lower case.")

;;; Loops

(declaim (ftype (function (octets index index octet) index) run-end)
         (ftype (function (text index index octet) index) text-run-end)
         (ftype (function (character text index index) index) text-position)
         (ftype (function (octet octets index index) index) octet-position)
         (ftype (function (octets index octets index index) index) matching-octets)
         (ftype (function (octets index index) text) latin-1-text))

(defun word-in (table octets start end fold)
  "The word that OCTETS from START below END, not empty, are under FOLD: a keyword if TABLE has it,
or the program mentions it; else a string, so that no client can fill the KEYWORD package."
  (declare (type simple-vector table) (type octets octets) (type index start end)
           (type octet fold) #.*hot-policy*)
  (loop with size of-type index = (- end start)
        with place of-type index = (word-hash octets start end fold)
        for word = (svref table place)
        while word
        do (let ((known (car (the cons word))))
             (declare (type octets known))
             (when (and (= size (length known))
                        (loop for i of-type index below size
                              always (= (aref known i)
                                        (logior fold (aref octets (the index (+ start i)))))))
               (return-from word-in (cdr (the cons word)))))
           (setf place (logand (1- +place-count+) (1+ place))))
  (let* ((text (latin-1-text octets start end))
         (name (if (zerop fold) text (string-upcase text))))
    (or (find-symbol name '#:keyword) name)))

(defun run-end (octets start end class)
  "The first position from START below END where OCTETS leave CLASS, or else END."
  (declare (type octets octets) (type index start end) (type octet class) #.*hot-policy*)
  (loop for position of-type index from start below end
        while (octet-in-class-p (aref octets position) class)
        finally (return position)))

(defun octet-position (octet octets start end)
  "The first position from START below END where OCTETS have OCTET, or END."
  (declare (type octet octet) (type octets octets) (type index start end) #.*hot-policy*)
  (or (position octet octets :start start :end end) end))

(defun matching-octets (wanted from octets start end)
  "The number of octets that match between WANTED, from FROM on, and OCTETS from START below END,
before the first difference."
  (declare (type octets wanted octets) (type index from start end) #.*hot-policy*)
  (loop with most of-type index = (min (- (length wanted) from) (- end start))
        with count of-type index = 0
        while (and (< count most)
                   (= (aref wanted (the index (+ from count)))
                      (aref octets (the index (+ start count)))))
        do (incf count)
        finally (return count)))

(defun latin-1-text (octets start end)
  "A fresh string: OCTETS, a vector of octets, from START below END, decoded as Latin-1."
  (declare (type octets octets) (type index start end) #.*hot-policy*)
  (let ((text (make-string (the index (- end start)))))
    (loop for i of-type index from 0
          for position of-type index from start below end
          do (setf (schar text i) (code-char (aref octets position))))
    text))

(defun text-run-end (text start end class)
  "The first position from START below END where TEXT, all Latin-1, leaves CLASS, or END."
  (declare (type text text) (type index start end) (type octet class) #.*hot-policy*)
  (loop with position of-type index = start
        while (and (< position end)
                   (octet-in-class-p (logand 255 (char-code (schar text position))) class))
        do (incf position)
        finally (return position)))

(defun text-position (char text start end)
  "The first position from START below END where TEXT has CHAR, or END."
  (declare (type text text) (type index start end) (type character char) #.*hot-policy*)
  (or (position char text :start start :end end) end))

(defun text-part (text start end)
  "A fresh string: TEXT from START below END."
  (declare (type text text) #.*plain-policy*)
  (subseq text start end))

;;; UTF-8 and percent-encoded text.  Decoding refuses nothing: U+FFFD replaces what is not UTF-8,
;;; and a percent sign without two digits stays as it is.

(declaim (inline utf-8-code))
(defun utf-8-code (octets start end)
  "The code point that OCTETS have in UTF-8 at START, below END, NIL if they have none; and the
position after it, or after what could have begun one (RFC 3629, sections 3 and 4)."
  (declare (type octets octets) (type index start end) #.*plain-policy*)
  (let* ((first (aref octets start))
         (size (cond ((< first #xC2) 1)
                     ((< first #xE0) 2)
                     ((< first #xF0) 3)
                     ((< first #xF5) 4)
                     (t 1)))
         (code (logand first (ash #x7F (- size))))
         ;; The least and the most second octet exclude overlong forms, surrogates, and code points
         ;; above U+10FFFF.
         (least (case first (#xE0 #xA0) (#xF0 #x90) (t #x80)))
         (most (case first (#xED #x9F) (#xF4 #x8F) (t #xBF))))
    (declare (type (unsigned-byte 32) code) (type octet least most))
    (cond ((< first #x80) (values first (1+ start)))
          ((= 1 size) (values nil (1+ start)))
          (t
           (loop for position of-type index from (1+ start) below (+ start size)
                 do (unless (and (< position end)
                                 (<= least (aref octets position) most))
                      (return (values nil position)))
                    (setf code (logior (ldb (byte 32 0) (ash code 6))
                                       (logand #x3F (aref octets position)))
                          least #x80
                          most #xBF)
                 finally (return (values code (+ start size))))))))

(defun utf-8-text (octets &optional (start 0) (end (length octets)) strict-p)
  "A fresh string: OCTETS from START below END decoded as UTF-8.  U+FFFD replaces each invalid
sequence; or if STRICT-P, the result is NIL when there is one."
  (declare (type octets octets) (type index start end) #.*plain-policy*)
  (check-range octets start end)
  (if (loop for position of-type index from start below end
            always (< (aref octets position) #x80))
      (latin-1-text octets start end)
      ;; A sequence never has more characters than octets.
      (let ((text (make-string (- end start)))
            (fill 0))
        (declare (type index fill))
        (flet ((put (code)
                 (setf (schar text fill) (code-char code))
                 (incf fill)))
          (loop while (< start end)
                do (multiple-value-bind (code next) (utf-8-code octets start end)
                     (declare (type (or null (unsigned-byte 21)) code))
                     (cond ((null code)
                            (when strict-p
                              (return-from utf-8-text nil))
                            (put #xFFFD))
                           ((< code char-code-limit) (put code))
                           (t           ; the strings of this Lisp are UTF-16
                            (put (+ #xD800 (ash (- code #x10000) -10)))
                            (put (+ #xDC00 (logand #x3FF code)))))
                     (setf start next))))
        (text-part text 0 fill))))

;;; RFC 3986, section 2.1

(defun percent-encoding-p (text start end)
  "True if TEXT from START below END begins with a percent sign and two digits."
  (declare (type text text) (type index start end) #.*plain-policy*)
  (and (< (+ start 2) end)
       (char= #\% (schar text start))
       (digit-char-p (schar text (+ start 1)) 16)
       (digit-char-p (schar text (+ start 2)) 16)))

(defun percent-decoded (text start end)
  "TEXT, all ASCII, from START below END, with percent-encoded octets decoded and the result read as
UTF-8: a fresh string."
  (declare (type text text) (type index start end) #.*plain-policy*)
  (assert (<= start end (length text)) (start end) "[~S, ~S) is not a range of a text." start end)
  (if (= end (text-position #\% text start end))
      (text-part text start end)
      (let ((octets (make-octets (- end start)))
            (fill 0))
        (declare (type index fill))
        (loop while (< start end)
              do (cond ((percent-encoding-p text start end)
                        (setf (aref octets fill)
                              (parse-integer text :start (+ start 1) :end (+ start 3) :radix 16))
                        (incf start 3))
                       (t
                        (setf (aref octets fill) (logand 255 (char-code (schar text start))))
                        (incf start)))
                 (incf fill))
        (utf-8-text octets 0 fill))))
