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
  (protocol nil :type (member nil :http/1.0 :http/1.1 :http/2.0))
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

(defun list-elements (value)
  "A list of the elements, strings without surrounding white space and perhaps empty, of VALUE, a
string that is a comma-separated list (RFC 9110, section 5.6.1)."
  (loop with text = (coerce value 'text)
        for start = 0 then (1+ comma)
        for comma of-type index = (text-position #\, text start (length text))
        collect (string-trim '(#\Space #\Tab) (text-part text start comma))
        until (= comma (length text))))

(defun token-p (string)
  "True if STRING is a token (RFC 9110, section 5.6.2)."
  (and (plusp (length string))
       (every (lambda (char)
                (and (< (char-code char) 128) (octet-in-class-p (char-code char) +token+)))
              string)))

;;; Numbers, hosts and ports

(defun decimal-number (text start end)
  "The integer in TEXT, a string, from START below END, but not more than one above +MOST-CONTENT+.
NIL if that part of TEXT is not a number in ASCII digits."
  (declare (type string text) (type index start end) #.*plain-policy*)
  (and (< start end)
       (loop with value of-type (unsigned-byte 61) = 0
             for position of-type index from start below end
             for digit = (- (char-code (char text position)) (char-code #\0))
             unless (<= 0 digit 9)
               return nil
             do (setf value (min (1+ +most-content+) (+ (* 10 value) digit)))
             finally (return value))))

(defun port-in (text start end)
  "The port, of 16 bits, that TEXT has from START to END; NIL if there is none (RFC 9110, section
4.2.1)."
  (let ((port (decimal-number text start end)))
    (and port (<= port 65535) (<= (- end start) 5) port)))

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
                (port-in authority start (length authority))))))

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
               (refuse :malformed-target)))
           (setf (head-host head) uri))
          ((string= "*" uri)            ; RFC 9112, section 3.2.4
           (unless (eq method :options)
             (refuse :malformed-target)))
          (t                            ; RFC 9112, section 3.2.2
           (let* ((start (or (authority-start uri) (refuse :malformed-target)))
                  (end (or (position-if (lambda (char) (find char "/?#")) uri :start start)
                           size)))
             (multiple-value-bind (valid-p host-end) (authority-p uri start end)
               ;; RFC 9110, section 4.2.1: a URI with an empty host MUST be rejected.
               (unless (and valid-p (< start host-end))
                 (refuse :malformed-target)))
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

;;; What all fields together say

(declaim (inline add-field))
(defun add-field (name value fields)
  "FIELDS, as SETTLE-HEAD takes them, the last one first, with another of NAME and VALUE."
  (let ((earlier (if (symbolp name)
                     (assoc name fields :test #'eq)
                     (assoc name fields :test #'equal))))
    (cond (earlier
           (setf (cdr earlier)
                 (cons value (if (listp (cdr earlier)) (cdr earlier) (list (cdr earlier)))))
           fields)
          (t
           (acons name value fields)))))

(defun settle-head (head headers limits)
  "Sets the fields of HEAD to HEADERS, an alist in which the values of a repeated field are a list,
the last first; and what they say of the request.  Refuses the head if they contradict each other,
or LIMITS."
  (declare (type head head) (type limits limits) #.*plain-policy*)
  (let ((later-p (not (eq :http/1.0 (head-protocol head))))
        (host nil) (options nil) (upgrade nil) (coding nil) (length nil) (expected nil))
    (dolist (field headers)
      (let ((name (car field)))
        ;; RFC 9112, section 3.2, and RFC 9110, section 8.6.  A server may accept equal values of
        ;; Content-Length as one.  This server refuses them, since no honest client sends them.
        (when (listp (cdr field))
          (case name
            (:host (refuse :invalid-host))
            (:content-length (refuse :malformed-content-length)))
          (setf (cdr field)
                (coerce (format nil (if (eq name :cookie) "~{~A~^; ~}" "~{~A~^,~}")
                                (reverse (cdr field)))
                        'text)))
        (case name
          (:host (setf host field))
          (:connection (setf options (list-elements (cdr field))))
          (:upgrade (setf upgrade (cdr field)))
          (:transfer-encoding (setf coding (cdr field)))
          (:content-length (setf length (cdr field)))
          (:expect (setf expected (list-elements (cdr field)))))))
    (setf (head-headers head) headers)
    ;; RFC 9112, section 3.2: a server MUST respond with 400 to HTTP/1.1 without Host, and to an
    ;; invalid one.  Section 3.2.2: it MUST ignore Host in favour of the target.
    (unless (if host
                (authority-p (cdr host) 0 (length (the text (cdr host))))
                (not later-p))
      (refuse :invalid-host))
    (cond ((null host))
          ((head-host head) (setf (cdr host) (head-host head)))
          (t (setf (head-host head) (cdr host))))
    (flet ((option-p (option)
             (and (member option options :test #'string-equal) t)))
      (when options
        (setf (head-keep-alive-requested-p head) (option-p "keep-alive")))
      ;; RFC 9110, section 7.8: a server MUST ignore Upgrade in HTTP/1.0.  Without the connection
      ;; option, Upgrade was not meant for this server.
      (when (and upgrade later-p (option-p "upgrade"))
        (setf (head-upgrade head) upgrade))
      ;; These tests follow the order of RFC 9112, section 9.3.
      (setf (head-keep-alive-p head)
            (and (not (option-p "close"))
                 (or later-p (head-keep-alive-requested-p head)))))
    ;; RFC 9112, section 6.3
    (setf (head-framing head)
          (cond (coding
                 (let ((codings (list-elements coding)))
                   ;; Section 6.1: in HTTP/1.0, a Transfer-Encoding makes the framing faulty.
                   ;; Section 6.3, item 4: unless chunked comes last, the length is unknown.
                   ;; Section 7.1: parameters of chunked are an error.  RFC 9110, section 5.6.1.2,
                   ;; allows empty elements; they are refused, since a proxy that reads them
                   ;; differently would see another end of the request.
                   (unless (and (null length)
                                later-p
                                (every #'token-p codings)
                                (eql (1- (length codings))
                                     (position "chunked" codings :test #'string-equal)))
                     (refuse :malformed-transfer-encoding))
                   (when (rest codings)
                     (refuse :unknown-transfer-coding))
                   :chunked))
                (length
                 ;; RFC 9110, section 8.6: Content-Length = 1*DIGIT; anticipate large numerals.
                 (let ((size (decimal-number length 0 (length (the text length)))))
                   (unless size
                     (refuse :malformed-content-length))
                   (when (> size (or (limits-body-octets limits) +most-content+))
                     (refuse :body-too-large))
                   (if (zerop size) :none size)))
                (t :none)))
    ;; RFC 9110, section 10.1.1: a server MUST ignore Expect in HTTP/1.0, and may reply 417 to an
    ;; expectation that it cannot meet.
    (when later-p
      (dolist (expectation expected)
        (cond ((string= "" expectation))
              ((string-equal "100-continue" expectation)
               (setf (head-expect-100-continue-p head) (not (eq :none (head-framing head)))))
              (t (refuse :unknown-expectation)))))))
