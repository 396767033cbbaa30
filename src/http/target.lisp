(in-package #:hunchentoot-recycling-taskmaster.http)

;;; Request targets and hosts.

(declaim (ftype (function (text index index) index) reg-name-end ip-literal-end host-end))

(defconstant +most-port-digits+ 5
  "The maximum number of digits of a port, which has 16 bits in TCP (RFC 9110, section 4.2.1).")

(defconstant +most-integer-digits+ 18
  "The maximum number of digits of any other number that a client sends.  A number of that many
digits is a CONTENT-SIZE.  To parse a longer one would take time quadratic in its digits.")

;; This is inline since every request calls PORT-P, which knows the type of its text.
(declaim (inline decimal-number))
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

(defun port-p (text start end)
  "True if TEXT from START to END is a port: empty or a number up to 65535."
  (declare (type text text) (type index start end) #.*plain-policy*)
  (or (= start end)
      (let ((number (decimal-number text start end +most-port-digits+)))
        (and number (<= number 65535)))))

(defun percent-encoding-p (text start end)
  "True if TEXT from START below END begins with a percent sign and two digits."
  (declare (type text text) (type index start end) #.*plain-policy*)
  (and (< (+ start 2) end)
       (char= #\% (schar text start))
       (digit-char-p (schar text (+ start 1)) 16)
       (digit-char-p (schar text (+ start 2)) 16)))

(defun reg-name-end (text start end)
  "The end of the registered name, perhaps empty, that begins in TEXT at START."
  (declare (type text text) (type index start end) #.*plain-policy*)
  (loop for position of-type index = (text-run-end text start end +reg-name+)
          then (text-run-end text (+ position 3) end +reg-name+)
        while (percent-encoding-p text position end)
        finally (return position)))

(defun ip-literal-end (text start end)
  "The end of the address in brackets that begins in TEXT at START; START if there is none."
  (declare (type text text) (type index start end) #.*plain-policy*)
  (let ((bracket (text-run-end text (1+ start) end +ip-literal+)))
    (if (and (< (1+ start) bracket end)
             (char= #\] (schar text bracket)))
        (1+ bracket)
        start)))

(defun host-end (text start end)
  "The end of the host that begins in TEXT at START; at most END."
  (declare (type text text) (type index start end) #.*plain-policy*)
  ;; RFC 3986, section 3.2.2: host = IP-literal / IPv4address / reg-name
  (if (and (< start end) (char= #\[ (schar text start)))
      (ip-literal-end text start end)
      (reg-name-end text start end)))

(defun authority-p (text start end)
  "True if TEXT from START to END is a host, perhaps empty, and an optional port.  The second value
is the end of the host."
  (declare (type text text) (type index start end) #.*plain-policy*)
  ;; RFC 9110, section 7.2: Host = uri-host [ ":" port ].  Section 4.2.4 excludes userinfo, so an @
  ;; is as invalid as any other stray character.
  (let ((host-end (host-end text start end)))
    (values (or (= host-end end)
                (and (char= #\: (schar text host-end))
                     (port-p text (1+ host-end) end)))
            host-end)))

(defun connect-target-p (uri)
  "True if URI has the authority-form: a host and a port, neither of them empty."
  (let ((end (length uri)))
    (multiple-value-bind (valid host-end) (authority-p uri 0 end)
      (and valid (plusp host-end) (< (1+ host-end) end)))))

(defun authority-start (uri)
  "The start of the authority in URI if its scheme is http or https; else NIL."
  ;; RFC 9110, section 4.2.3: the scheme is case-insensitive.
  (loop for scheme in '("http://" "https://")
        for end = (length scheme)
        when (and (<= end (length uri)) (string-equal scheme uri :end2 end))
          return end))

(defun target-authority (uri start)
  "The host and port in URI, whose authority begins at START.  Refuses an empty host."
  (let ((end (or (position-if (lambda (char) (find char "/?#")) uri :start start)
                 (length uri))))
    (multiple-value-bind (valid host-end) (authority-p uri start end)
      ;; RFC 9110, section 4.2.1: a URI with an empty host MUST be rejected.
      (unless (and valid (< start host-end))
        (refuse :invalid-authority)))
    (subseq uri start end)))

(defun settle-target (head)
  "Sets the form of the target of HEAD and, if the target names a host, the host."
  (declare (type head head) #.*plain-policy*)
  (let ((uri (head-uri head))
        (method (head-method head)))
    (declare (type text uri))
    ;; RFC 9112, section 3.2: no form has a fragment.  Some proxies would read it as a part of the
    ;; path, and others not.
    (unless (= (length uri) (text-position #\# uri 0 (length uri)))
      (refuse :fragment-in-target))
    (cond ((eq method :connect)         ; RFC 9112, section 3.2.3
           (unless (connect-target-p uri)
             (refuse :connect-without-authority))
           (setf (head-target-form head) :authority
                 (head-host head) uri))
          ((char= #\/ (schar uri 0)))   ; RFC 9112, section 3.2.1: the default
          ((string= "*" uri)            ; RFC 9112, section 3.2.4
           (unless (eq method :options)
             (refuse :asterisk-without-options))
           (setf (head-target-form head) :asterisk))
          (t                            ; RFC 9112, section 3.2.2
           (let ((start (or (authority-start uri) (refuse :unknown-target-form))))
             (setf (head-target-form head) :absolute
                   (head-host head) (target-authority uri start)))))))

(defun options-of-server-p (head)
  "True if HEAD asks by OPTIONS for the server, or for its root: load balancers ask so whether the
server is alive (RFC 9110, section 9.3.7)."
  (and (eq :options (head-method head))
       (member (head-uri head) '("/" "*") :test #'equal)
       t))

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
                (decimal-number authority start (length authority) +most-port-digits+)))))

(defun default-port (tls-p)
  "The port of https if TLS-P, else that of http (RFC 9110, section 4.2)."
  (if tls-p 443 80))
