(in-package #:hunchentoot-recycling-taskmaster.websocket)

;;;; From a request to its answer, 101 or a refusal: RFC 6455, section 4.2.
;;;;
;;;; Extensions are not spoken.  Whatever a client offers in Sec-WebSocket-Extensions is ignored, as
;;;; section 9.1 lets a server do, permessage-deflate (RFC 7692) too: there is no library for it
;;;; whose decompressor has a limit, and is kept.
;;;;
;;;; Which origins may connect is the program's to say: browsers send Origin, and let any page
;;;; connect (section 10.2).

(define-condition handshake-refused (recycling-error)
  ((status :initarg :status :reader handshake-refused-status)
   (reason :initarg :reason :reader handshake-refused-reason)
   (headers :initarg :headers :initform '() :reader handshake-refused-headers))
  (:report (lambda (condition stream)
             (format stream "~D: ~A" (handshake-refused-status condition)
                     (handshake-refused-reason condition))))
  (:documentation "A request does not open a WebSocket: answer with status, headers and reason."))

(setf (documentation 'handshake-refused-status 'function)
      "The status to answer the HANDSHAKE-REFUSED with: 400, 405 or 426."
      (documentation 'handshake-refused-reason 'function)
      "Why the request of the HANDSHAKE-REFUSED opens no WebSocket, a sentence for the client."
      (documentation 'handshake-refused-headers 'function)
      "The fields that the answer to the HANDSHAKE-REFUSED needs: an alist from keywords to
strings.")

(defun refuse-handshake (status reason &rest headers)
  (error 'handshake-refused :status status :reason reason :headers headers))

;;; The checks, in the order of section 4.2.1

(defun check-request-line (method protocol)
  "Refuses other requests than GET of HTTP/1.1."
  (unless (eq :get method)
    (refuse-handshake 405 "A WebSocket is opened by GET." '(:allow . "GET")))
  (unless (eq :http/1.1 protocol)
    (refuse-handshake 400 "A WebSocket is opened by HTTP/1.1.")))

(defun check-no-content (content-length transfer-encoding)
  "Refuses a request with content: a proxy, or a client that waits for 100 (Continue), and the
server would disagree where the first frame begins."
  (when (or transfer-encoding
            (and content-length (find #\0 content-length :test #'char/=)))
    (refuse-handshake 400 "A request that opens a WebSocket has no content.")))

(defun element-p (word value)
  "True if VALUE, a list in a header field or NIL, has WORD in any case."
  (and value (member word (list-elements value) :test #'string-equal)))

(defun check-upgrade (connection upgrade)
  "Refuses a request whose fields Connection and Upgrade do not ask for a WebSocket."
  (unless (and (element-p "upgrade" connection) (element-p "websocket" upgrade))
    ;; RFC 9110, sections 7.8 and 15.5.22: 426 names the protocol to upgrade to.
    (refuse-handshake 426 "Here a WebSocket is opened: Connection and Upgrade must ask for it."
                      '(:upgrade . "websocket") '(:connection . "Upgrade")
                      '(:sec-websocket-version . "13"))))

(defun check-version (version)
  "Refuses a VERSION of the protocol that is not that of the RFC."
  ;; Section 4.4.
  (unless (equal "13" version)
    (refuse-handshake 426 "Version 13 of the WebSocket protocol is spoken here."
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
  "The first of SUBPROTOCOLS, strings, that the field OFFERED, or NIL, has, or NIL."
  (let ((names (and offered (list-elements offered))))
    (unless (every #'token-p names)
      (refuse-handshake 400 "Sec-WebSocket-Protocol is not a list of tokens."))
    (find-if (lambda (name) (member name names :test #'string=)) subprotocols)))

;;; The answer

(defun accept-key (key)
  "What a server answers to KEY, a Sec-WebSocket-Key, in Sec-WebSocket-Accept: a string (RFC 6455,
section 4.2.2, item 5.4)."
  (let* ((suffix "258EAFA5-E914-47DA-95CA-C5AB0DC85B11")
         (octets (make-octets (+ (length key) (length suffix)))))
    (map-into octets #'char-code key)
    (loop for char across suffix
          for i from (length key)
          do (setf (aref octets i) (char-code char)))
    (cl-base64:usb8-array-to-base64-string (sha-1 octets))))

(defun accept-handshake (method protocol header &optional (subprotocols '()))
  "The Sec-WebSocket-Accept that answers a request, a string; second, the first of SUBPROTOCOLS,
strings in the order of preference, that the client speaks too, or NIL (RFC 6455, section 4.2).
METHOD is a keyword such as :GET, PROTOCOL one such as :HTTP/1.1, and HEADER a function from the
name of a header field, a keyword such as :SEC-WEBSOCKET-KEY, to its value, a string or NIL; values
of a repeated field are joined by commas.  Signals HANDSHAKE-REFUSED where the request opens no
WebSocket: also one with content, which no client of the protocol sends."
  (flet ((field (name) (funcall header name)))
    (check-request-line method protocol)
    (check-upgrade (field :connection) (field :upgrade))
    (check-version (field :sec-websocket-version))
    (check-key (field :sec-websocket-key))
    (check-no-content (field :content-length) (field :transfer-encoding))
    (let ((subprotocol (chosen-subprotocol (field :sec-websocket-protocol) subprotocols)))
      (values (accept-key (field :sec-websocket-key)) subprotocol))))

(defun handshake-headers (accept subprotocol)
  "The fields of the answer 101 (Switching Protocols) with ACCEPT and SUBPROTOCOL, the values of
ACCEPT-HANDSHAKE: an alist from keywords to strings."
  (list* '(:upgrade . "websocket")
         '(:connection . "Upgrade")
         (cons :sec-websocket-accept accept)
         (and subprotocol (list (cons :sec-websocket-protocol subprotocol)))))
