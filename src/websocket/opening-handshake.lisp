(in-package #:hunchentoot-recycling-taskmaster.websocket)

;;;; The opening handshake: from a request to 101 (Switching Protocols) or a refusal (RFC 6455,
;;;; section 4.2).
;;;;
;;;; This server supports no extensions, and ignores Sec-WebSocket-Extensions, as section 9.1
;;;; allows.  It does not support permessage-deflate (RFC 7692) either, since no maintained library
;;;; has a decompressor with a limit.
;;;;
;;;; The program decides which origins may connect: a browser sends Origin, but lets any page
;;;; connect (section 10.2).

(define-condition handshake-refused (recycling-error)
  ((status :initarg :status :reader handshake-refused-status
           :documentation "The status code of the reply: 400, 405 or 426.")
   (reason :initarg :reason :reader handshake-refused-reason
           :documentation "A sentence for the client.")
   (headers :initarg :headers :initform '() :reader handshake-refused-headers
            :documentation "The fields that the reply needs, an alist from keywords to strings."))
  (:report (lambda (condition stream)
             (format stream "~D: ~A" (handshake-refused-status condition)
                     (handshake-refused-reason condition))))
  (:documentation "A request cannot open a WebSocket.  The server replies with the status, the
headers and the reason of this condition."))

;;; SHA-1 (FIPS 180-4, section 6.1), for Sec-WebSocket-Accept only.  There, it shows that a server
;;; speaks WebSocket; it protects no secret.

(defun rotated (word count)
  "WORD, of 32 bits, rotated to the left by COUNT bits."
  (logior (ldb (byte 32 0) (ash word count)) (ash word (- count 32))))

(defun digest-after (digest block)
  "The five words of DIGEST, a list, after BLOCK, an integer of 512 bits (section 6.1.2)."
  (let ((words (make-array 80)))
    (dotimes (i 80)
      (setf (aref words i)
            (if (< i 16)
                (ldb (byte 32 (* 32 (- 15 i))) block)
                (rotated (logxor (aref words (- i 3)) (aref words (- i 8))
                                 (aref words (- i 14)) (aref words (- i 16)))
                         1))))
    (destructuring-bind (a b c d e) digest
      (loop for word across words
            for round from 0
            ;; The functions and constants of sections 4.1.1 and 4.2.1.
            for mixed = (cond ((< round 20) (+ #x5A827999 (logxor d (logand b (logxor c d)))))
                              ((< round 40) (+ #x6ED9EBA1 (logxor b c d)))
                              ((< round 60)
                               (+ #x8F1BBCDC (logior (logand b c) (logand d (logior b c)))))
                              (t (+ #xCA62C1D6 (logxor b c d))))
            do (psetf a (ldb (byte 32 0) (+ (rotated a 5) mixed e word))
                      b a
                      c (rotated b 30)
                      d c
                      e d))
      (mapcar (lambda (old new) (ldb (byte 32 0) (+ old new))) digest (list a b c d e)))))

(defun sha-1 (octets)
  "The digest of OCTETS, a vector of 20 octets."
  (let* ((size (* 8 (length octets)))
         (blocks (ceiling (+ size 65) 512))
         (bits (reduce (lambda (bits octet) (+ (ash bits 8) octet)) octets))
         ;; OCTETS, a one bit, zeros, and the number of bits in 64 bits (section 5.1.1).
         (padded (+ (ash (1+ (* 2 bits)) (- (* 512 blocks) size 1)) size))
         (digest '(#x67452301 #xEFCDAB89 #x98BADCFE #x10325476 #xC3D2E1F0)))
    (loop for position downfrom (* 512 (1- blocks)) to 0 by 512
          do (setf digest (digest-after digest (ldb (byte 512 position) padded))))
    (coerce (loop for word in digest
                  append (loop for position from 24 downto 0 by 8
                               collect (ldb (byte 8 position) word)))
            'octets)))

;;; The handshake

(defun accept-key (key)
  "The value, a string, of Sec-WebSocket-Accept for KEY, the value of Sec-WebSocket-Key, a string
(RFC 6455, section 4.2.2, item 5.4)."
  (cl-base64:usb8-array-to-base64-string
   (sha-1 (map 'octets #'char-code
               (concatenate 'string key "258EAFA5-E914-47DA-95CA-C5AB0DC85B11")))))

(defun accept-handshake (method protocol header &optional (subprotocols '()))
  "Checks a request to open a WebSocket.  Returns the value, a string, of Sec-WebSocket-Accept; and
the first of SUBPROTOCOLS, a list of strings in order of preference, that the client offers, or NIL.
METHOD is a keyword such as :GET, and PROTOCOL is a keyword such as :HTTP/1.1.  HEADER is a function
from the name of a header field, a keyword such as :SEC-WEBSOCKET-KEY, to its value, a string or
NIL; the values of a repeated field are joined by commas.  Signals HANDSHAKE-REFUSED if the request
cannot open a WebSocket, or has content (RFC 6455, section 4.2)."
  (labels ((refuse (status reason &rest headers)
             (error 'handshake-refused :status status :reason reason :headers headers))
           (refuse-upgrade (reason)
             ;; RFC 9110, sections 7.8 and 15.5.22: 426 names the protocol to upgrade to.
             (refuse 426 reason '(:upgrade . "websocket") '(:connection . "Upgrade")
                     '(:sec-websocket-version . "13")))
           (field (name)
             (funcall header name))
           (elements (name)
             (remove "" (list-elements (or (field name) "")) :test #'string=)))
    ;; In the order of section 4.2.1.
    (unless (eq :get method)
      (refuse 405 "Only GET opens a WebSocket." '(:allow . "GET")))
    (unless (eq :http/1.1 protocol)
      (refuse 400 "Only HTTP/1.1 opens a WebSocket."))
    (unless (and (member "upgrade" (elements :connection) :test #'string-equal)
                 (member "websocket" (elements :upgrade) :test #'string-equal))
      (refuse-upgrade "This resource is a WebSocket: Connection and Upgrade must ask for it."))
    (unless (equal "13" (field :sec-websocket-version)) ; section 4.4
      (refuse-upgrade "This server speaks version 13 of the WebSocket protocol."))
    (let ((key (field :sec-websocket-key))) ; 22 digits and the padding
      (unless (and key
                   (= 24 (length key))
                   (string= "==" key :start2 22)
                   (every (lambda (char) (or (digit-char-p char 36) (find char "+/")))
                          (subseq key 0 22)))
        (refuse 400 "Sec-WebSocket-Key is not 16 octets in Base64.")))
    ;; With content the server might disagree with a proxy, or with a client that waits for 100
    ;; (Continue), about the start of the first frame.
    (when (or (field :transfer-encoding)
              (and (field :content-length) (find #\0 (field :content-length) :test #'char/=)))
      (refuse 400 "A request that opens a WebSocket must not have content."))
    (let ((names (elements :sec-websocket-protocol)))
      (unless (every #'token-p names)
        (refuse 400 "Sec-WebSocket-Protocol is not a list of tokens."))
      (values (accept-key (field :sec-websocket-key))
              (find-if (lambda (name) (member name names :test #'string=)) subprotocols)))))

(defun handshake-headers (accept subprotocol)
  "The fields of the reply 101 (Switching Protocols) with ACCEPT and SUBPROTOCOL, the values of
ACCEPT-HANDSHAKE: an alist from keywords to strings (RFC 6455, section 4.2.2)."
  (list* '(:upgrade . "websocket")
         '(:connection . "Upgrade")
         (cons :sec-websocket-accept accept)
         (and subprotocol (list (cons :sec-websocket-protocol subprotocol)))))
