(in-package #:hunchentoot-recycling-taskmaster.http)

;;;; The header of the PROXY protocol, versions 1 and 2, with which a proxy begins a connection: it
;;;; tells between which addresses the client's connection is.  The specification is HAProxy's,
;;;; doc/proxy-protocol.txt of 2020-03-05.
;;;;
;;;;   version 1   a line of at most 107 octets: PROXY TCP4 192.0.2.1 192.0.2.9 51234 443
;;;;   version 2   a signature of 12 octets, 4 octets that tell the rest, addresses, and vectors of
;;;;               further facts (TLVs), which are skipped
;;;;
;;;; A decoder consumes no octet behind the header, and stops at the first octet that no header can
;;;; have there.

(defparameter *proxy-signature-1* (ascii-octets "PROXY "))

(defparameter *proxy-signature-2*
  (coerce '(13 10 13 10 0 13 10 #x51 #x55 #x49 #x54 10) 'octets))

(defconstant +most-line-octets+ 107
  "The length of the longest header of version 1, with its line end.")

(defconstant +fixed-octets+ 16
  "The length of a header of version 2 before the addresses.")

(defconstant +path-octets+ 108
  "The length of the address of a Unix-domain socket in version 2.")

(defconstant +most-address-octets+ (* 2 +path-octets+)
  "The length of the longest pair of addresses in version 2.")

(defstruct (proxy-header (:include opaque) (:constructor make-proxy-header ()) (:copier nil))
  "A header of the PROXY protocol that is being decoded."
  (octets (make-octets (+ +fixed-octets+ +most-address-octets+)) :type octets)
  (fill 0 :type index)                  ; how many octets were decoded, except TLVs
  (needed +fixed-octets+ :type index)   ; of version 2: with addresses, when that is known
  (skip 0 :type (unsigned-byte 16))     ; how many octets of TLVs follow
  ;; Address, a string, and port of the client of PROXY-HEADER, a list; () where the header tells
  ;; none, so that those of the connection count.
  (source '() :type list)
  ;; Address, a string, and port to which the client of PROXY-HEADER has connected, a list; ()
  ;; where the header tells none.
  (destination '() :type list))

(defun refuse-proxy-header ()
  (refuse :malformed-proxy-header))

(defun settle-addresses (header source destination)
  "Sets the SOURCE and the DESTINATION of HEADER, lists of an IP-ADDRESS and a port."
  (flet ((named (name)
           (list (ip-address-text (first name)) (second name))))
    (setf (proxy-header-source header) (named source)
          (proxy-header-destination header) (named destination))))

;;; Version 1, section 2.1

(defun words-between-spaces (text)
  "A list of the parts of TEXT, a string, between single spaces."
  (loop for start = 0 then (1+ end)
        for end = (position #\Space text :start start)
        collect (subseq text start end)
        while end))

(defun port-word (word)
  "The port that WORD, a string, is; NIL if it is none, or has a leading zero."
  (and (or (equal word "0") (not (eql 0 (position #\0 word))))
       (port-in word 0 (length word))))

(defun decode-proxy-line (header)
  "Decodes the octets of HEADER, a whole line of version 1."
  (destructuring-bind (protocol &rest words)
      (words-between-spaces (latin-1-text (proxy-header-octets header)
                                          (length *proxy-signature-1*)
                                          (- (proxy-header-fill header) 2)))
    (unless (equal protocol "UNKNOWN")  ; then the rest of the line means nothing
      (unless (and (member protocol '("TCP4" "TCP6") :test #'equal)
                   (= 4 (length words)))
        (refuse-proxy-header))
      (let ((addresses (mapcar #'parse-ip-address (subseq words 0 2)))
            (ports (mapcar #'port-word (subseq words 2)))
            (ipv6-p (equal protocol "TCP6")))
        (unless (and (every #'identity addresses)
                     (every #'identity ports)
                     (loop for word in (subseq words 0 2)
                           always (eq ipv6-p (and (find #\: word) t))))
          (refuse-proxy-header))
        (settle-addresses header
                          (list (first addresses) (first ports))
                          (list (second addresses) (second ports)))))))

(defun take-line-octet (header octet)
  "Takes OCTET, the next of HEADER, of version 1.  True if it is the last one."
  (let* ((octets (proxy-header-octets header))
         (fill (proxy-header-fill header))
         (after-return-p (= +carriage-return+ (aref octets (1- fill)))))
    (when (or (not (eq after-return-p (= octet +line-feed+)))
              (= fill +most-line-octets+))
      (refuse-proxy-header))
    (setf (aref octets fill) octet)
    (incf (proxy-header-fill header))
    (when after-return-p
      (decode-proxy-line header)
      t)))

;;; Version 2, section 2.2

(defun integer-of-octets (octets start end)
  "The integer that OCTETS from START to END have, the highest octet first."
  (loop with integer = 0
        for position from start below end
        do (setf integer (+ (ash integer 8) (aref octets position)))
        finally (return integer)))

(defun address-octets (header)
  "How many octets the two addresses of HEADER take, of version 2, whose fixed part is known: 0
where they are not to be used."
  (let* ((octets (proxy-header-octets header))
         (version-and-command (aref octets 12))
         (family-and-protocol (aref octets 13)))
    (case version-and-command
      (#x20 0)                          ; LOCAL: the proxy itself, for a health check
      (#x21
       (case family-and-protocol
         ((#x00 #x01 #x02) 0)           ; unknown
         (#x11 12)                      ; TCP over IPv4
         (#x21 36)                      ; TCP over IPv6
         (#x31 +most-address-octets+)   ; a Unix-domain socket
         (t (refuse-proxy-header))))
      (t (refuse-proxy-header)))))

(defun decode-fixed-part (header)
  "Decodes the fixed part of HEADER, of version 2."
  (let ((size (address-octets header))
        (rest (integer-of-octets (proxy-header-octets header) 14 16)))
    (when (> size rest)
      (refuse-proxy-header))
    (setf (proxy-header-needed header) (+ +fixed-octets+ size)
          (proxy-header-skip header) (- rest size))))

(defun decode-addresses (header)
  "Decodes the addresses of HEADER, of version 2."
  (let ((octets (proxy-header-octets header)))
    (flet ((part (start size)
             (integer-of-octets octets (+ +fixed-octets+ start)
                                (+ +fixed-octets+ start size))))
      (case (- (proxy-header-needed header) +fixed-octets+)
        (0)
        (12 (settle-addresses header
                              (list (+ +ipv4-prefix+ (part 0 4)) (part 8 2))
                              (list (+ +ipv4-prefix+ (part 4 4)) (part 10 2))))
        (36 (settle-addresses header
                              (list (part 0 16) (part 32 2))
                              (list (part 16 16) (part 34 2))))
        (t (setf (proxy-header-source header) (list "unix:" 0)
                 (proxy-header-destination header) (list "unix:" 0)))))))

(defun take-binary-octet (header octet)
  "Takes OCTET, the next of HEADER, of version 2.  True if only TLVs may follow."
  (setf (aref (proxy-header-octets header) (proxy-header-fill header)) octet)
  (incf (proxy-header-fill header))
  (when (= +fixed-octets+ (proxy-header-fill header))
    (decode-fixed-part header))
  (when (= (proxy-header-needed header) (proxy-header-fill header))
    (decode-addresses header)
    t))

;;; Either

(defun take-proxy-octet (header octet)
  "Takes OCTET, the next of HEADER.  True if only TLVs may follow."
  (let* ((octets (proxy-header-octets header))
         (fill (proxy-header-fill header))
         (first (if (zerop fill) octet (aref octets 0)))
         (line-p (= first (aref *proxy-signature-1* 0)))
         (signature (if line-p *proxy-signature-1* *proxy-signature-2*)))
    (cond ((< fill (length signature))
           (unless (= octet (aref signature fill))
             (refuse-proxy-header))
           (setf (aref octets fill) octet)
           (incf (proxy-header-fill header))
           nil)
          (line-p (take-line-octet header octet))
          (t (take-binary-octet header octet)))))

(defun proxy-header-done-p (header)
  "True if HEADER, a PROXY-HEADER, was decoded but for its TLVs."
  (let ((fill (proxy-header-fill header)))
    (and (plusp fill)
         (if (= (aref *proxy-signature-1* 0) (aref (proxy-header-octets header) 0))
             (= +line-feed+ (aref (proxy-header-octets header) (1- fill)))
             (and (>= fill +fixed-octets+) (= fill (proxy-header-needed header)))))))

(defconstant +least-line-octets+ 15
  "The length of the shortest header: PROXY UNKNOWN and a line end.")

(defun proxy-octets-due (header)
  "How many octets of HEADER, a PROXY-HEADER that has not come whole, are still to come at least, an
integer above 0: a reader of so many reads none behind the header."
  (let ((octets (proxy-header-octets header))
        (fill (proxy-header-fill header)))
    (cond ((< fill +least-line-octets+) (- +least-line-octets+ fill))
          ((proxy-header-done-p header) (proxy-header-skip header))
          ((/= (aref *proxy-signature-1* 0) (aref octets 0))
           (- (proxy-header-needed header) fill))
          ((= +carriage-return+ (aref octets (1- fill))) 1)
          (t 2))))

(defun decode-proxy-header (header octets start end)
  "Decodes OCTETS from START to END as the next ones of HEADER, a PROXY-HEADER.  Returns true when
the header has come whole, else NIL; and the position after the last octet that belongs to it.
Signals PROTOCOL-ERROR if it is malformed (proxy-protocol.txt, section 2)."
  (check-range octets start end)
  (loop until (or (= start end) (proxy-header-done-p header))
        do (take-proxy-octet header (aref octets start))
           (incf start))
  (let ((skipped (min (- end start) (proxy-header-skip header))))
    (decf (proxy-header-skip header) skipped)
    (values (and (proxy-header-done-p header) (zerop (proxy-header-skip header)))
            (+ start skipped))))
