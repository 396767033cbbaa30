(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; A WebSocket over a connection, and how any thread sends to it; what is done with what comes is
;;;; in websocket-connection.lisp.
;;;;
;;;; ON-MESSAGE may take long, and what others have for the client is not to wait for that.  So the
;;;; owner lends the right to send meanwhile:
;;;;
;;;;   relay     who sends
;;;;   NIL       the owner of the connection
;;;;   :FREE     whoever has something to be sent, after it has made that :TAKEN
;;;;   :TAKEN    who has made it so, also what others have put into the shared send queue since
;;;;
;;;; Invariant: what was put into the shared send queue is seen by who has the right to send, or
;;;; gets it next: each looks again after it has given the right up, and who does not get it has put
;;;; his octets in before.

(defparameter *closing-seconds* 5
  "How many seconds a client has to answer a close frame.")

(define-record (websocket (:include suspended-exchange)
                          (:constructor %make-websocket
                              (application engine connection shared-queue memory decoder on-message on-close
                               ping-milliseconds idle-milliseconds heard))
                          (:copier nil))
  "A WebSocket.  STATE is guarded by the lock; HEARD, PINGED and DECODER are its owner's alone."
  (shared-queue nil :read-only t
   :documentation "The shared send queue of WEBSOCKET.")
  ;; The memory of a message that is unfinished or being handled.
  (memory (make-memory-account) :read-only t)
  (decoder nil :read-only t)
  (on-message nil :read-only t)
  (on-close nil)
  (lock (bt:make-lock "websocket") :read-only t)
  (state :open :type keyword)           ; see the websocket layer's websocket-state.lisp
  (code +abnormal-end+ :type fixnum)    ; of the end, for ON-CLOSE
  (reason "" :type string)
  ;; Also NIL while no ping may interrupt the octets being sent.
  (ping-milliseconds nil :type (or null fixnum))
  (idle-milliseconds nil :type (or null fixnum) :read-only t)
  (heard 0 :type fixnum)                ; when the client was heard last, in MILLISECONDS
  ;; When a ping was sent since; :PUT while it is to leave.
  (pinged nil :type (or null (eql :put) fixnum))
  (closing-end nil :type (or null fixnum)) ; by when the client is to send a close frame
  ;; The thread that serves it now; at first the one that answers the handshake.
  (owner (bt:current-thread))
  (begun-p nil
   :documentation "True when the answer to the opening handshake of WEBSOCKET was sent.")
  (relay nil :type (member nil :free :taken))
  ;; Of a burst of messages; see there.
  (more-p nil)                          ; while the owner handles one, others have come
  (withheld-p nil)                      ; the system may hold octets that the owner has sent
  ;; When the first message whose answers it may hold began, in MILLISECONDS.
  (held-since 0 :type fixnum)
  (slow-p nil))                         ; that was long ago

(setf (documentation 'websocket-p 'function)
      "True when the argument is a WebSocket.")

(defun make-decoder-with-account (account message-octets)
  "A decoder of messages of MESSAGE-OCTETS at most, or NIL for the usual limit, whose memory is that
of ACCOUNT."
  (flet ((reserve (octets whole-p)
           (reserve-for-account account octets (if whole-p 1 *waiting-share*))))
    (if message-octets
        (make-message-decoder :message-octets message-octets :reserve #'reserve)
        (make-message-decoder :reserve #'reserve))))

(defun make-websocket (exchange on-message on-close
                       &key (high-water-mark *high-water-mark*) message-octets ping-seconds idle-seconds)
  "A WebSocket over the connection of EXCHANGE, whose opening handshake is about to be answered.
ON-MESSAGE is a function of the WebSocket, :TEXT or :BINARY, and a string or a vector of octets;
ON-CLOSE one of the WebSocket, the code of the end and its reason; both are called by workers.
HIGH-WATER-MARK is how many octets may wait for the client, MESSAGE-OCTETS how many a message may
have, PING-SECONDS after how many without anything from the client a ping is sent, and IDLE-SECONDS
after how many it counts as gone; NIL for never."
  (let ((memory (make-memory-account)))
    (%make-websocket (exchange-application exchange) (exchange-engine exchange) (exchange-connection exchange)
                     (make-shared-queue high-water-mark :engine (exchange-engine exchange))
                     memory
                     (make-decoder-with-account memory message-octets)
                     on-message on-close
                     (as-milliseconds ping-seconds) (as-milliseconds idle-seconds) (milliseconds))))

(defmacro with-websocket ((socket) &body body)
  "Evaluates BODY, which is short and waits for nothing, while no other thread touches the state of
SOCKET."
  `(with-lock-briefly ((websocket-lock ,socket))
     ,@body))

(defun step-websocket (socket step)
  "Makes STEP happen to SOCKET; returns the state after it.  Under the lock."
  (setf (websocket-state socket) (next-websocket-state (websocket-state socket) step)))

(defun put-in-websocket (socket frame)
  "Has FRAME, octets that nobody changes any more, sent to SOCKET.  Returns what PUT-IN-SHARED-QUEUE
does."
  (with-websocket (socket)
    (if (sending-p (websocket-state socket))
        (put-in-shared-queue (websocket-shared-queue socket) frame)
        :over)))

(defun websocket-io (socket)
  (http-io (connection-data (suspended-exchange-connection socket))))

(defun owned-websocket-p (socket)
  "True when the current thread is the owner of SOCKET."
  (eq (bt:current-thread) (websocket-owner socket)))

(defun resume-websocket (socket)
  "Has what was put into SOCKET sent: at once, or by its owner, soon."
  (cond ((relay-queued socket))
        ((not (owned-websocket-p socket)) (resume socket))
        ((websocket-begun-p socket) (send-for-websocket socket))))

(defun send-for-websocket (socket)
  "Sends what the client of SOCKET takes now.  The caller has the right to send."
  (let ((io (websocket-io socket)))
    (handler-case
        (if (owned-websocket-p socket)
            (send-amid-burst socket io)
            (send-queued (websocket-shared-queue socket) io))
      ((or descriptor-broken stream-timeout) ()
        (end-websocket socket)))))      ; its owner will see it

(defun relayed-p (socket)
  "Sends what was put into SOCKET if the right to send is free.  True when it was."
  (uninterruptibly                      ; who is left by a non-local exit would keep the right
    (when (compare-and-set (websocket-relay socket) :free :taken)
      (unwind-protect (send-for-websocket socket)
        (compare-and-set (websocket-relay socket) :taken :free))
      t)))

(defun relay-queued (socket)
  "Sends what was put into SOCKET if its owner has lent the right to send.  True when the caller
need not care."
  (loop
    (cond ((relayed-p socket)
           (unless (queued-p (websocket-shared-queue socket))
             (return t)))
          (t
           ;; One look: it may become :FREE meanwhile, and who sends then has to have it.
           (case (websocket-relay socket)
             (:taken (return t))
             ((nil) (return nil)))))))

(defun lendable-p (io)
  "True when another thread may send to IO, since that does not wait."
  (and (engine-sends-p io)
       (io-descriptor (io-base io))
       (not (io-waits-p io))))

(defun lend-sending (socket)
  "Lends the right to send for SOCKET, whose owner the caller is."
  (compare-and-set (websocket-relay socket) nil :free)
  (when (queued-p (websocket-shared-queue socket))
    (relay-queued socket)))

(defun take-sending-back (socket)
  "Gives the right to send for SOCKET back to its owner, the caller, who may not have lent it."
  ;; Who has the right makes a call of the system that does not wait.
  (loop until (or (compare-and-set (websocket-relay socket) :free nil)
                  (null (websocket-relay socket)))
        do (bt:thread-yield)))

(defun call-lending (socket io function)
  "Calls FUNCTION, a program's, in the owner of SOCKET, who lends the right to send over IO
meanwhile."
  (if (lendable-p io)
      (unwind-protect (progn (lend-sending socket)
                             (funcall function))
        (take-sending-back socket))
      (funcall function)))

;;; Bursts of messages
;;;
;;; The answers to messages that have come together leave together: while others wait to be handled,
;;; the system may hold what the owner sends, and what is sent without that, by anybody, takes it
;;; along.  When the owner has handled all, he lets the system send what it still has; and where a
;;; handler waits meanwhile, the system does so by itself, when what is on its way is acknowledged,
;;; or else after its retransmission timeout: 200 ms and a round trip, or more where that varies.
;;; So that this is rare, nothing is held after a message that took long, or several that did
;;; together.

(defparameter *long-milliseconds* 1
  "How long after the first message whose answer is held others may be handled while nothing
leaves.")

(defun send-amid-burst (socket io)
  "Like SEND-QUEUED, for the owner of SOCKET, who handles a message."
  (let ((more-p (websocket-more-p socket)))
    (cond (more-p                       ; others may put something in after any look at the queue
           (setf (websocket-withheld-p socket) t))
          ((queued-p (websocket-shared-queue socket))
           (setf (websocket-withheld-p socket) nil)))
    (send-queued (websocket-shared-queue socket) io :more-p more-p)))

(defun send-held (socket io)
  "Has the system send what it holds of what the owner of SOCKET, the caller, has sent over IO."
  (when (shiftf (websocket-withheld-p socket) nil)
    (let ((descriptor (io-descriptor (io-base io))))
      (when descriptor
        (send-held-octets descriptor)))))

(defun call-holding (socket io function)
  "Calls FUNCTION, which handles a message, while the system may hold answers of SOCKET over IO if
others wait behind it."
  (setf (websocket-more-p socket) (and (< (io-start io) (io-end io))
                                       (not (websocket-slow-p socket))
                                       (lendable-p io)))
  (unwind-protect (funcall function)
    (setf (websocket-more-p socket) nil)))

(defun call-in-burst (socket io function)
  "Like CALL-LENDING; FUNCTION handles a message that has come over IO, and others may have come
behind it."
  (unless (websocket-withheld-p socket)
    (setf (websocket-held-since socket) (milliseconds)))
  ;; What others have put in by now is sent as the right to send is lent, and not held.
  (unless-returned (call-lending socket io (lambda () (call-holding socket io function)))
    (send-held socket io))              ; who ends amid input resets the connection, which drops it
  (setf (websocket-slow-p socket)
        (< *long-milliseconds* (- (milliseconds) (websocket-held-since socket)))))

(defun end-websocket (socket)
  "Notes that the TCP connection of SOCKET has ended, or is to."
  (with-websocket (socket) (step-websocket socket :end))
  (end-shared-queue (websocket-shared-queue socket)))

(defun close-websocket-with (socket code reason)
  "Sends SOCKET a close frame with CODE and REASON, unless one was sent.  True when it does.
Signals an error where neither may be in a close frame."
  (let ((frame (encode-close code reason)))
    (when (with-websocket (socket)
            (when (sending-p (websocket-state socket))
              (step-websocket socket :send-close)
              (setf (websocket-closing-end socket) (+ (milliseconds) (as-milliseconds *closing-seconds*))
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
  (:documentation "Tells the client of SOCKET if its engine stops.")
  (:method ((socket websocket))
    "Sends a close frame (RFC 6455, section 7.4.1)."
    (unless (running-p (suspended-exchange-engine socket))
      (close-websocket-with socket +going-away+ "The server stops."))))

;;; Waiting for the client to take octets

(defparameter *relay-look-seconds* 1/20
  "How often who waits for room looks whether he could send himself, since the owner is busy.")

(defun await-room-in-websocket (socket wait)
  "Waits up to WAIT seconds, a real, or T for no limit, until SOCKET has room or has ended.  True
when it has.  In a handler that has not returned yet nothing was sent, and nobody would take any:
NIL at once."
  (let ((end (if (eq t wait) nil (end-after wait))))
    (cond ((not (owned-websocket-p socket)) (await-room-elsewhere socket end))
          ((websocket-begun-p socket) (await-room-as-owner socket end))
          (t nil))))

(defun await-room-elsewhere (socket end)
  (loop
    (let ((left (milliseconds-left end)))
      (cond ((await-room (websocket-shared-queue socket)
                         (if left (min (/ left 1000) *relay-look-seconds*) *relay-look-seconds*))
             (return t))
            ((eql 0 left) (return nil)))
      (relay-queued socket))))

(defun await-room-as-owner (socket end)
  "Like AWAIT-ROOM, until END, where nobody else would send; without END, up to the write timeout."
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
