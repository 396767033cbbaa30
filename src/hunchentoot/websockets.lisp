(in-package #:hunchentoot-recycling-taskmaster)

;;;; WebSockets (RFC 6455) for Hunchentoot's handlers.  A handler calls UPGRADE-TO-WEBSOCKET, and
;;;; returns; from then on workers call its functions, for one message of a connection after the
;;;; other, and any thread sends.

(defun place-of-authority (authority default)
  "Host and port of AUTHORITY, a string, or the DEFAULT port: EQUAL where two name the same place."
  (multiple-value-bind (host port) (host-and-port authority default)
    (cons (string-downcase host) port)))

(defun same-origin-p (origin request)
  "True when the host and port of ORIGIN, a serialised one (RFC 6454, section 6.2), are those that
REQUEST was sent to.  What stands before the server may have taken TLS off, so that the scheme
counts only where REQUEST came by TLS."
  (let ((end (search "://" origin))
        (host (hunchentoot:host request)))
    (and end host
         (let ((https-p (string-equal "https" (subseq origin 0 end)))
               (tls-p (hunchentoot:ssl-p (hunchentoot:request-acceptor request))))
           (equal (place-of-authority (subseq origin (+ 3 end)) (default-port https-p))
                  (place-of-authority host (default-port (or tls-p https-p))))))))

(defun origin-allowed-p (origins request)
  "True when a page of the origin that REQUEST tells may open a WebSocket; ORIGINS are as
UPGRADE-TO-WEBSOCKET takes them.  Who tells none is no page of a browser (RFC 6455, section 10.2)."
  (let ((origin (hunchentoot:header-in :origin request)))
    (cond ((null origin) t)
          ((eq :any origins) t)
          ((eq :same origins) (same-origin-p origin request))
          ((listp origins) (member origin origins :test #'string-equal))
          (t (funcall origins origin)))))

(defun check-origin (origins request)
  "Answers REQUEST with 403 unless its origin is one of ORIGINS."
  (unless (origin-allowed-p origins request)
    (setf (hunchentoot:return-code*) hunchentoot:+http-forbidden+
          (hunchentoot:content-type*) "text/plain")
    (hunchentoot:abort-request-handler "This origin may not open a WebSocket here.")))

(defun accepted-handshake (request subprotocols)
  "The headers that answer the opening handshake REQUEST, and the subprotocol, of SUBPROTOCOLS, or
NIL.  Answers a request that is none with an error."
  (handler-case
      (multiple-value-bind (accept subprotocol)
          (accept-handshake (hunchentoot:request-method request) (hunchentoot:server-protocol request)
                            (lambda (name) (hunchentoot:header-in name request))
                            subprotocols)
        (values (handshake-headers accept subprotocol) subprotocol))
    (handshake-refused (refusal)
      (setf (hunchentoot:return-code*) (handshake-refused-status refusal)
            (hunchentoot:content-type*) "text/plain")
      (loop for (name . value) in (handshake-refused-headers refusal)
            do (setf (hunchentoot:header-out name) value))
      (hunchentoot:abort-request-handler (handshake-refused-reason refusal)))))

(defun message-caller (on-text on-binary)
  "What a WEBSOCKET calls for a message, where ON-TEXT and ON-BINARY are as UPGRADE-TO-WEBSOCKET
takes them."
  (lambda (socket kind message)
    (let ((function (if (eq :text kind) on-text on-binary)))
      (if function
          (funcall function socket message)
          (close-websocket socket 1003 "Messages of this kind are not understood here.")))))

(defun upgrade-to-websocket (&key on-open on-text on-binary on-close subprotocols (origins :same)
                               message-octets (ping-seconds 30) (idle-seconds 75)
                               (high-water-mark *high-water-mark*))
  "Answers the current request with 101 (Switching Protocols), and makes its connection a WebSocket,
which it returns, and the subprotocol; the handler then returns.  A request that is no opening
handshake, or of a page of another origin, is answered with an error, and the handler does not go
on.

ON-OPEN, a function of the WEBSOCKET, is called when the answer was sent; ON-TEXT, of it and a
string, and ON-BINARY, of it and a vector of octets, for each message, one after the other;
ON-CLOSE, of it, the code of the end and a reason, once at the end: 1005 where the client gave no
code, 1006 where it left without a word; also where ON-OPEN was not called, as the handler failed
after all, or the client left before it had the answer.  All are called by workers, outside of the
context of the request; a message without a function for it ends the WebSocket with code 1003, an
error of one with 1011, and the end of the server with 1001.  What a function takes its time for
holds up no other connection, nor what other threads send to this one, but the messages behind it.
Where the server does not stop gently, or stops amid a message, ON-CLOSE may be called by who stops
it.

SUBPROTOCOLS are strings, in the order of preference.  ORIGINS says of which origins pages may
connect: :SAME, those of the host that they ask; :ANY; a list of strings such as
\"https://example.org\"; or a function of such a string.  A message may have MESSAGE-OCTETS, an
integer, or 1 MiB where that is NIL; a larger one ends the WebSocket with code 1009, and one for
which there is no memory, since messages of other clients have it, with code 1013.  When nothing has
come for PING-SECONDS, a real or NIL, a ping is sent; when nothing has come for IDLE-SECONDS,
likewise, the client counts as gone.  HIGH-WATER-MARK is how many octets may wait for a client that
does not take them.  Signals CANNOT-DEFER where there is no request whose reply is still to be
made."
  (check-deferrable)
  (let ((request hunchentoot:*request*))
    (check-origin origins request)
    (multiple-value-bind (headers subprotocol) (accepted-handshake request subprotocols)
      (let ((socket (make-websocket *exchange* (message-caller on-text on-binary) on-close
                                    :high-water-mark high-water-mark :message-octets message-octets
                                    :ping-seconds ping-seconds :idle-seconds idle-seconds)))
        (settle-switch headers)
        (setf (exchange-upgrade *exchange*) (cons socket on-open))
        (values socket subprotocol)))))

(defun settle-switch (headers)
  "Makes the current reply one with status 101 and HEADERS."
  (setf (hunchentoot:return-code*) hunchentoot:+http-switching-protocols+)
  (drop-header :content-type)
  (loop for (name . value) in headers
        do (setf (hunchentoot:header-out name) value)))

(defun check-switch (exchange condition)
  "Where the handler of EXCHANGE has failed with CONDITION, unless that is NIL, or has changed its
mind, its reply does not switch protocols."
  (when (or condition
            (not (eql hunchentoot:+http-switching-protocols+ (hunchentoot:return-code*))))
    (mapc #'drop-header '(:upgrade :connection :sec-websocket-accept :sec-websocket-protocol))
    (drop-upgrade exchange)))

(defun switch-protocols (exchange http)
  "Makes the connection of EXCHANGE, with HTTP, whose reply was sent, what its handler has said it
was to be.  True if there is anything."
  (let ((upgrade (exchange-upgrade exchange)))
    (when (and upgrade
               (eq :switched (our-side (exchange-protocol exchange)))
               (not (connection-taken-p)))
      (destructuring-bind (socket . on-open) (shiftf (exchange-upgrade exchange) nil)
        (setf (http-suspended-exchange http) socket)
        (count-request (exchange-connection exchange))
        (open-websocket socket http on-open))
      t)))

(defun drop-upgrade (exchange)
  "Ends what the connection of EXCHANGE was to be, and is not: its handler has failed, or its client
has left."
  (let ((upgrade (shiftf (exchange-upgrade exchange) nil)))
    (when upgrade
      (abandon (first upgrade)))))

(defun open-websocket (socket http on-open)
  "Calls ON-OPEN, a function or NIL, of SOCKET, over HTTP: from now on octets are sent to its
client."
  (setf (websocket-begun-p socket) t)
  (when on-open
    (handler-case (call-lending socket (http-io http) (lambda () (funcall on-open socket)))
      (serious-condition (condition)
        (log-handler-error condition nil)
        (close-websocket socket 1011 "The server failed.")))))

;;; In any thread

(defun send-text (socket text &key wait)
  "Sends TEXT, a string, as a message to SOCKET, a WEBSOCKET.  Does not wait, unless WAIT: WAIT,
values and conditions are as in WRITE-OUTGOING."
  (check-type text string)
  (send-frame socket (encode-frame :text text) wait))

(defun send-binary (socket octets &key wait)
  "Sends OCTETS, a vector of octets, as a message to SOCKET, a WEBSOCKET.  WAIT is as in SEND-TEXT."
  (send-frame socket (encode-frame :binary octets) wait))

(defun send-frame (socket frame wait)
  (ecase (put-frame socket frame)
    (:room t)
    (:full
     (or (not (full-p (websocket-shared-queue socket)))
         (and wait (await-room-in-websocket socket wait))))
    (:refused
     (if (and wait (await-room-in-websocket socket wait))
         (send-frame socket frame wait)
         (error 'stream-full)))
    (:over (error 'client-left))))

(defun put-frame (socket frame)
  "Puts FRAME into SOCKET, after its client has taken what it takes now where there was no room, and
has it sent.  Returns what PUT-IN-SHARED-QUEUE does."
  (let ((result (put-in-websocket socket frame)))
    (when (eq :refused result)
      (resume-websocket socket)
      (setf result (put-in-websocket socket frame)))
    (when (member result '(:room :full))
      (resume-websocket socket))
    result))

(defun close-websocket (socket &optional (code 1000) (reason ""))
  "Ends SOCKET, a WEBSOCKET: sends a close frame with CODE, an integer of RFC 6455, section 7.4, and
REASON, a string of which 123 octets go, after what was sent before.  True for the first who does so
while it is open."
  (close-websocket-with socket code reason))

(defmethod subscriber-shared-queue ((socket websocket))
  (websocket-shared-queue socket))

(defmethod put-in-subscriber ((socket websocket) octets)
  (put-in-websocket socket octets))     ; which takes none behind a close frame

(defmethod message-format ((socket websocket))
  :websocket)

(defmethod go-on-with ((socket websocket))
  (resume-websocket socket))
