(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; A WebSocket over a connection, and how any thread sends to it; what is done with what comes is in
;;;; websocket-connection.lisp.
;;;;
;;;; ON-MESSAGE may take long, and what others have for the client is not to wait for that.  So the owner lends the
;;;; right to send meanwhile:
;;;;
;;;;   relay     who sends
;;;;   NIL       the owner of the connection
;;;;   :FREE     whoever has something to be sent, after it has made that :TAKEN
;;;;   :TAKEN    who has made it so, also what others have put into the outbox since
;;;;
;;;; Invariant: what was put into the outbox is seen by who has the right to send, or gets it next: each looks again
;;;; after it has given the right up, and who does not get it has put his octets in before.
;;;;
;;;; A client that does not wait for answers sends many messages at a time, and each send is a call of the system.  So
;;;; answers leave together, while few octets are waiting and the right to send is lent:
;;;;
;;;;   gathering  ON-MESSAGE is called              what was sent before          what it sends
;;;;   :ALL       while more messages are at hand   leaves with what comes next   likewise
;;;;   :BEFORE    for the last one at hand          leaves with what it sends,    leaves at once
;;;;                                                or after it
;;;;   NIL        otherwise                         has left                      leaves at once
;;;;
;;;; ON-MESSAGE may wait for what an answer brings about.  So while something waits to leave with others, a timer is
;;;; pending that sends it.

(defparameter *closing-seconds* 5
  "How many seconds a client has to answer a close frame.")

(defparameter *gathering-seconds* 1/200
  "How long answers wait at most to leave with others.")

(defconstant +most-gathered+ (* 16 1024)
  "How many octets wait at most to leave with others.")

(define-record (websocket (:include continuation)
                          (:constructor %make-websocket
                              (application engine connection outbox decoder on-message on-close
                               ping-milliseconds idle-milliseconds heard))
                          (:copier nil))
  "A WebSocket.  STATE is guarded by the lock; HEARD, PINGED and DECODER are its owner's alone."
  (outbox nil :read-only t
   :documentation "The outbox of WEBSOCKET.")
  (decoder nil :read-only t)
  (on-message nil :read-only t)
  (on-close nil)
  (lock (bt:make-lock "websocket") :read-only t)
  (state :open :type keyword)           ; see the websocket storey's websocket-state.lisp
  (code +abnormal-end+ :type fixnum)    ; of the end, for ON-CLOSE
  (reason "" :type string)
  (ping-milliseconds nil :type (or null fixnum)) ; NIL, too, while no ping may be put between what was sent
  (idle-milliseconds nil :type (or null fixnum) :read-only t)
  (heard 0 :type fixnum)                ; when the client was heard last, in MILLISECONDS
  (pinged nil :type (or null fixnum))   ; when a ping was sent since
  (closing-end nil :type (or null fixnum)) ; by when the client is to send a close frame
  (owner (bt:current-thread))           ; the thread that goes on with it now; at first who answers the handshake
  (begun-p nil
   :documentation "True when the answer to the opening handshake of WEBSOCKET was sent.")
  (relay nil :type (member nil :free :taken))
  (gathering nil :type (member nil :before :all))
  (relief nil :type (member nil :due))) ; a timer is pending that sends what waits

(setf (documentation 'websocket-p 'function)
      "True when the argument is a WebSocket.")

(defun make-websocket (exchange on-message on-close
                       &key (high-water-mark *high-water-mark*) message-octets ping-seconds idle-seconds)
  "A WebSocket over the connection of EXCHANGE, whose opening handshake is about to be answered.  ON-MESSAGE is a
function of the WebSocket, :TEXT or :BINARY, and a string or a vector of octets; ON-CLOSE one of the WebSocket, the code
of the end and its reason; both are called by workers.  HIGH-WATER-MARK is how many octets may wait for the client,
MESSAGE-OCTETS how many a message may have, PING-SECONDS after how many without anything from the client a ping is
sent, and IDLE-SECONDS after how many it counts as gone; NIL for never."
  (%make-websocket (exchange-application exchange) (exchange-engine exchange) (exchange-connection exchange)
                   (make-outbox high-water-mark :engine (exchange-engine exchange))
                   (if message-octets
                       (make-message-decoder :message-octets message-octets)
                       (make-message-decoder))
                   on-message on-close
                   (as-milliseconds ping-seconds) (as-milliseconds idle-seconds) (milliseconds)))

(defmacro with-websocket ((socket) &body body)
  "Evaluates BODY, which is short and waits for nothing, while no other thread touches the state of SOCKET."
  `(uninterruptibly
     (bt:with-lock-held ((websocket-lock ,socket))
       ,@body)))

(defun step-websocket (socket step)
  "Makes STEP happen to SOCKET; returns the state after it.  Under the lock."
  (setf (websocket-state socket) (next-websocket-state (websocket-state socket) step)))

(defun put-in-websocket (socket frame)
  "Has FRAME, octets that nobody changes any more, sent to SOCKET.  Returns what PUT-IN-OUTBOX does."
  (with-websocket (socket)
    (if (sending-p (websocket-state socket))
        (put-in-outbox (websocket-outbox socket) frame)
        :over)))

(defun websocket-wire (socket)
  (link-wire (connection-data (continuation-connection socket))))

(defun owned-websocket-p (socket)
  "True when the current thread is the owner of SOCKET."
  (eq (bt:current-thread) (websocket-owner socket)))

(defun visit-websocket (socket)
  "Has what was put into SOCKET sent: at once, or by its owner, soon."
  (cond ((answers-gather-p socket) (ensure-relief socket))
        ((relay-queued socket))
        ((not (owned-websocket-p socket)) (visit socket))
        ((websocket-begun-p socket) (send-for-websocket socket))))

;;; Answers that leave together

(defun few-queued-p (socket)
  "True when what waits to be sent to SOCKET is so little that more may join it."
  (< (outbox-size (websocket-outbox socket)) +most-gathered+))

(defun answers-gather-p (socket)
  "True when the current thread is in the ON-MESSAGE of SOCKET, and what that sends may leave with what comes next."
  (and (eq :all (websocket-gathering socket))
       (owned-websocket-p socket)
       (few-queued-p socket)))

(defun ensure-relief (socket)
  "Has what waits to be sent to SOCKET sent in *GATHERING-SECONDS*, unless that happens before."
  (when (compare-and-set (websocket-relief socket) nil :due)
    (schedule (continuation-engine socket) *gathering-seconds*
              (lambda ()
                ;; Before it looks: who queues something then, and finds none pending, ensures another one.
                (compare-and-set (websocket-relief socket) :due nil)
                (when (queued-p (websocket-outbox socket))
                  (relay-queued socket))))))

(defun call-gathering (socket gathering function)
  "Calls FUNCTION, without arguments, which calls the ON-MESSAGE of SOCKET, while answers gather as GATHERING says."
  (setf (websocket-gathering socket) gathering)
  (unwind-protect (funcall function)
    (setf (websocket-gathering socket) nil)))

(defun send-for-websocket (socket)
  "Sends what the client of SOCKET takes now.  The caller has the right to send."
  (let ((wire (websocket-wire socket)))
    (handler-case
        (progn
          (when (wire-left wire)
            (send-parts-now wire (wire-left wire)))
          (send-queued (websocket-outbox socket) wire))
      ((or descriptor-broken stream-timeout) ()
        (end-websocket socket)))))      ; its owner will see it

(defun relay-queued (socket)
  "Sends what was put into SOCKET if its owner has lent the right to send.  True when the caller need not care."
  (loop
    (unless (compare-and-set (websocket-relay socket) :free :taken)
      (return (eq :taken (websocket-relay socket))))
    (unwind-protect (uninterruptibly (send-for-websocket socket))
      (compare-and-set (websocket-relay socket) :taken :free))
    (unless (queued-p (websocket-outbox socket))
      (return t))))

(defun lendable-p (wire)
  "True when another thread may send to WIRE, since that does not wait."
  (and (engine-sends-p wire)
       (wire-descriptor (wire-base wire))
       (not (wire-waits-p wire))))

(defun lend-sending (socket)
  "Lends the right to send for SOCKET, whose owner the caller is."
  (compare-and-set (websocket-relay socket) nil :free)
  (when (queued-p (websocket-outbox socket))
    (if (and (websocket-gathering socket) (few-queued-p socket))
        (ensure-relief socket)
        (relay-queued socket))))

(defun take-sending-back (socket)
  "Gives the right to send for SOCKET back to its owner, the caller, who may not have lent it."
  ;; Who has the right makes a call of the system that does not wait.
  (loop until (or (compare-and-set (websocket-relay socket) :free nil)
                  (null (websocket-relay socket)))
        do (bt:thread-yield)))

(defun call-lending (socket wire function)
  "Calls FUNCTION, a program's, in the owner of SOCKET, who lends the right to send over WIRE meanwhile."
  (if (lendable-p wire)
      (unwind-protect (progn (lend-sending socket)
                             (funcall function))
        (take-sending-back socket))
      (funcall function)))

(defun end-websocket (socket)
  "Notes that the TCP connection of SOCKET has ended, or is to."
  (with-websocket (socket) (step-websocket socket :end))
  (end-outbox (websocket-outbox socket)))

(defun close-websocket-with (socket code reason)
  "Sends SOCKET a close frame with CODE and REASON, unless one was sent.  True when it does.  Signals an error where
neither may be in a close frame."
  (let ((frame (encode-close code reason)))
    (when (with-websocket (socket)
            (when (sending-p (websocket-state socket))
              (step-websocket socket :send-close)
              (setf (websocket-closing-end socket) (+ (milliseconds) (as-milliseconds *closing-seconds*))
                    (websocket-code socket) code
                    (websocket-reason socket) reason)
              (append-to-outbox (websocket-outbox socket) frame)
              t))
      (visit-websocket socket)
      t)))

(defun websocket-open-p (socket)
  "True while messages can be sent to SOCKET, as far as is known."
  (and (sending-p (websocket-state socket))
       (not (outbox-over-p (websocket-outbox socket)))))

(defgeneric say-going-away (socket)
  (:documentation "Tells the client of SOCKET if its engine stops.")
  (:method ((socket websocket))
    "Sends a close frame (RFC 6455, section 7.4.1)."
    (unless (running-p (continuation-engine socket))
      (close-websocket-with socket +going-away+ "The server stops."))))

;;; Waiting for the client to take octets

(defparameter *relay-look-seconds* 1/20
  "How often who waits for room looks whether he could send himself, since the owner is busy.")

(defun await-room-in-websocket (socket wait)
  "Waits up to WAIT seconds, a real, or T for no limit, until SOCKET has room or has ended.  True when it has.  In a
handler that has not returned yet nothing was sent, and nobody would take any: NIL at once."
  (let ((end (if (eq t wait) nil (end-after wait))))
    (cond ((not (owned-websocket-p socket)) (await-room-elsewhere socket end))
          ((websocket-begun-p socket) (await-room-as-owner socket end))
          (t nil))))

(defun await-room-elsewhere (socket end)
  (loop
    (let ((left (milliseconds-left end)))
      (cond ((await-room (websocket-outbox socket)
                         (if left (min (/ left 1000) *relay-look-seconds*) *relay-look-seconds*))
             (return t))
            ((eql 0 left) (return nil)))
      (relay-queued socket))))

(defun await-room-as-owner (socket end)
  "Like AWAIT-ROOM, until END, where nobody else would send; without END, up to the write timeout."
  (let ((wire (websocket-wire socket)))
    (loop while (full-p (websocket-outbox socket))
          do (handler-case
                 (if end
                     (unless (await-descriptor (open-descriptor (wire-base wire)) :output :until end)
                       (return nil))
                     (await-peer wire :output))
               ((or descriptor-broken stream-timeout) () (end-websocket socket)))
             (unless (relay-queued socket)
               (send-for-websocket socket))
          finally (return t))))
