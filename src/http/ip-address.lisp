(in-package #:hunchentoot-recycling-taskmaster.http)

;;;; Addresses of the Internet Protocol, and networks of them, from and to text.
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

(defconstant +most-address-characters+ 45
  "The length of the longest address: IPv6 whose last 32 bits are written as IPv4.")

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

(defun hexadecimal-group (text start end)
  "The number of one to four hexadecimal digits that TEXT, a string, has from START to END; or NIL."
  (and (<= 1 (- end start) 4)
       (loop with number = 0
             for position from start below end
             for code = (char-code (char text position))
             for digit = (and (< code 128) (digit-char-p (code-char code) 16))
             unless digit
               return nil
             do (setf number (+ (* 16 number) digit))
             finally (return number))))

(defun ipv6-groups (text start end ipv4-p)
  "The bits of the groups in TEXT, a string, from START to END, that colons separate; and their
number.  There may be none.  If IPV4-P, the last two may be an IPv4 address.  NIL if TEXT has
something else there."
  (loop with bits = 0 and count = 0
        while (< start end)
        do (let* ((group-end (or (position #\: text :start start :end end) end))
                  (last-p (= group-end end))
                  (group (hexadecimal-group text start group-end))
                  (ipv4 (and (not group) last-p ipv4-p (ipv4-bits text start group-end))))
             (cond (group (setf bits (+ (ash bits 16) group)) (incf count))
                   (ipv4 (setf bits (+ (ash bits 32) ipv4)) (incf count 2))
                   (t (return nil)))
             ;; A colon must be followed by a group.
             (when (and (not last-p) (= end (1+ group-end)))
               (return nil))
             (setf start (if last-p end (1+ group-end))))
        finally (return (values bits count))))

(defun ipv6-bits (text start end)
  "The bits of the IPv6 address in TEXT, a string, from START to END; NIL if there is none (RFC
4291, section 2.2)."
  (let ((gap (search "::" text :start2 start :end2 end)))
    (multiple-value-bind (high high-count) (ipv6-groups text start (or gap end) (null gap))
      (multiple-value-bind (low low-count) (if gap (ipv6-groups text (+ gap 2) end t) (values 0 0))
        (and high low
             (if gap
                 (<= (+ high-count low-count) 7)
                 (= high-count 8))
             (+ (ash high (* 16 (- 8 high-count))) low))))))

(defun parse-ip-address (text &optional (start 0) (end (length text)))
  "The IP-ADDRESS that TEXT, a string, has from START to END in the usual notation, without brackets
and zone; NIL if there is none."
  (cond ((not (<= 2 (- end start) +most-address-characters+)) nil)
        ((find #\: text :start start :end end)
         (ipv6-bits text start end))
        (t
         (let ((bits (ipv4-bits text start end)))
           (and bits (+ +ipv4-prefix+ bits))))))

;;; To text

(defun zero-run (groups)
  "The start and the end of the first longest run of at least two zeros in GROUPS, a vector."
  (loop with best = 0 and best-end = 0
        with start = 0
        for index from 0 to (length groups)
        unless (and (< index (length groups)) (zerop (aref groups index)))
          do (when (and (> (- index start) 1) (> (- index start) (- best-end best)))
               (setf best start best-end index))
             (setf start (1+ index))
        finally (return (values best best-end))))

(defun ip-address-text (address)
  "ADDRESS, an IP-ADDRESS, in its usual notation (RFC 5952, section 4): a fresh string."
  (if (ipv4-p address)
      (format nil "~{~D~^.~}" (loop for position from 24 downto 0 by 8
                                    collect (ldb (byte 8 position) address)))
      (let ((groups (coerce (loop for position from 112 downto 0 by 16
                                  collect (ldb (byte 16 position) address))
                            'vector)))
        (multiple-value-bind (start end) (zero-run groups)
          (if (= start end)
              (format nil "~(~{~X~^:~}~)" (coerce groups 'list))
              (format nil "~(~{~X~^:~}::~{~X~^:~}~)"
                      (coerce (subseq groups 0 start) 'list)
                      (coerce (subseq groups end) 'list)))))))

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
