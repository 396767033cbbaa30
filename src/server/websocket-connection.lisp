(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; A WebSocket over a connection: the protocol is the business of the storey websocket/; here its octets come in and
;;;; go out, without a worker between two messages.
;;;;
;;;;   the owner of the connection finds        and
;;;;   messages                                 calls ON-MESSAGE for each, in their order, and waits for it
;;;;   a ping                                   sends a pong, unless too much is on its way already
;;;;   a close frame                            sends one too, and closes the connection when that has left
;;;;   a failure                                sends a close frame with its code, and closes likewise
;;;;   the end                                  closes the connection
;;;;   nothing for PING-SECONDS                 sends a ping
;;;;   nothing for IDLE-SECONDS                 closes the connection
;;;;   no close frame for *CLOSING-SECONDS*     closes the connection
;;;;   after it has sent one
;;;;
;;;; Input is not read while the client does not take what was sent.  ON-CLOSE is called once.

(defparameter *closing-seconds* 5
  "How many seconds a client has to answer a close frame.")

(define-record (websocket (:include continuation)
                          (:constructor %make-websocket
                              (application engine connection outbox decoder on-message on-close
                               ping-milliseconds idle-milliseconds heard))
                          (:copier nil))
  "A WebSocket.  STATE is guarded by the lock; HEARD, PINGED-P and DECODER are its owner's alone."
  (outbox nil :read-only t
   :documentation "The outbox of WEBSOCKET.")
  (decoder nil :read-only t)
  (on-message nil :read-only t)
  (on-close nil)
  (lock (bt:make-lock "websocket") :read-only t)
  (state :open :type keyword)           ; see the websocket storey's websocket-state.lisp
  (code +abnormal-end+ :type fixnum)    ; of the end, for ON-CLOSE
  (reason "" :type string)
  (ping-milliseconds nil :type (or null fixnum) :read-only t)
  (idle-milliseconds nil :type (or null fixnum) :read-only t)
  (heard 0 :type fixnum)                ; when the client was heard last, in MILLISECONDS
  (pinged-p nil)                        ; a ping was sent since
  (closing-end nil :type (or null fixnum)) ; by when the client is to send a close frame
  (owner nil))                          ; the thread that goes on with it now

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

;;; Out: in any thread

(defun put-in-websocket (socket frame)
  "Has FRAME, octets that nobody changes any more, sent to SOCKET.  Returns what PUT-IN-OUTBOX does."
  (with-websocket (socket)
    (if (sending-p (websocket-state socket))
        (put-in-outbox (websocket-outbox socket) frame)
        :over)))

(defun visit-websocket (socket)
  "Has what was put into SOCKET sent: by its owner, soon, which may be the current thread: then at once."
  (if (eq (bt:current-thread) (websocket-owner socket))
      (handler-case (send-queued (websocket-outbox socket) (link-wire (connection-data (continuation-connection socket))))
        ((or descriptor-broken stream-timeout) () nil)) ; its owner will see it
      (visit socket)))

(defun close-websocket-with (socket code reason)
  "Sends SOCKET a close frame with CODE and REASON, unless one was sent.  True when it does."
  (when (with-websocket (socket)
          (when (sending-p (websocket-state socket))
            (step-websocket socket :send-close)
            (setf (websocket-closing-end socket) (+ (milliseconds) (as-milliseconds *closing-seconds*))
                  (websocket-code socket) code
                  (websocket-reason socket) reason)
            (append-to-outbox (websocket-outbox socket) (encode-close code reason))
            t))
    (visit-websocket socket)
    t))

(defun websocket-open-p (socket)
  "True while messages can be sent to SOCKET, as far as is known."
  (sending-p (websocket-state socket)))

;;; In: its owner

(defmethod continue-over ((socket websocket) link visitor-p)
  (setf (websocket-owner socket) (bt:current-thread))
  (unwind-protect (continue-websocket socket link visitor-p)
    (setf (websocket-owner socket) nil)))

(defun continue-websocket (socket link visitor-p)
  (let ((wire (link-wire link)))
    (unless visitor-p
      (receive-messages socket wire)
      (keep-time socket))
    (cond ((send-queued (websocket-outbox socket) wire)
           :close)
          ((and (over-p (websocket-state socket)) (eq :gone (websocket-state socket)))
           :broken)
          (t
           (unless visitor-p
             (settle-websocket-deadline socket))
           :deferred))))

(defun receive-messages (socket wire)
  "Handles all messages of SOCKET that have come over WIRE."
  (loop while (and (receiving-p (websocket-state socket)) (null (wire-left wire)))
        do (ecase (if (wire-all-read-p wire) :none (fill-input wire))
             (:some
              (setf (websocket-heard socket) (milliseconds)
                    (websocket-pinged-p socket) nil)
              (handle-next-message socket wire))
             (:none (return))
             (:end
              (with-websocket (socket) (step-websocket socket :end))
              (end-outbox (websocket-outbox socket))
              (return)))))

(defun handle-next-message (socket wire)
  "Handles the next event of SOCKET in the input of WIRE, if that is whole."
  (multiple-value-bind (kind end value more)
      (decode-message (websocket-decoder socket) (wire-input wire) (wire-start wire) (wire-end wire))
    (setf (wire-start wire) end)
    (lend-no-buffers wire)              ; what handles it may take long
    (ecase kind
      ((nil :pong))
      (:ping (put-in-websocket socket (encode-frame :pong value)))
      ((:text :binary)
       (send-queued (websocket-outbox socket) wire)
       (call-on-message socket kind value))
      (:close (note-close socket :receive-close value more))
      (:failure (note-close socket :fail value more)))))

(defun call-on-message (socket kind message)
  (when (sending-p (websocket-state socket))
    (handler-case (funcall (websocket-on-message socket) socket kind message)
      (error (condition)
        (log-message (continuation-engine socket) :error "A WebSocket's handler failed: ~A" condition)
        (close-websocket-with socket 1011 "The server failed.")))))

(defun note-close (socket step code reason)
  "Notes STEP, :RECEIVE-CLOSE or :FAIL, with CODE and REASON, of SOCKET, and answers with a close frame if one is owed."
  (with-websocket (socket)
    (when (eq :open (websocket-state socket))
      (setf (websocket-code socket) code
            (websocket-reason socket) reason))
    (step-websocket socket step)
    (when (close-owed-p (websocket-state socket))
      (step-websocket socket :send-close)
      (append-to-outbox (websocket-outbox socket) (encode-close code (if (eq :fail step) reason ""))))
    (when (over-p (websocket-state socket))
      (close-outbox (websocket-outbox socket)))))

;;; Time

(defun keep-time (socket)
  "Does for SOCKET what is due now."
  (let* ((now (milliseconds))
         (silent (- now (websocket-heard socket)))
         (ping (websocket-ping-milliseconds socket))
         (idle (websocket-idle-milliseconds socket))
         (end (websocket-closing-end socket)))
    (cond ((or (and end (>= now end)) (and idle (>= silent idle)))
           (with-websocket (socket) (step-websocket socket :end))
           (end-outbox (websocket-outbox socket)))
          ((and ping (>= silent ping) (not (websocket-pinged-p socket)))
           (setf (websocket-pinged-p socket) t)
           (put-in-websocket socket (encode-frame :ping (make-octets 0)))))))

(defun settle-websocket-deadline (socket)
  "Lets SOCKET be continued when something is due."
  (let* ((heard (websocket-heard socket))
         (ping (websocket-ping-milliseconds socket))
         (idle (websocket-idle-milliseconds socket))
         (next most-positive-fixnum))
    (flet ((note-moment (moment)
             (when moment
               (setf next (min next moment)))))
      (note-moment (websocket-closing-end socket))
      (note-moment (and idle (+ heard idle)))
      (note-moment (and ping (not (websocket-pinged-p socket)) (+ heard ping))))
    (set-deadline-at (continuation-connection socket) :deferred
                     (and (< next most-positive-fixnum) next))))

;;; The end

(defmethod over-at-once-p ((socket websocket))
  (outbox-ended-p (websocket-outbox socket)))

(defmethod abandon ((socket websocket))
  (with-websocket (socket)
    (unless (eq :gone (websocket-state socket))
      (step-websocket socket :end)))
  (end-outbox (websocket-outbox socket))
  (let ((function (with-websocket (socket)
                    (shiftf (websocket-on-close socket) nil))))
    (when function
      (handler-case (funcall function socket (websocket-code socket) (websocket-reason socket))
        (error (condition)
          (log-message (continuation-engine socket) :error
                       "What was to be done for the end of a WebSocket failed: ~A" condition))))))

;;; Where a worker keeps the connection

(defparameter *websocket-look-seconds* 1/20
  "How often a worker that keeps a WebSocket looks whether somebody has something to be sent.")

(defmethod keep-continuation ((socket websocket) link)
  "Reads and sends until SOCKET ends.  :CLOSE when the engine stops before."
  (let ((connection (continuation-connection socket))
        (wire (link-wire link)))
    (unwind-protect
         (loop
           (let ((outcome (continue-after-event link)))
             (unless (eq :deferred outcome)
               (return outcome)))
           (unless (left-sent-p wire)
             (return :broken))
           (unless (serving-p (continuation-engine socket))
             (return :close))
           (unless (input-waiting-p wire)
             (await-input (connection-handle connection) :until (end-after *websocket-look-seconds*))))
      (abandon-continuation link))))
