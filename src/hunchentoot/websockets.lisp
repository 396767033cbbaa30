(in-package #:hunchentoot-recycling-taskmaster)

;;;; WebSockets (RFC 6455) for Hunchentoot's handlers.  A handler calls UPGRADE-TO-WEBSOCKET and
;;;; returns.  Then workers call the program's functions, for one message of a connection after the
;;;; other, and any thread may send.

(defun same-origin-p (origin request)
  "True when the host and port of ORIGIN, a serialised one (RFC 6454, section 6.2), are those that
REQUEST was sent to.  The scheme does not count, since a proxy may have ended TLS."
  (let ((end (search "://" origin)))
    (flet ((place (authority)
             (multiple-value-list
              (host-and-port authority (default-port (string-equal "https" origin :end2 end))))))
      (and end
           (hunchentoot:host request)
           (equalp (place (subseq origin (+ 3 end))) (place (hunchentoot:host request)))))))

(defun check-origin (origins request)
  "Answers REQUEST with 403 unless a page of its origin may open a WebSocket; ORIGINS are as
UPGRADE-TO-WEBSOCKET takes them.  A request without an origin does not come from a page in a browser
(RFC 6455, section 10.2), and may."
  (let ((origin (hunchentoot:header-in :origin request)))
    (unless (or (null origin)
                (case origins
                  (:any t)
                  (:same (same-origin-p origin request))
                  (t (if (listp origins)
                         (member origin origins :test #'string-equal)
                         (funcall origins origin)))))
      (setf (hunchentoot:return-code*) hunchentoot:+http-forbidden+
            (hunchentoot:content-type*) "text/plain")
      (hunchentoot:abort-request-handler "This origin may not open a WebSocket here."))))

(defun upgrade-to-websocket (&key on-open on-text on-binary on-close subprotocols (origins :same)
                               message-octets (ping-seconds 30) (idle-seconds 75)
                               (high-water-mark *high-water-mark*))
  "Answers the current request with 101 (Switching Protocols), and makes its connection a WebSocket.
Returns a WEBSOCKET and the selected subprotocol, a string or NIL; the handler then returns.  A
request that is no opening handshake, or comes from a page of another origin, is answered with an
error, and the call does not return.

Workers call these functions, one after the other for each WebSocket, outside of the context of the
request:

  ON-OPEN    with the WEBSOCKET, when the answer was sent
  ON-TEXT    with the WEBSOCKET and a string, for each text message
  ON-BINARY  with the WEBSOCKET and a vector of octets, for each binary message
  ON-CLOSE   with the WEBSOCKET, the code of the end and a reason, once at the end.  The code is
             1005 where the client gave none, 1006 where it left without a close frame, also before
             ON-OPEN was called: when the handler failed after all, or the client did not wait for
             the answer.  When the server stops in the middle of a message, or stops at once, the
             stopping thread may make this call

A message without a function for it ends the WebSocket with code 1003, an error in a function with
1011, and a stop of the server with 1001.  A slow function delays only further messages of the same
WebSocket.

SUBPROTOCOLS are strings, in the order of preference.  ORIGINS says which pages may connect: :SAME,
those of the host that they ask; :ANY; a list of origins, strings such as \"https://example.org\";
or a function of an origin.  MESSAGE-OCTETS is how many octets a message may have, an integer, or
NIL for 1 MiB; a larger one ends the WebSocket with code 1009, and one for which memory is scarce
with code 1013.  After PING-SECONDS of silence, a real or NIL, the server sends a ping; after
IDLE-SECONDS of silence, a real or NIL, the client counts as gone.  HIGH-WATER-MARK is how many
octets may wait for a client that does not take them.  Signals CANNOT-DEFER where there is no
request, or where its reply has begun or was deferred."
  (check-deferrable)
  (let ((request hunchentoot:*request*))
    (check-origin origins request)
    (multiple-value-bind (accept subprotocol)
        (handler-case (accept-handshake (hunchentoot:request-method request)
                                        (hunchentoot:server-protocol request)
                                        (lambda (name) (hunchentoot:header-in name request))
                                        subprotocols)
          (handshake-refused (refusal)
            (setf (hunchentoot:return-code*) (handshake-refused-status refusal)
                  (hunchentoot:content-type*) "text/plain")
            (loop for (name . value) in (handshake-refused-headers refusal)
                  do (setf (hunchentoot:header-out name) value))
            (hunchentoot:abort-request-handler (handshake-refused-reason refusal))))
      (let ((socket (make-websocket
                     *exchange*
                     (lambda (socket kind message)
                       (let ((function (if (eq :text kind) on-text on-binary)))
                         (if function
                             (funcall function socket message)
                             (close-websocket
                              socket :code 1003
                                     :reason "Messages of this kind are not understood here."))))
                     on-close
                     :high-water-mark high-water-mark :message-octets message-octets
                     :ping-seconds ping-seconds :idle-seconds idle-seconds)))
        (setf (hunchentoot:return-code*) hunchentoot:+http-switching-protocols+)
        (drop-header :content-type)
        (loop for (name . value) in (handshake-headers accept subprotocol)
              do (setf (hunchentoot:header-out name) value))
        (setf (exchange-upgrade *exchange*) (cons socket on-open))
        (values socket subprotocol)))))

(defun switch-protocols (exchange http)
  "If the handler of EXCHANGE has upgraded its connection, HTTP, and the reply was sent, opens the
WebSocket, whose octets are sent from now on, and returns true."
  (destructuring-bind (&optional socket . on-open) (exchange-upgrade exchange)
    (when (and socket
               (eq :switched (exchange-output exchange))
               *close-hunchentoot-stream*)
      ;; In this order: one of them ends the socket if the thread is destroyed in between.
      (setf (http-suspended-exchange http) socket
            (exchange-upgrade exchange) nil)
      (note-served exchange)
      (begin-shared-queue (websocket-shared-queue socket) (http-io http))
      (when on-open
        (call-for-websocket socket on-open socket))
      t)))

(defun drop-upgrade (exchange)
  "Ends the upgrade of EXCHANGE, if there is one, since its handler has failed or its client has
left."
  (let ((upgrade (exchange-upgrade exchange)))
    (when upgrade
      (abandon (first upgrade))
      (setf (exchange-upgrade exchange) nil))))

;;; In any thread

(defun send-text (socket text &key wait)
  "Sends TEXT, a string, as a message to SOCKET, a WEBSOCKET.  Does not wait for the client unless
WAIT says so; WAIT, values and conditions are as in WRITE-OUTGOING.  Either side may end a
WebSocket, so this signals CLIENT-LEFT also after CLOSE-WEBSOCKET."
  (check-type text string)
  (send-frame socket (encode-frame :text text) wait))

(defun send-binary (socket octets &key wait)
  "Sends OCTETS, a vector of octets, as a message to SOCKET, a WEBSOCKET.  WAIT is as in SEND-TEXT."
  (send-frame socket (encode-frame :binary octets) wait))

(defun send-frame (socket frame wait)
  "Has FRAME sent to SOCKET; WAIT, values and conditions are as in WRITE-OUTGOING."
  (check-type socket websocket)
  (write-waiting (websocket-shared-queue socket) wait
                 (lambda () (put-in-websocket socket frame))))
