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

(defun ipv4-bits (text start end)
  "The 32 bits of the IPv4 address in TEXT, a string, from START to END; NIL if there is none.  Each
of its four numbers has no leading zero (RFC 3986, section 3.2.2): some programs would read an octal
number."
  (loop with bits = 0
        for count from 1 to 4
        for number-end = (or (position #\. text :start start :end end) end)
        for number = (decimal-number text start number-end 3)
        unless (and number
                    (<= number 255)
                    (or (= 1 (- number-end start)) (char/= #\0 (char text start)))
                    (eq (= count 4) (= number-end end)))
          return nil
        do (setf bits (+ (ash bits 8) number)
                 start (min end (1+ number-end)))
        finally (return bits)))

(defun ipv6-bits (text)
  "The bits of the IPv6 address that TEXT is; NIL if it is none (RFC 4291, section 2.2)."
  (labels ((hexadecimal (part)
             (and (<= 1 (length part) 4)
                  (every (lambda (char) (find char "0123456789abcdefABCDEF")) part)
                  (parse-integer part :radix 16)))
           (groups (text ipv4-p)        ; of 16 bits, between colons
             (loop for (part . more) on (if (string= "" text)
                                            '()
                                            (uiop:split-string text :separator ":"))
                   for number = (hexadecimal part)
                   for ipv4 = (and ipv4-p (null number) (null more)
                                   (ipv4-bits part 0 (length part)))
                   append (cond (number (list number))
                                (ipv4 (list (ash ipv4 -16) (ldb (byte 16 0) ipv4)))
                                (t (return-from ipv6-bits nil))))))
    (let* ((gap (search "::" text))
           (high (groups (subseq text 0 gap) (null gap)))
           (low (if gap (groups (subseq text (+ gap 2)) t) '()))
           (missing (- 8 (length high) (length low))))
      (and (if gap (plusp missing) (zerop missing))
           (reduce (lambda (bits group) (+ (ash bits 16) group))
                   (append high (make-list missing :initial-element 0) low))))))

(defun parse-ip-address (text &optional (start 0) (end (length text)))
  "The IP-ADDRESS that TEXT, a string, has from START to END in the usual notation, without brackets
and zone; NIL if there is none."
  ;; The longest one is of IPv6, and has its last 32 bits as IPv4.
  (cond ((not (<= 2 (- end start) 45)) nil)
        ((find #\: text :start start :end end)
         (ipv6-bits (subseq text start end)))
        (t
         (let ((bits (ipv4-bits text start end)))
           (and bits (+ +ipv4-prefix+ bits))))))

;;; To text

(defun ip-address-text (address)
  "ADDRESS, an IP-ADDRESS, in its usual notation (RFC 5952, section 4): a fresh string."
  (if (ipv4-p address)
      (format nil "~{~D~^.~}" (loop for position from 24 downto 0 by 8
                                    collect (ldb (byte 8 position) address)))
      ;; Two colons take the place of the first longest run of at least two zeros.
      (loop with text = (format nil ":~(~{~X:~}~)" (loop for position from 112 downto 0 by 16
                                                         collect (ldb (byte 16 position) address)))
            for count from 8 downto 2
            for run = (format nil "~{:~D~}:" (make-list count :initial-element 0))
            for place = (search run text)
            when place
              return (format nil "~A::~A"
                             (subseq text (min 1 place) place)
                             (string-right-trim ":" (subseq text (+ place (length run)))))
            finally (return (string-trim ":" text)))))

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
         (address (parse-ip-address text 0 (or slash (length text))))
         (most (if (find #\: text) 128 32))
         (number (if slash (decimal-number text (1+ slash) (length text) 3) most))
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

(defun parts-from-end (value)
  "The elements of the list VALUE, a string or NIL, the last first."
  (let ((text (coerce (or value "") 'text)) (parts '()))
    (declare (type text text))
    (when value
      (do-elements (text start end)
        (push (text-part text start end) parts)))
    parts))

(defun node-of (text)
  "The IP-ADDRESS and the port, 0 if there is none, that TEXT, an element of X-Forwarded-For, names;
NIL if it names no address."
  (let* ((end (length text))
         (colon (position #\: text))
         (bracket (position #\] text))
         (start (if (and (plusp end) (char= #\[ (char text 0))) 1 0)))
    (multiple-value-bind (address-end port-start)
        (cond ((= 1 start)              ; IPv4 has no brackets
               (and colon bracket (< colon bracket) (values bracket (1+ bracket))))
              ((and colon (find #\: text :start (1+ colon)))
               (values end end))
              (t (values (or colon end) (or colon end))))
      (let ((address (and address-end (parse-ip-address text start address-end)))
            (port (cond ((null address-end) nil)
                        ((= port-start end) 0)
                        ((char= #\: (char text port-start)) (port-in text (1+ port-start) end)))))
        (and address port (values address port))))))

(defun origin-of-head (head trusted-p)
  "The ORIGIN of the request HEAD, which a trusted proxy has sent; NIL if HEAD has none of the
fields of proxies.  TRUSTED-P is a function that returns true for the IP-ADDRESS of a trusted
proxy."
  (let ((addresses (parts-from-end (head-header head :x-forwarded-for)))
        (schemes (parts-from-end (head-header head :x-forwarded-proto)))
        (hosts (parts-from-end (head-header head :x-forwarded-host)))
        (ports (parts-from-end (head-header head :x-forwarded-port)))
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
      (let* ((scheme (element schemes))
             (told (element hosts))
             (host (and told
                        (multiple-value-bind (valid-p end) (authority-p told 0 (length told))
                          (and valid-p (plusp end) told))))
             (port-text (element ports))
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
    (and (or addresses schemes hosts ports)
         origin)))

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
             (settle (source destination source-port destination-port)
               (check (and source destination source-port destination-port))
               (setf (proxy-header-source header) (list (ip-address-text source) source-port)
                     (proxy-header-destination header) (list (ip-address-text destination)
                                                             destination-port)))
             (number-at (start size)    ; the highest octet first
               (loop with number = 0
                     for position from start below (+ start size)
                     do (setf number (+ (ash number 8) (aref octets position)))
                     finally (return number)))
             (line-due (return)         ; section 2.1
               (check (and (<= fill 107)
                           (<= (- fill 2) return)
                           (= (octet-position +line-feed+ octets 0 fill) (min fill (1+ return)))))
               (when (< return (1- fill))
                 (destructuring-bind (&optional protocol &rest words)
                     (uiop:split-string (latin-1-text octets (length signature) return)
                                        :separator " ")
                   (unless (equal protocol "UNKNOWN") ; then the rest of the line means nothing
                     (check (= 4 (length words)))
                     (flet ((address (word)
                              (and (equal protocol (if (find #\: word) "TCP6" "TCP4"))
                                   (parse-ip-address word)))
                            (port (word) ; without a leading zero
                              (and (or (equal word "0") (not (eql 0 (position #\0 word))))
                                   (port-in word 0 (length word)))))
                       (settle (address (first words)) (address (second words))
                               (port (third words)) (port (fourth words)))))))
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
                     (12 (settle (+ +ipv4-prefix+ (number-at 16 4))
                                 (+ +ipv4-prefix+ (number-at 20 4))
                                 (number-at 24 2) (number-at 26 2)))
                     (36 (settle (number-at 16 16) (number-at 32 16)
                                 (number-at 48 2) (number-at 50 2)))
                     (216 (setf (proxy-header-source header) (list "unix:" 0)
                                (proxy-header-destination header) (list "unix:" 0)))))
                 (- end fill))))
      (check (= (matching-octets signature 0 octets 0 fill) (min fill (length signature))))
      (cond (line-p (line-due (octet-position +carriage-return+ octets 0 fill)))
            ((< fill 16) (- 16 fill))
            (t (binary-due))))))

(defun decode-proxy-header (header octets start end)
  "Decodes OCTETS from START to END as the next ones of HEADER, a PROXY-HEADER.  Returns true when
the header has come whole, else NIL; and the position after the last octet that belongs to it.
Signals PROTOCOL-ERROR if it is malformed (proxy-protocol.txt, section 2)."
  (check-range octets start end)
  (loop for size = (min (- end start) (proxy-header-due header))
        until (zerop size)
        do (replace (proxy-header-octets header) octets
                    :start1 (proxy-header-fill header) :start2 start :end2 (+ start size))
           (incf start size)
           (incf (proxy-header-fill header) size)
           (setf (proxy-header-due header) (judge-proxy-header header))
        finally (return (values (zerop (proxy-header-due header)) start))))
