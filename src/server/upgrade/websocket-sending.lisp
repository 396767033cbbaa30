(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; A WebSocket over a connection, and how any thread sends to it.  websocket-connection.lisp has
;;;; its input.

(defparameter *closing-seconds* 5
  "How many seconds a client has to answer a close frame.")

(defstruct (websocket (:include suspended-exchange)
                      (:constructor %make-websocket
                          (application engine connection shared-queue memory decoder
                           on-message on-close ping-milliseconds idle-milliseconds heard
                           &optional request))
                      (:copier nil))
  "A WebSocket.  The lock guards STATE; only the owner uses HEARD, PINGED and DECODER."
  (request nil :read-only t)            ; its REQUEST-WORDS and client
  ;; The shared send queue of WEBSOCKET.
  (shared-queue nil :read-only t)
  ;; The memory of a message that is incomplete or being handled.
  (memory (make-memory-account) :read-only t)
  (decoder nil :read-only t)
  (on-message nil :read-only t)
  (on-close nil)
  (lock (bt:make-lock "websocket") :read-only t)
  (state :open :type keyword)           ; see websocket-state.lisp of the layer websocket
  (code +abnormal-end+ :type fixnum)    ; the code of the end, for ON-CLOSE
  (reason "" :type string)
  ;; NIL also while a ping would interrupt a frame that is being sent.
  (ping-milliseconds nil :type (or null fixnum))
  (idle-milliseconds nil :type (or null fixnum) :read-only t)
  (heard 0 :type fixnum)                ; when octets came last, in MILLISECONDS
  ;; The time of a ping since then; :PUT while it is in the queue.
  (pinged nil :type (or null (eql :put) fixnum))
  (closing-end nil :type (or null fixnum)) ; the deadline for the close frame of the client
  ;; The thread that serves it now; at first the one that answers the handshake.
  (owner (bt:current-thread))
  ;; True when the answer to the opening handshake of WEBSOCKET was sent.
  (begun-p nil))

(setf (documentation 'websocket-p 'function)
      "True when the argument is a WebSocket.")

(defun make-decoder-with-account (account message-octets)
  "A decoder of messages of at most MESSAGE-OCTETS, or NIL for the default limit, which reserves its
memory from ACCOUNT."
  (flet ((reserve (octets whole-p)
           (reserve-for-account account octets (if whole-p 1 *waiting-share*))))
    (if message-octets
        (make-message-decoder :message-octets message-octets :reserve #'reserve)
        (make-message-decoder :reserve #'reserve))))

(defun words-of-upgrade (exchange)
  "The request and the client of EXCHANGE, a string for messages."
  (format nil "~A from ~A" (exchange-words exchange) (http-address (exchange-http exchange))))

(defun make-websocket (exchange on-message on-close
                       &key (high-water-mark *high-water-mark*) message-octets
                         ping-seconds idle-seconds)
  "A WebSocket over the connection of EXCHANGE, whose opening handshake is about to be answered.
ON-MESSAGE is a function of the WebSocket, :TEXT or :BINARY, and a string or a vector of octets.
ON-CLOSE is a function of the WebSocket, the code of the end and its reason.  Workers call both.
HIGH-WATER-MARK is how many octets may wait for the client; MESSAGE-OCTETS is how many a message may
have.  After PING-SECONDS without input a ping is sent, and after IDLE-SECONDS the client counts as
gone; NIL for never."
  (let ((memory (make-memory-account)))
    (%make-websocket (exchange-application exchange)
                     (exchange-engine exchange)
                     (exchange-connection exchange)
                     (queue-of-exchange exchange high-water-mark nil)
                     memory
                     (make-decoder-with-account memory message-octets)
                     on-message on-close
                     (as-milliseconds ping-seconds) (as-milliseconds idle-seconds) (milliseconds)
                     (words-of-upgrade exchange))))

(defmacro with-websocket ((socket) &body body)
  "Evaluates BODY, which is short and does not wait, while no other thread uses the state of
SOCKET."
  `(with-lock-briefly ((websocket-lock ,socket))
     ,@body))

(defun step-websocket (socket step)
  "Applies STEP to the state of SOCKET, and returns the new state.  The caller holds the lock."
  (setf (websocket-state socket) (next-websocket-state (websocket-state socket) step)))

(defun put-in-websocket (socket frame)
  "Puts FRAME, octets that must not change any more, into the shared queue of SOCKET.  Returns the
same as PUT-IN-SHARED-QUEUE."
  (with-websocket (socket)
    (if (sending-p (websocket-state socket))
        (put-in-shared-queue (websocket-shared-queue socket) frame)
        :over)))

(defun websocket-io (socket)
  "The buffered connection of SOCKET."
  (http-io (connection-data (suspended-exchange-connection socket))))

(defun owned-websocket-p (socket)
  "True when the current thread is the owner of SOCKET."
  (eq (bt:current-thread) (websocket-owner socket)))

(defun begin-sending (socket io)
  "Lets any thread send to SOCKET, over IO, from now on."
  (begin-shared-queue (websocket-shared-queue socket) io))

(defun resume-websocket (socket)
  "Has the owner of SOCKET send what only that can send, and look at the state of SOCKET."
  (cond ((not (owned-websocket-p socket)) (resume socket))
        ((websocket-begun-p socket) (send-for-websocket socket))))

(defun send-for-websocket (socket)
  "Sends as much of the shared queue of SOCKET as the client takes now.  The caller is its owner."
  (handler-case (send-queued (websocket-shared-queue socket) (websocket-io socket))
    ((or descriptor-broken stream-timeout) ()
      (end-websocket socket))))         ; its owner will notice

(defun end-websocket (socket)
  "Notes that the TCP connection of SOCKET has ended, or will end."
  (with-websocket (socket) (step-websocket socket :end))
  (when (shared-queue-begun-p (websocket-shared-queue socket))
    (end-queue (shared-queue-queue (websocket-shared-queue socket))))
  (end-shared-queue (websocket-shared-queue socket)))

(defun close-websocket-with (socket code reason)
  "Sends SOCKET a close frame with CODE and REASON, unless one was sent.  True when it does.
Signals an error where either must not be in a close frame."
  (let ((frame (encode-close code reason)))
    (when (with-websocket (socket)
            (when (sending-p (websocket-state socket))
              (step-websocket socket :send-close)
              (setf (websocket-closing-end socket)
                    (+ (milliseconds) (as-milliseconds *closing-seconds*))
                    (websocket-code socket) code
                    (websocket-reason socket) reason)
              (put-in-shared-queue (websocket-shared-queue socket) frame :however-full)
              t))
      (resume-websocket socket)
      t)))

(defun websocket-open-p (socket)
  "True while messages can be sent to SOCKET, as far as is known."
  (and (sending-p (websocket-state socket))
       (not (shared-queue-shut-p (websocket-shared-queue socket)))))

(defgeneric say-going-away (socket)
  (:documentation "Sends the client of SOCKET a close frame if its engine stops.")
  (:method ((socket websocket))
    "Sends a close frame (RFC 6455, section 7.4.1)."
    (unless (running-p (suspended-exchange-engine socket))
      (close-websocket-with socket +going-away+ "The server stops."))))

;;; Waiting for the client to take octets

(defun await-room-in-websocket (socket wait)
  "Waits up to WAIT seconds, a real, or T for no limit, until SOCKET has room or has ended.  True
when it does.  Returns NIL at once in a handler that has not returned yet: its octets are not sent
before."
  (let ((end (if (eq t wait) nil (end-after wait))))
    (cond ((not (owned-websocket-p socket))
           (await-room (websocket-shared-queue socket) (if (eq t wait) nil wait)))
          ((websocket-begun-p socket) (await-room-as-owner socket end))
          (t nil))))

(defun await-room-as-owner (socket end)
  "Like AWAIT-ROOM, until END; without END, up to the write timeout.  All other workers may wait as
well, so the caller, which is the owner, sends."
  (let ((io (websocket-io socket)))
    (loop while (full-p (websocket-shared-queue socket))
          do (handler-case
                 (if end
                     (unless (await-descriptor (open-descriptor (io-base io)) :output :until end)
                       (return nil))
                     (await-peer io :output))
               ((or descriptor-broken stream-timeout) () (end-websocket socket)))
             (send-for-websocket socket)
          finally (return t))))
