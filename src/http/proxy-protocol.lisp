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

(defconstant +least-line-octets+ 15
  "The length of the shortest header: PROXY UNKNOWN and a line end.")

(defconstant +most-line-octets+ 107
  "The length of the longest header of version 1, with its line end.")

(defconstant +fixed-octets+ 16
  "The length of a header of version 2 before the addresses.")

(defconstant +most-address-octets+ 216
  "The length of the longest pair of addresses in version 2, of Unix-domain sockets.")

(defstruct (proxy-header (:include opaque) (:constructor make-proxy-header ()) (:copier nil))
  "A header of the PROXY protocol that is being decoded."
  (octets (make-octets (+ +fixed-octets+ +most-address-octets+)) :type octets)
  (fill 0 :type index)                  ; how many octets were decoded, except TLVs
  (due +least-line-octets+ :type index) ; how many are still to come, at least
  (skip 0 :type (unsigned-byte 16))     ; how many octets of TLVs follow
  ;; Address, a string, and port of the client of PROXY-HEADER, a list; () where the header tells
  ;; none, so that those of the connection count.
  (source '() :type list)
  ;; Address, a string, and port to which the client of PROXY-HEADER has connected, a list; ()
  ;; where the header tells none.
  (destination '() :type list))

(defun check-proxy-header (right-p)
  (unless right-p
    (refuse :malformed-proxy-header)))

(defun settle-addresses (header source destination)
  "Sets the SOURCE and the DESTINATION of HEADER, lists of an IP-ADDRESS and a port."
  (flet ((named (name)
           (list (ip-address-text (first name)) (second name))))
    (setf (proxy-header-source header) (named source)
          (proxy-header-destination header) (named destination))))

;;; Version 1, section 2.1

(defun port-word (word)
  "The port that WORD, a string, is; NIL if it is none, or has a leading zero."
  (and (or (equal word "0") (not (eql 0 (position #\0 word))))
       (port-in word 0 (length word))))

(defun decode-proxy-line (header)
  "Decodes the octets of HEADER, a whole line of version 1."
  (destructuring-bind (&optional protocol &rest words)
      (uiop:split-string (latin-1-text (proxy-header-octets header) (length *proxy-signature-1*)
                                       (- (proxy-header-fill header) 2))
                         :separator " ")
    (unless (equal protocol "UNKNOWN")  ; then the rest of the line means nothing
      (check-proxy-header (and (member protocol '("TCP4" "TCP6") :test #'equal)
                               (= 4 (length words))))
      (let ((addresses (mapcar #'parse-ip-address (subseq words 0 2)))
            (ports (mapcar #'port-word (subseq words 2)))
            (ipv6-p (equal protocol "TCP6")))
        (check-proxy-header (and (every #'identity addresses)
                                 (every #'identity ports)
                                 (loop for word in (subseq words 0 2)
                                       always (eq ipv6-p (and (find #\: word) t)))))
        (settle-addresses header
                          (list (first addresses) (first ports))
                          (list (second addresses) (second ports)))))))

(defun line-octets-due (header)
  "How many octets of HEADER, of version 1, are still to come at least.  Decodes it once it is
whole."
  (let* ((octets (proxy-header-octets header))
         (fill (proxy-header-fill header))
         (last (aref octets (1- fill)))
         (after-return-p (= +carriage-return+ (aref octets (- fill 2)))))
    (check-proxy-header (and (eq after-return-p (= last +line-feed+))
                             (<= fill +most-line-octets+)))
    (cond (after-return-p
           (decode-proxy-line header)
           0)
          ((= last +carriage-return+) 1)
          (t (max 2 (- +least-line-octets+ fill))))))

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
         (t (check-proxy-header nil))))
      (t (check-proxy-header nil)))))

(defun decode-addresses (header size)
  "Decodes the addresses of HEADER, of version 2, SIZE octets."
  (flet ((part (start size)
           (integer-of-octets (proxy-header-octets header) (+ +fixed-octets+ start)
                              (+ +fixed-octets+ start size))))
    (case size
      (0)
      (12 (settle-addresses header
                            (list (+ +ipv4-prefix+ (part 0 4)) (part 8 2))
                            (list (+ +ipv4-prefix+ (part 4 4)) (part 10 2))))
      (36 (settle-addresses header
                            (list (part 0 16) (part 32 2))
                            (list (part 16 16) (part 34 2))))
      (t (setf (proxy-header-source header) (list "unix:" 0)
               (proxy-header-destination header) (list "unix:" 0))))))

(defun binary-octets-due (header)
  "How many octets of HEADER, of version 2, are still to come, without TLVs.  Decodes it once it is
whole."
  (let ((fill (proxy-header-fill header)))
    (if (< fill +fixed-octets+)
        (- +fixed-octets+ fill)
        (let ((size (address-octets header))
              (rest (integer-of-octets (proxy-header-octets header) 14 16)))
          (check-proxy-header (<= size rest))
          (setf (proxy-header-skip header) (- rest size))
          (when (= fill (+ +fixed-octets+ size))
            (decode-addresses header size))
          (- (+ +fixed-octets+ size) fill)))))

;;; Either

(defun take-proxy-octet (header octet)
  "Takes OCTET, the next of HEADER, before the TLVs."
  (let* ((octets (proxy-header-octets header))
         (fill (proxy-header-fill header))
         (line-p (= (if (zerop fill) octet (aref octets 0)) (aref *proxy-signature-1* 0)))
         (signature (if line-p *proxy-signature-1* *proxy-signature-2*)))
    (setf (aref octets fill) octet
          (proxy-header-fill header) (1+ fill)
          (proxy-header-due header)
          (cond ((< fill (length signature))
                 (check-proxy-header (= octet (aref signature fill)))
                 (- (if line-p +least-line-octets+ +fixed-octets+) (1+ fill)))
                (line-p (line-octets-due header))
                (t (binary-octets-due header))))))

(defun proxy-octets-due (header)
  "How many octets of HEADER, a PROXY-HEADER that has not come whole, are still to come at least, an
integer above 0: a reader of so many reads none behind the header."
  (if (plusp (proxy-header-due header)) (proxy-header-due header) (proxy-header-skip header)))

(defun decode-proxy-header (header octets start end)
  "Decodes OCTETS from START to END as the next ones of HEADER, a PROXY-HEADER.  Returns true when
the header has come whole, else NIL; and the position after the last octet that belongs to it.
Signals PROTOCOL-ERROR if it is malformed (proxy-protocol.txt, section 2)."
  (check-range octets start end)
  (loop until (or (= start end) (zerop (proxy-header-due header)))
        do (take-proxy-octet header (aref octets start))
           (incf start))
  (let ((skipped (if (zerop (proxy-header-due header))
                     (min (- end start) (proxy-header-skip header))
                     0)))
    (decf (proxy-header-skip header) skipped)
    (values (zerop (proxy-octets-due header)) (+ start skipped))))
