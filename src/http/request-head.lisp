(in-package #:hunchentoot-recycling-taskmaster.http)

;;;; The head of a request, and the checks that need a whole request line or all fields: target,
;;;; host, connection, framing and expectation.

(defstruct (head (:include opaque) (:constructor start-head ()) (:copier nil))
  "The head of one request.  It shares no memory with the input buffer."
  ;; The method, case-sensitive: a keyword if a keyword of that name exists, as it does for all
  ;; known methods; else a string (RFC 9112, section 3.1).
  (method nil :type (or symbol string))
  ;; The request target, undecoded (RFC 9112, section 3.2).
  (uri "" :type string)
  ;; :HTTP/1.1 for every later minor version, too (RFC 9110, section 2.5); NIL while it is not read.
  (protocol nil :type (member nil :http/1.0 :http/1.1))
  ;; The header fields, an alist in the order of first appearance. A name is a keyword if that
  ;; keyword exists, as it does for all known names; else a string, so that no client can fill the
  ;; KEYWORD package. The string is in upper case. A value is a string without surrounding white
  ;; space. The values of a repeated field are joined by a comma, those of Cookie by "; " (RFC 9110,
  ;; section 5.2; RFC 9113, section 8.2.3).
  (headers '() :type list)
  ;; The host and port that the request is for; NIL if an HTTP/1.0 client names none. The target's
  ;; host takes precedence over the Host field (RFC 9112, section 3.3).
  (host nil :type (or null string))
  ;; :NONE if there is no content, a positive number of octets, or :CHUNKED. The end of the
  ;; connection never delimits the content of a request (RFC 9112, section 6.3).
  (framing :none :type (or (member :none :chunked) content-size))
  ;; True if the client lets the connection persist (RFC 9112, section 9.3).
  (keep-alive-p nil :type boolean)
  ;; True if there is the connection option keep-alive (RFC 9112, section C.2.2).
  (keep-alive-requested-p nil :type boolean)
  ;; The value of Upgrade; NIL if there is none, if the connection option upgrade is missing, or if
  ;; the version is not 1.1 (RFC 9110, section 7.8).
  (upgrade nil :type (or null string))
  ;; True if the client waits for 100 (Continue) before it sends the content (RFC 9110, section
  ;; 10.1.1).
  (expect-100-continue-p nil :type boolean))

(defun head-header (head name)
  "The value in HEAD of the header field NAME, a keyword or a string; or NIL."
  (cdr (if (symbolp name)
           (assoc name (head-headers head) :test #'eq)
           (assoc name (head-headers head) :test #'string-equal))))

;;; Lists in field values

(defmacro do-elements ((text start end) &body body)
  "Runs BODY for each element of the comma-separated list TEXT, a variable, with START
and END around the element without its surrounding white space.  Elements may be empty."
  (let ((comma (gensym "COMMA")) (from (gensym "FROM")) (size (gensym "SIZE")))
    ;; RFC 9110, section 5.6.1: #element = [ element ] *( OWS "," OWS [ element ] )
    `(loop with ,size of-type index = (length ,text)
           for ,from of-type index = 0 then (1+ ,comma)
           for ,comma of-type index = (text-position #\, ,text ,from ,size)
           do (let* ((,start (text-run-end ,text ,from ,comma +whitespace+))
                     (,end (text-run-start ,text ,start ,comma +whitespace+)))
                ,@body)
           until (= ,comma ,size))))

(defmacro element= (word text start end)
  "True if TEXT from START to END is WORD, a literal in lower case, compared without regard to
case."
  `(text-spells-p ,text ,start ,end (load-time-value (coerce ,word 'text) t)))

(defun list-elements (value)
  "A list of the non-empty elements, strings, of VALUE, a string that is a comma-separated list
(RFC 9110, section 5.6.1)."
  (let ((text (coerce value 'text)) (elements '()))
    (declare (type text text))
    (do-elements (text start end)
      (when (< start end)
        (push (text-part text start end) elements)))
    (nreverse elements)))

(defun token-p (string)
  "True if STRING is a token (RFC 9110, section 5.6.2)."
  (let* ((text (coerce string 'text)) (end (length text)))
    (and (plusp end)
         (every (lambda (char) (< (char-code char) 128)) text)
         (= end (text-run-end text 0 end +token+)))))

;;; Numbers, hosts and ports

(defconstant +most-integer-digits+ 18
  "The maximum number of digits of a number that a client sends.  A number of that many digits is a
CONTENT-SIZE.  To parse a longer one would take time quadratic in its digits.")

(defun decimal-number (text start end most)
  "The integer in TEXT, a string, from START below END.  NIL if that part of TEXT is not a number in
ASCII digits, or has more than MOST digits; MOST is at most +MOST-INTEGER-DIGITS+."
  (declare (type string text) (type index start end) (type (integer 1 #.+most-integer-digits+) most)
           #.*plain-policy*)
  (and (< start end)
       (<= (- end start) most)
       (loop with value of-type (unsigned-byte 60) = 0
             for position of-type index from start below end
             for digit = (- (char-code (char text position)) (char-code #\0))
             unless (<= 0 digit 9)
               return nil
             do (setf value (+ (* 10 value) digit))
             finally (return value))))

(defun port-in (text start end)
  "The port, of 16 bits, that TEXT has from START to END; NIL if there is none (RFC 9110, section
4.2.1)."
  (let ((port (decimal-number text start end 5)))
    (and port (<= port 65535) port)))

(defun authority-p (text start end)
  "True if TEXT from START to END is a host, perhaps empty, and an optional port.  The second value
is the end of the host."
  (declare (type text text) (type index start end) #.*plain-policy*)
  ;; RFC 9110, section 7.2: Host = uri-host [ ":" port ].  Section 4.2.4 excludes userinfo, so an @
  ;; is as invalid as any other stray character.
  ;; RFC 3986, section 3.2.2: host = IP-literal / IPv4address / reg-name
  (let ((host-end start))
    (declare (type index host-end))
    (cond ((and (< start end) (char= #\[ (schar text start)))
           (let ((bracket (text-run-end text (1+ start) end +ip-literal+)))
             (when (and (< (1+ start) bracket end)
                        (char= #\] (schar text bracket)))
               (setf host-end (1+ bracket)))))
          (t
           (loop
             (setf host-end (text-run-end text host-end end +reg-name+))
             (unless (and (< host-end end)
                          (char= #\% (schar text host-end))
                          (percent-encoding-p text host-end end))
               (return))
             (incf host-end 3))))
    (values (or (= host-end end)
                (and (char= #\: (schar text host-end))
                     (or (= (1+ host-end) end) (port-in text (1+ host-end) end))
                     t))
            host-end)))

(defun host-and-port (authority default)
  "The host, a string, and the port, an integer, of AUTHORITY, a string.  The port is DEFAULT if
AUTHORITY has none, and NIL if it is not a number (RFC 3986, section 3.2)."
  (let* ((colon (position #\: authority :from-end t))
         (colon (and colon
                     (null (find #\] authority :start colon)) ; the colon is not in an IPv6 address
                     colon))
         (start (and colon (1+ colon))))
    (values (subseq authority 0 colon)
            (if (member start (list nil (length authority)))
                default
                (decimal-number authority start (length authority) 5)))))

(defun default-port (tls-p)
  "The port of https if TLS-P, else that of http (RFC 9110, section 4.2)."
  (if tls-p 443 80))

;;; Targets

(defun authority-start (uri)
  "The start of the authority in URI if its scheme is http or https; else NIL."
  ;; RFC 9110, section 4.2.3: the scheme is case-insensitive.
  (loop for scheme in '("http://" "https://")
        for end = (length scheme)
        when (and (<= end (length uri)) (string-equal scheme uri :end2 end))
          return end))

(defun settle-unusual-target (head)
  "Checks the target of HEAD, which is no path, and sets the host if the target names one."
  (declare (type head head) #.*plain-policy*)
  (let* ((uri (head-uri head)) (size (length uri)) (method (head-method head)))
    (declare (type text uri))
    (cond ((eq method :connect)         ; RFC 9112, section 3.2.3: host and port, both there
           (multiple-value-bind (valid-p host-end) (authority-p uri 0 size)
             (unless (and valid-p (plusp host-end) (< (1+ host-end) size))
               (refuse :connect-without-authority)))
           (setf (head-host head) uri))
          ((string= "*" uri)            ; RFC 9112, section 3.2.4
           (unless (eq method :options)
             (refuse :asterisk-without-options)))
          (t                            ; RFC 9112, section 3.2.2
           (let* ((start (or (authority-start uri) (refuse :unknown-target-form)))
                  (end (or (position-if (lambda (char) (find char "/?#")) uri :start start)
                           size)))
             (multiple-value-bind (valid-p host-end) (authority-p uri start end)
               ;; RFC 9110, section 4.2.1: a URI with an empty host MUST be rejected.
               (unless (and valid-p (< start host-end))
                 (refuse :invalid-authority)))
             (setf (head-host head) (subseq uri start end)))))))

(defun uri-path (uri)
  "The start and the end of the path in the string URI, a request target.  The path ends at the
query or at the end of URI (RFC 9112, section 3.2)."
  (declare (type text uri) #.*plain-policy*)
  (let* ((size (length uri))
         (query (text-position #\? uri 0 size))
         (authority (and (plusp size)
                         (char/= #\/ (schar uri 0))
                         (authority-start uri))))
    (if authority
        (values (text-position #\/ uri (min authority query) query) query)
        (values 0 query))))

(defun options-of-server-p (head)
  "True if HEAD asks by OPTIONS for the server, or for its root: load balancers ask so whether the
server is alive (RFC 9110, section 9.3.7)."
  (and (eq :options (head-method head))
       (member (head-uri head) '("/" "*") :test #'equal)
       t))

;;; What all fields together say.  SEEN is the union of the roles of the fields in a head, so that
;;; absent fields cost nothing.

(defun settle-framing (head seen limits)
  "Sets the framing of HEAD by RFC 9112, section 6.3, within LIMITS."
  (declare (type head head) (type role seen) (type limits limits) #.*plain-policy*)
  (when (logtest seen +transfer-encoding+)
    ;; RFC 9112, section 6.1: in HTTP/1.0, a Transfer-Encoding makes the framing faulty.
    (when (eq :http/1.0 (head-protocol head))
      (refuse :transfer-encoding-in-http/1.0))
    (when (logtest seen +content-length+)
      (refuse :two-framings))
    (let ((value (head-header head :transfer-encoding))
          (chunked 0) (others 0) (final-chunked-p nil))
      (declare (type text value) (type index chunked others))
      (do-elements (value start end)
        ;; RFC 9112, section 7.1: parameters of chunked are an error.  RFC 9110, section 5.6.1.2,
        ;; allows empty elements; this function refuses them, since a proxy that reads them
        ;; differently would see another end of the request.
        (unless (and (< start end) (= end (text-run-end value start end +token+)))
          (refuse :malformed-transfer-encoding))
        (setf final-chunked-p (element= "chunked" value start end))
        (if final-chunked-p (incf chunked) (incf others)))
      ;; RFC 9112, section 6.3, item 4: unless chunked comes last, the length is unknown.
      (unless (and final-chunked-p (= 1 chunked))
        (refuse :chunked-not-final))
      (when (plusp others)
        (refuse :unknown-transfer-coding)))
    (setf (head-framing head) :chunked))
  (when (logtest seen +content-length+)
    ;; RFC 9110, section 8.6: Content-Length = 1*DIGIT; anticipate large numerals.
    (let ((value (head-header head :content-length))
          (limit (or (limits-body-octets limits) +most-content+))
          (size 0))
      (declare (type text value) (type (unsigned-byte 64) size))
      (unless (and (plusp (length value))
                   (= (length value) (text-run-end value 0 (length value) +digit+)))
        (refuse :malformed-content-length))
      (loop for digit across value
            do (setf size (+ (* 10 size) (- (char-code digit) 48)))
               (when (> size limit)
                 (refuse :body-too-large)))
      (setf (head-framing head) (if (zerop size) :none size)))))

(defun settle-head (head headers seen limits)
  "Sets the fields of HEAD to HEADERS, an alist with the roles SEEN, in which the values of a
repeated field are a list, the last first; and what they say of the request.  Refuses the head if
they contradict each other, or LIMITS."
  (declare (type head head) (type role seen) (type limits limits) #.*plain-policy*)
  (loop for field in headers
        for (name . values) = field
        when (listp values)
          do (setf (cdr field)
                   (coerce (format nil (if (eq name :cookie) "~{~A~^; ~}" "~{~A~^,~}")
                                   (reverse values))
                           'text)))
  (setf (head-headers head) headers)
  (let ((later-p (eq :http/1.1 (head-protocol head)))
        (close-p nil) (upgrade-p nil))
    ;; RFC 9112, section 3.2: a server MUST respond with 400 to HTTP/1.1 without Host, and to an
    ;; invalid one.  Section 3.2.2: it MUST ignore Host in favour of the target.
    (if (logtest seen +host+)
        (let* ((entry (assoc :host headers :test #'eq)) (host (cdr entry)))
          (unless (authority-p host 0 (length (the text host)))
            (refuse :invalid-host))
          (if (head-host head)
              (setf (cdr entry) (head-host head))
              (setf (head-host head) host)))
        (when later-p
          (refuse :missing-host)))
    (when (logtest seen +connection+)
      (let ((options (head-header head :connection)))
        (declare (type text options))
        (do-elements (options start end)
          (cond ((element= "keep-alive" options start end)
                 (setf (head-keep-alive-requested-p head) t))
                ((element= "close" options start end)
                 (setf close-p t))
                ((element= "upgrade" options start end)
                 (setf upgrade-p t)))))
      ;; RFC 9110, section 7.8: a server MUST ignore Upgrade in HTTP/1.0.  Without the connection
      ;; option, Upgrade was not meant for this server.
      (when (and upgrade-p later-p (logtest seen +upgrade+))
        (setf (head-upgrade head) (head-header head :upgrade))))
    ;; These tests follow the order of RFC 9112, section 9.3.
    (setf (head-keep-alive-p head)
          (and (not close-p)
               (or later-p (head-keep-alive-requested-p head))))
    (when (logtest seen (logior +transfer-encoding+ +content-length+))
      (settle-framing head seen limits))
    ;; RFC 9110, section 10.1.1: a server MUST ignore Expect in HTTP/1.0, and may reply 417 to an
    ;; expectation that it cannot meet.
    (when (and later-p (logtest seen +expect+))
      (let ((value (head-header head :expect)))
        (declare (type text value))
        (do-elements (value start end)
          (cond ((= start end))
                ((element= "100-continue" value start end)
                 (setf (head-expect-100-continue-p head) (not (eq :none (head-framing head)))))
                (t (refuse :unknown-expectation))))))))
