(in-package #:hunchentoot-recycling-taskmaster.websocket)

;;;; The opening handshake: from a request to 101 (Switching Protocols) or a refusal (RFC 6455,
;;;; section 4.2).
;;;;
;;;; This server supports no extensions, and ignores Sec-WebSocket-Extensions, as section 9.1
;;;; allows.  It does not support permessage-deflate (RFC 7692) either, since no maintained library
;;;; has a decompressor with a limit.
;;;;
;;;; The program decides which origins may connect: a browser sends Origin, but lets any page
;;;; connect
;;;; (section 10.2).

(define-condition handshake-refused (recycling-error)
  ((status :initarg :status :reader handshake-refused-status)
   (reason :initarg :reason :reader handshake-refused-reason)
   (headers :initarg :headers :initform '() :reader handshake-refused-headers))
  (:report (lambda (condition stream)
             (format stream "~D: ~A" (handshake-refused-status condition)
                     (handshake-refused-reason condition))))
  (:documentation "A request cannot open a WebSocket.  The server replies with the status, the
headers and the reason of this condition."))

(setf (documentation 'handshake-refused-status 'function)
      "The status code of the reply to the HANDSHAKE-REFUSED: 400, 405 or 426."
      (documentation 'handshake-refused-reason 'function)
      "The reason of the HANDSHAKE-REFUSED, a sentence for the client."
      (documentation 'handshake-refused-headers 'function)
      "The fields that the reply to the HANDSHAKE-REFUSED needs: an alist from keywords to
strings.")

(defun refuse-handshake (status reason &rest headers)
  (error 'handshake-refused :status status :reason reason :headers headers))

;;; The checks, in the order of section 4.2.1

(defun check-request-line (method protocol)
  "Refuses a request unless it is a GET of HTTP/1.1."
  (unless (eq :get method)
    (refuse-handshake 405 "Only GET opens a WebSocket." '(:allow . "GET")))
  (unless (eq :http/1.1 protocol)
    (refuse-handshake 400 "Only HTTP/1.1 opens a WebSocket.")))

(defun check-no-content (content-length transfer-encoding)
  "Refuses a request with content.  The server might disagree with a proxy, or with a client that
waits for 100 (Continue), about the start of the first frame."
  (when (or transfer-encoding
            (and content-length (find #\0 content-length :test #'char/=)))
    (refuse-handshake 400 "A request that opens a WebSocket must not have content.")))

(defun element-p (word value)
  "True if VALUE, a list in a header field or NIL, has WORD, regardless of case."
  (and value (member word (list-elements value) :test #'string-equal)))

(defun check-upgrade (connection upgrade)
  "Refuses a request whose fields Connection and Upgrade do not ask for a WebSocket."
  (unless (and (element-p "upgrade" connection) (element-p "websocket" upgrade))
    ;; RFC 9110, sections 7.8 and 15.5.22: 426 names the protocol to upgrade to.
    (refuse-handshake 426 "This resource is a WebSocket: Connection and Upgrade must ask for it."
                      '(:upgrade . "websocket") '(:connection . "Upgrade")
                      '(:sec-websocket-version . "13"))))

(defun check-version (version)
  "Refuses a VERSION of the protocol other than 13."
  ;; Section 4.4.
  (unless (equal "13" version)
    (refuse-handshake 426 "This server speaks version 13 of the WebSocket protocol."
                      '(:upgrade . "websocket") '(:connection . "Upgrade")
                      '(:sec-websocket-version . "13"))))

(defun base64-digit-p (char)
  (or (char<= #\A char #\Z) (char<= #\a char #\z) (char<= #\0 char #\9) (find char "+/")))

(defun key-p (key)
  "True if KEY, a string or NIL, is 16 octets in Base64: 22 digits and the padding."
  (and key
       (= 24 (length key))
       (string= "==" key :start2 22)
       (null (position-if-not #'base64-digit-p key :end 22))))

(defun check-key (key)
  (unless (key-p key)
    (refuse-handshake 400 "Sec-WebSocket-Key is not 16 octets in Base64.")))

(defun chosen-subprotocol (offered subprotocols)
  "The first of SUBPROTOCOLS, strings, that is in the field OFFERED; NIL if none is, or if OFFERED
is NIL."
  (let ((names (and offered (list-elements offered))))
    (unless (every #'token-p names)
      (refuse-handshake 400 "Sec-WebSocket-Protocol is not a list of tokens."))
    (find-if (lambda (name) (member name names :test #'string=)) subprotocols)))

;;; The reply

(defun accept-key (key)
  "The value, a string, of Sec-WebSocket-Accept for KEY, the value of Sec-WebSocket-Key, a string
(RFC 6455, section 4.2.2, item 5.4)."
  (let* ((suffix "258EAFA5-E914-47DA-95CA-C5AB0DC85B11")
         (octets (make-octets (+ (length key) (length suffix)))))
    (map-into octets #'char-code key)
    (loop for char across suffix
          for i from (length key)
          do (setf (aref octets i) (char-code char)))
    (cl-base64:usb8-array-to-base64-string (sha-1 octets))))

(defun accept-handshake (method protocol header &optional (subprotocols '()))
  "Checks a request to open a WebSocket.  Returns the value, a string, of Sec-WebSocket-Accept; and
the first of SUBPROTOCOLS, a list of strings in order of preference, that the client offers, or NIL.
METHOD is a keyword such as :GET, and PROTOCOL is a keyword such as :HTTP/1.1.  HEADER is a function
from the name of a header field, a keyword such as :SEC-WEBSOCKET-KEY, to its value, a string or
NIL; the values of a repeated field are joined by commas.  Signals HANDSHAKE-REFUSED if the request
cannot open a WebSocket, or has content (RFC 6455, section 4.2)."
  (flet ((field (name) (funcall header name)))
    (check-request-line method protocol)
    (check-upgrade (field :connection) (field :upgrade))
    (check-version (field :sec-websocket-version))
    (check-key (field :sec-websocket-key))
    (check-no-content (field :content-length) (field :transfer-encoding))
    (let ((subprotocol (chosen-subprotocol (field :sec-websocket-protocol) subprotocols)))
      (values (accept-key (field :sec-websocket-key)) subprotocol))))

(defun handshake-headers (accept subprotocol)
  "The fields of the reply 101 (Switching Protocols) with ACCEPT and SUBPROTOCOL, the values of
ACCEPT-HANDSHAKE: an alist from keywords to strings (RFC 6455, section 4.2.2)."
  (list* '(:upgrade . "websocket")
         '(:connection . "Upgrade")
         (cons :sec-websocket-accept accept)
         (and subprotocol (list (cons :sec-websocket-protocol subprotocol)))))
