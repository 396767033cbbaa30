(in-package #:hunchentoot-recycling-taskmaster.http)

;;;; Where a request comes from: addresses, and what proxies tell of the client.
;;;;
;;;; First, addresses of the Internet Protocol, and networks of them, from and to text.
;;;;
;;;; An address is an integer of 128 bits.  An IPv4 address is the IPv6 address that it is mapped to
;;;; (RFC 4291, section 2.5.5.2), so that a peer of a socket for both versions equals itself.

(deftype ip-address ()
  "An address, in which IPv4 is mapped to IPv6."
  '(unsigned-byte 128))

(defconstant +ipv4-prefix+ #xFFFF00000000
  "The address that has the 32 bits of IPv4 in its lowest bits.")

(defun ipv4-p (address)
  "True if ADDRESS, an IP-ADDRESS, is one of IPv4."
  (= (ash address -32) (ash +ipv4-prefix+ -32)))

;;; From text

(defun plain-number (text most)
  "The number that TEXT, a string, is in decimal digits without leading zeros, which some programs
would read as octal; NIL if it is none, or above MOST."
  (let ((number (decimal-number text 0 (length text))))
    (and number
         (<= number most)
         (or (= 1 (length text)) (char/= #\0 (char text 0)))
         number)))

(defun joined-bits (numbers size)
  "The integer that has NUMBERS, of SIZE bits each, the highest first; NIL if one of them is NIL."
  (and (every #'identity numbers)
       (reduce (lambda (bits number) (+ (ash bits size) number)) numbers)))

(defun ipv4-bits (text)
  "The 32 bits of the IPv4 address that TEXT is; NIL if it is none (RFC 3986, section 3.2.2)."
  (let ((words (uiop:split-string text :separator ".")))
    (and (= 4 (length words))
         (joined-bits (mapcar (lambda (word) (plain-number word 255)) words) 8))))

(defun parse-ip-address (text)
  "The IP-ADDRESS that TEXT, a string, is in the usual notation, without brackets and zone; NIL if
it is none (RFC 4291, section 2.2)."
  (let* ((colon (position #\: text :from-end t))
         (last (if colon (1+ colon) 0))
         (ipv4 (and (<= (length text) 45) ; IPv6 with its last 32 bits as IPv4
                    (ipv4-bits (subseq text last)))))
    (flet ((groups (text)               ; of 16 bits, between colons
             (and (string/= "" text)
                  (loop for word in (uiop:split-string text :separator ":")
                        collect (and (<= 1 (length word) 4)
                                     (every (lambda (char) (digit-char-p char 16)) word)
                                     (parse-integer word :radix 16))))))
      (cond ((< 45 (length text)) nil)
            ((null colon) (and ipv4 (+ +ipv4-prefix+ ipv4)))
            (t
             (let* ((text (if ipv4
                              (format nil "~A~X:~X" (subseq text 0 last)
                                      (ash ipv4 -16) (ldb (byte 16 0) ipv4))
                              text))
                    (gap (search "::" text))
                    (high (groups (subseq text 0 gap)))
                    (low (and gap (groups (subseq text (+ gap 2)))))
                    (missing (- 8 (length high) (length low))))
               (and (if gap (plusp missing) (zerop missing))
                    (joined-bits (append high (make-list missing :initial-element 0) low)
                                 16))))))))

(defun ip-address-text (address)
  "ADDRESS, an IP-ADDRESS, in its usual notation: a fresh string."
  (address-string (coerce (loop for position from 120 downto 0 by 8
                                collect (ldb (byte 8 position) address))
                          'octets)))

;;; Networks

(defstruct (network (:include opaque) (:constructor make-network (address size)) (:copier nil))
  "The addresses whose first SIZE bits are those of ADDRESS."
  (address 0 :type ip-address :read-only t)
  (size 0 :type (integer 0 128) :read-only t))

(defun parse-network (text)
  "The network that TEXT, a string, names: an address, or in CIDR notation an address, a slash and a
number of bits (RFC 4632, section 3.1; RFC 4291, section 2.3).  NIL if it names none, or if the
address has bits beyond that number: it would be a mistake."
  (let* ((slash (position #\/ text))
         (address (parse-ip-address (subseq text 0 slash)))
         (most (if (find #\: text) 128 32))
         (number (if slash (decimal-number text (1+ slash) (length text)) most))
         (size (and number (+ number (- 128 most)))))
    (and address
         size
         (<= size 128)
         (zerop (ldb (byte (- 128 size) 0) address))
         (make-network address size))))

(defun in-network-p (address network)
  "True if ADDRESS, an IP-ADDRESS, is in NETWORK, the result of PARSE-NETWORK."
  (let ((rest (- (network-size network) 128)))
    (and (= (ash address rest) (ash (network-address network) rest))
         ;; All of IPv6 has no address of IPv4.
         (or (>= (network-size network) 96)
             (not (ipv4-p address))))))

;;;; The client of a request, as proxies tell it: X-Forwarded-For, X-Forwarded-Proto,
;;;; X-Forwarded-Host and X-Forwarded-Port.
;;;;
;;;; Each proxy adds an element at the right end of a list: where its own client is.  A client may
;;;; send any list, so a list is read from its right end, and only as far as trusted proxies wrote
;;;; it:
;;;;
;;;;   the element names                    then
;;;;   a trusted proxy                      that proxy is the client, if there is no further element
;;;;   another address                      that is the client
;;;;   no address, as unknown               the last address that is known is the client's

(defstruct (origin (:include opaque) (:copier nil))
  "The client of a request, as far as trusted proxies tell it."
  ;; The address of the client of ORIGIN, a string; NIL where the proxy that has connected tells
  ;; none.
  (address nil :type (or null string))
  ;; The port of the client of ORIGIN; 0 where no proxy tells it.
  (port 0 :type (unsigned-byte 16))
  ;; The scheme of the client's request of ORIGIN: :HTTP, :HTTPS, or NIL where no proxy tells it.
  (scheme nil :type (member nil :http :https))
  ;; The host, perhaps with a port, that the client of ORIGIN has asked for, a string; NIL where no
  ;; proxy tells it.
  (host nil :type (or null text))
  ;; The host for which the proxy itself has asked, where it tells another one, a string; or NIL.
  (asked-host nil :type (or null text)))

(defun node-of (text)
  "The IP-ADDRESS and the port, 0 if there is none, that TEXT, an element of X-Forwarded-For, names;
NIL if it names no address."
  (let ((address (parse-ip-address text)))
    (if address
        (values address 0)
        (multiple-value-bind (host port) (host-and-port text nil)
          (let ((name (string-trim "[]" host)))
            (and (or port (string= host text))
                 (string= host (if (find #\: name) (format nil "[~A]" name) name))
                 (values (parse-ip-address name) (or port 0))))))))

(defun origin-of-head (head trusted-p)
  "The ORIGIN of the request HEAD, which a trusted proxy has sent; NIL if HEAD has none of the
fields of proxies.  TRUSTED-P is a function that returns true for the IP-ADDRESS of a trusted
proxy."
  (let* ((fields (loop for name in '(:x-forwarded-for :x-forwarded-proto :x-forwarded-host
                                     :x-forwarded-port)
                       for value = (head-header head name)
                       collect (and value (reverse (list-elements value)))))
         (addresses (first fields))
         (origin (make-origin))
         (depth 0))
    (dolist (text addresses)
      (multiple-value-bind (address port) (node-of text)
        (unless address
          (return))
        (incf depth)
        (setf (origin-address origin) (ip-address-text address)
              (origin-port origin) port)
        (unless (funcall trusted-p address)
          (return))))
    ;; The element of the proxy which wrote the last address that counts, or the only one: it comes
    ;; from a proxy that adds nothing to a list.
    (flet ((element (parts)
             (if (rest parts) (nth (max 0 (1- depth)) parts) (first parts))))
      (let* ((scheme (element (second fields)))
             (told (element (third fields)))
             (host (and told
                        (multiple-value-bind (valid-p end) (authority-p told 0 (length told))
                          (and valid-p (plusp end) told))))
             (port-text (element (fourth fields)))
             (port (and port-text (port-in port-text 0 (length port-text)))))
        ;; Some proxies name the schemes of WebSockets.
        (setf (origin-scheme origin)
              (cond ((member scheme '("https" "wss") :test #'equalp) :https)
                    ((member scheme '("http" "ws") :test #'equalp) :http))
              (origin-host origin) host)
        ;; The port goes into the host, except where that has one, or its scheme implies this one.
        (when (and port (/= port (default-port (eq :https (origin-scheme origin)))))
          (multiple-value-bind (name own-port) (host-and-port (or host (head-host head) "") nil)
            (unless (or own-port (string= "" name))
              (setf (origin-host origin) (coerce (format nil "~A:~D" name port) 'text)))))))
    (and (some #'identity fields)
         origin)))

;;;; The trace of a request, as its sender tells it: the header field traceparent (W3C, Trace
;;;; Context, section 3.2).  Anybody may send one.

(defparameter *traceparent-form*
  (coerce "00-00000000000000000000000000000000-0000000000000000-00" 'text)
  "The form of the first four parts of a traceparent: version, trace, parent and flags.  A zero
stands for any hexadecimal digit in lower case.")

(defun parse-traceparent (value)
  "The identifiers of the trace and of the parent that VALUE, of a field traceparent, has, strings
of 32 and 16 hexadecimal digits; and true if the parent says that it was sampled.  NIL if VALUE is
NIL, or not valid: of a version above 0, the first four parts count.  Values of several fields,
which are joined by commas, are not valid."
  (declare #.*plain-policy*)
  (let* ((text (coerce (or value "") 'text))
         (size (length text)))
    (declare (type text text))
    (flet ((identifier (start end)
             (and (find #\0 text :start start :end end :test #'char/=)
                  (subseq text start end))))
      (when (and (<= 55 size)
                 (loop for form across (the text *traceparent-form*)
                       for char across text
                       always (if (char= #\- form)
                                  (char= #\- char)
                                  (or (char<= #\0 char #\9) (char<= #\a char #\f))))
                 (string/= "ff" text :end2 2)
                 (or (= 55 size)
                     (and (string/= "00" text :end2 2)
                          (char= #\- (char text 55))
                          (not (find #\, text)))))
        (let ((trace-id (identifier 3 35)) (parent-id (identifier 36 52)))
          (and trace-id
               parent-id
               (values trace-id parent-id (logbitp 0 (digit-char-p (char text 54) 16)))))))))

;;;; The header of the PROXY protocol, versions 1 and 2, with which a proxy begins a connection: it
;;;; tells between which addresses the client's connection is.  The specification is HAProxy's,
;;;; doc/proxy-protocol.txt of 2020-03-05.
;;;;
;;;;   version 1   a line of at most 107 octets: PROXY TCP4 192.0.2.1 192.0.2.9 51234 443
;;;;   version 2   a signature of 12 octets, 4 octets that tell the rest, addresses, and vectors of
;;;;               further facts (TLVs), which are skipped
;;;;
;;;; A decoder consumes no octet behind the header: it asks for as many as must still come at least,
;;;; and judges anew what it has.

(defconstant +least-proxy-octets+ 15
  "The length of the shortest header: PROXY UNKNOWN and a line end.")

(defconstant +most-proxy-octets+ 4096
  "The length of the longest header that is taken, as by nginx.")

(defstruct (proxy-header (:include opaque) (:constructor make-proxy-header ()) (:copier nil))
  "A header of the PROXY protocol that is being decoded."
  (octets (make-octets +most-proxy-octets+) :type octets)
  (fill 0 :type index)                  ; how many octets have come
  ;; How many octets of HEADER are still to come at least: a reader of so many, an integer above 0
  ;; while it has not come whole, reads none behind it.
  (due +least-proxy-octets+ :type index)
  ;; Address, a string, and port of the client, a list; () where the header tells none, so that
  ;; those of the connection count.
  (source '() :type list)
  ;; Address, a string, and port to which the client has connected, a list; () where the header
  ;; tells none.
  (destination '() :type list))

(defun judge-proxy-header (header)
  "How many octets of HEADER are still to come at least; sets what it tells once it has come whole."
  (let* ((octets (proxy-header-octets header))
         (fill (proxy-header-fill header))
         (line-p (= (char-code #\P) (aref octets 0)))
         (signature (if line-p
                        (load-time-value (ascii-octets "PROXY ") t)
                        (load-time-value
                         (coerce '(13 10 13 10 0 13 10 #x51 #x55 #x49 #x54 10) 'octets) t))))
    (labels ((check (right-p)
               (unless right-p
                 (refuse :malformed-proxy-header)))
             (settle (source destination)
               (setf (proxy-header-source header) source
                     (proxy-header-destination header) destination))
             (number-at (start size)
               (joined-bits (coerce (subseq octets start (+ start size)) 'list) 8))
             (line-due (return)         ; section 2.1
               (check (and (<= fill 107)
                           (<= (- fill 2) return)
                           (= (octet-position +line-feed+ octets 0 fill) (min fill (1+ return)))))
               (when (< return (1- fill))
                 (destructuring-bind (&optional protocol source destination source-port
                                        destination-port &rest more)
                     (uiop:split-string (latin-1-text octets (length signature) return)
                                        :separator " ")
                   (flet ((end (address port)
                            (let ((bits (parse-ip-address address))
                                  (port (plain-number port 65535)))
                              (check (and bits
                                          port
                                          (equal protocol (if (find #\: address) "TCP6" "TCP4"))))
                              (list (ip-address-text bits) port))))
                     (unless (equal protocol "UNKNOWN") ; then the rest of the line means nothing
                       (check (and destination-port (null more)))
                       (settle (end source source-port) (end destination destination-port))))))
               (cond ((< return fill) (- (+ 2 return) fill))
                     (t (max 2 (- +least-proxy-octets+ fill)))))
             (binary-due ()             ; section 2.2
               (let* ((end (+ 16 (number-at 14 2)))
                      (size (case (aref octets 12)
                              (#x20 0)  ; LOCAL: the proxy itself, for a health check
                              (#x21 (case (aref octets 13)
                                      ((#x00 #x01 #x02) 0) ; unknown
                                      (#x11 12)            ; TCP over IPv4
                                      (#x21 36)            ; TCP over IPv6
                                      (#x31 216))))))      ; a Unix-domain socket
                 (check (and size (<= (+ 16 size) end +most-proxy-octets+)))
                 (when (= fill end)
                   (case size
                     ((12 36)           ; two addresses, then two ports
                      (let ((octets-of-one (- (floor size 2) 2)))
                        (flet ((end (which)
                                 (let ((start (+ 16 (* which octets-of-one))))
                                   (list (address-string
                                          (subseq octets start (+ start octets-of-one)))
                                         (number-at (+ 12 size (* 2 which)) 2)))))
                          (settle (end 0) (end 1)))))
                     (216 (settle (list "unix:" 0) (list "unix:" 0)))))
                 (- end fill))))
      (check (= (matching-octets signature 0 octets 0 fill) (min fill (length signature))))
      (cond (line-p (line-due (octet-position +carriage-return+ octets 0 fill)))
            ((< fill 16) (- 16 fill))
            (t (binary-due))))))

(defun decode-proxy-header (header octets start end)
  "Takes as many OCTETS from START to END as are due for HEADER, a PROXY-HEADER.  Returns true when
the header has come whole, else NIL; and the position after those that were taken.  Signals
PROTOCOL-ERROR if it is malformed (proxy-protocol.txt, section 2)."
  (check-range octets start end)
  (let ((size (min (- end start) (proxy-header-due header))))
    (replace (proxy-header-octets header) octets
             :start1 (proxy-header-fill header) :start2 start :end2 (+ start size))
    (incf (proxy-header-fill header) size)
    (setf (proxy-header-due header) (judge-proxy-header header))
    (values (zerop (proxy-header-due header)) (+ start size))))
