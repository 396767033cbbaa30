(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; A WebSocket over a connection, and how any thread sends to it.  websocket-connection.lisp has
;;;; its input.
;;;;
;;;; ON-MESSAGE may take long, and the messages of other threads to the client must not wait for it.
;;;; So the owner lends the send permission meanwhile:
;;;;
;;;;   relay     the sender
;;;;   NIL       the owner of the connection
;;;;   :FREE     any thread that has octets to send, after it has changed RELAY to :TAKEN
;;;;   :TAKEN    the thread that has done so; it also sends octets that others add in the meantime
;;;;
;;;; Invariant: the holder of the send permission, or the next one, sees all octets in the shared
;;;; queue.  Each thread puts its octets in before it asks for the permission, and each holder looks
;;;; again after it has released the permission.

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
  (begun-p nil)
  (relay nil :type (member nil :free :taken))
  ;; The state of a burst of messages; see there.
  (more-p nil)                          ; others have come while the owner handles one
  (withheld-p nil)                      ; the system may hold octets that the owner has sent
  ;; The time of the first message whose answers may be held, in MILLISECONDS.
  (held-since 0 :type fixnum)
  (slow-p nil))                         ; that time was long ago

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
                     (make-shared-queue high-water-mark :engine (exchange-engine exchange))
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

(defun resume-websocket (socket)
  "Has the shared queue of SOCKET sent: at once, or soon by its owner."
  (cond ((relay-queued socket))
        ((not (owned-websocket-p socket)) (resume socket))
        ((websocket-begun-p socket) (send-for-websocket socket))))

(defun send-for-websocket (socket)
  "Sends as much of the shared queue of SOCKET as the client takes now.  The caller has the send
permission."
  (let ((io (websocket-io socket)))
    (handler-case
        (if (owned-websocket-p socket)
            (send-amid-burst socket io)
            (send-queued (websocket-shared-queue socket) io))
      ((or descriptor-broken stream-timeout) ()
        (end-websocket socket)))))      ; its owner will notice

(defun relayed-p (socket)
  "Sends the shared queue of SOCKET if the send permission is free.  True when it was."
  (when-taken (permission-p (compare-and-set (websocket-relay socket) :free :taken))
    (unwind-protect (send-for-websocket socket)
      (compare-and-set (websocket-relay socket) :taken :free))
    t))

(defun relay-queued (socket)
  "Sends the shared queue of SOCKET if its owner has lent the send permission.  True when the queue
is empty, or another thread sends it."
  (loop
    (cond ((relayed-p socket)
           (unless (queued-p (websocket-shared-queue socket))
             (return t)))
          (t
           ;; Read RELAY once: it may become :FREE in the meantime, and then the loop must go on.
           (case (websocket-relay socket)
             (:taken (return t))
             ((nil) (return nil)))))))

(defun lendable-p (io)
  "True when another thread may send to IO, since that does not wait."
  (and (engine-sends-p io)
       (io-descriptor (io-base io))
       (not (io-waits-p io))))

(defun lend-sending (socket)
  "Lends the send permission for SOCKET.  The caller is its owner."
  (compare-and-set (websocket-relay socket) nil :free)
  (when (queued-p (websocket-shared-queue socket))
    (relay-queued socket)))

(defun take-sending-back (socket)
  "Returns the send permission for SOCKET to its owner, the caller, which may not have lent it."
  ;; The holder of the permission is in a system call that does not wait.
  (loop until (or (compare-and-set (websocket-relay socket) :free nil)
                  (null (websocket-relay socket)))
        do (bt:thread-yield)))

(defun call-lending (socket io function)
  "Calls FUNCTION, of a program, in the owner of SOCKET, which lends the send permission for IO
meanwhile."
  (if (lendable-p io)
      (unwind-protect (progn (lend-sending socket)
                             (funcall function))
        (take-sending-back socket))
      (funcall function)))

;;; Bursts of messages
;;;
;;; Answers to messages that have come together are sent together.  While more messages wait, the
;;; system may hold the output of the owner; a send without that flag, by any thread, releases it.
;;; After the last message the owner releases the held octets.  If a handler waits meanwhile, the
;;; system sends them by itself, when earlier octets are acknowledged or after its retransmission
;;; timeout (200 ms and a round trip, or more where that varies).  To keep that rare, nothing is
;;; held after a message that took long, or several that did together.

(defparameter *long-milliseconds* 1
  "How long after the first message whose answer is held more messages may be handled without a
send.")

(defun send-amid-burst (socket io)
  "Like SEND-QUEUED, for the owner of SOCKET during a message."
  (let ((more-p (websocket-more-p socket)))
    (cond (more-p                       ; other threads may add octets after any look at the queue
           (setf (websocket-withheld-p socket) t))
          ((queued-p (websocket-shared-queue socket))
           (setf (websocket-withheld-p socket) nil)))
    (send-queued (websocket-shared-queue socket) io :more-p more-p)))

(defun send-held (socket io)
  "Makes the system send the octets that it holds of the output of SOCKET over IO.  The caller is
the owner."
  (when (shiftf (websocket-withheld-p socket) nil)
    (let ((descriptor (io-descriptor (io-base io))))
      (when descriptor
        (send-held-octets descriptor)))))

(defun call-holding (socket io function)
  "Calls FUNCTION, which handles a message.  If other messages wait behind it, the system may hold
the answers of SOCKET over IO."
  (setf (websocket-more-p socket) (and (< (io-start io) (io-end io))
                                       (not (websocket-slow-p socket))
                                       (lendable-p io)))
  (unwind-protect (funcall function)
    (setf (websocket-more-p socket) nil)))

(defun call-in-burst (socket io function)
  "Like CALL-LENDING, for FUNCTION, which handles a message over IO.  Other messages may have come
behind it."
  (unless (websocket-withheld-p socket)
    (setf (websocket-held-since socket) (milliseconds)))
  ;; Octets of other threads are sent, and not held, when the permission is lent.
  (unless-returned (call-lending socket io (lambda () (call-holding socket io function)))
    (send-held socket io)) ; ending with unread input resets the connection, which drops octets
  (setf (websocket-slow-p socket)
        (< *long-milliseconds* (- (milliseconds) (websocket-held-since socket)))))

(defun end-websocket (socket)
  "Notes that the TCP connection of SOCKET has ended, or will end."
  (with-websocket (socket) (step-websocket socket :end))
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
       (not (shared-queue-over-p (websocket-shared-queue socket)))))

(defgeneric say-going-away (socket)
  (:documentation "Sends the client of SOCKET a close frame if its engine stops.")
  (:method ((socket websocket))
    "Sends a close frame (RFC 6455, section 7.4.1)."
    (unless (running-p (suspended-exchange-engine socket))
      (close-websocket-with socket +going-away+ "The server stops."))))

;;; Waiting for the client to take octets

(defparameter *relay-look-seconds* 1/20
  "How often a thread that waits for room checks whether it can send itself, since the owner is
busy.")

(defun await-room-in-websocket (socket wait)
  "Waits up to WAIT seconds, a real, or T for no limit, until SOCKET has room or has ended.  True
when it does.  Returns NIL at once in a handler that has not returned yet: its octets are not sent
before."
  (let ((end (if (eq t wait) nil (end-after wait))))
    (cond ((not (owned-websocket-p socket)) (await-room-elsewhere socket end))
          ((websocket-begun-p socket) (await-room-as-owner socket end))
          (t nil))))

(defun await-room-elsewhere (socket end)
  "Like AWAIT-ROOM, until END, in a thread that is not the owner of SOCKET."
  (loop
    (let ((left (milliseconds-left end)))
      (cond ((await-room (websocket-shared-queue socket)
                         (if left (min (/ left 1000) *relay-look-seconds*) *relay-look-seconds*))
             (return t))
            ((eql 0 left) (return nil)))
      (relay-queued socket))))

(defun await-room-as-owner (socket end)
  "Like AWAIT-ROOM, until END, in the only thread that would send; without END, up to the write
timeout."
  (let ((io (websocket-io socket)))
    (loop while (full-p (websocket-shared-queue socket))
          do (handler-case
                 (if end
                     (unless (await-descriptor (open-descriptor (io-base io)) :output :until end)
                       (return nil))
                     (await-peer io :output))
               ((or descriptor-broken stream-timeout) () (end-websocket socket)))
             (unless (relay-queued socket)
               (send-for-websocket socket))
          finally (return t))))
