(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; A WebSocket over a connection.  The layer websocket/ has the protocol; this file moves its
;;;; octets in and out, without a worker between two messages.  Any thread sends.
;;;;
;;;;   the owner of the connection finds        action
;;;;   messages                                 call ON-MESSAGE for each, in their order, and wait
;;;;   a ping                                   send a pong, unless too much waits to be sent
;;;;   a close frame                            answer with one, and close when that was sent
;;;;   a failure                                send a close frame with its code, and close likewise
;;;;   the end                                  close the connection
;;;;   nothing for PING-SECONDS                 send a ping, once no octets wait to be sent
;;;;   nothing for IDLE-SECONDS                 close the connection, unless a ping is still to be
;;;;                                            sent, or was sent just now
;;;;   no close frame for *CLOSING-SECONDS*     close the connection
;;;;   after it has sent one
;;;;   its engine stops                         send a close frame with code 1001
;;;;
;;;; Input is not read while the client does not take the output.  ON-CLOSE is called once.

(defparameter *closing-seconds* 3
  "How many seconds a client has to answer a close frame.")

(defstruct (websocket (:include suspended-exchange)
                      (:constructor %make-websocket)
                      (:copier nil))
  "A WebSocket.  The lock guards STATE, DUE and PINGED-P; only the owner uses DECODER."
  (request nil :read-only t)            ; its REQUEST-WORDS and client
  ;; The shared send queue of WEBSOCKET.
  (shared-queue nil)
  (reserved 0 :type index)              ; memory for a message that is incomplete or being handled
  (decoder nil)
  (on-message nil)                      ; while it is NIL, nothing is read
  (on-close nil)
  (state :open :type keyword)           ; see websocket-frames.lisp of the layer websocket
  (code +abnormal-end+ :type fixnum)    ; the code of the end, for ON-CLOSE
  (reason "" :type string)
  (ping-milliseconds nil :type (or null fixnum) :read-only t)
  (idle-milliseconds nil :type (or null fixnum) :read-only t)
  ;; The moment of the next ping, or of the end if PINGED-P, or there are no pings; NIL for never.
  (due nil :type (or null fixnum))
  (pinged-p nil))                       ; a ping was sent since octets came last

(setf (documentation 'websocket-p 'function)
      "True when the argument is a WebSocket.")

(defun make-websocket (exchange on-message on-close
                       &key (high-water-mark *high-water-mark*) message-octets
                         ping-seconds idle-seconds
                         (constructor #'%make-websocket))
  "A WebSocket over the connection of EXCHANGE, whose opening handshake is about to be answered.
ON-MESSAGE is a function of the WebSocket, :TEXT or :BINARY, and a string or a vector of octets.
ON-CLOSE is a function of the WebSocket, the code of the end and its reason.  Workers call both.
HIGH-WATER-MARK is how many octets may wait for the client; MESSAGE-OCTETS is how many a message may
have, or NIL.  After PING-SECONDS without input a ping is sent, and after IDLE-SECONDS the client
counts as gone; NIL for never."
  (let ((socket (funcall constructor
                         :application (exchange-application exchange)
                         :engine (exchange-engine exchange)
                         :connection (exchange-connection exchange)
                         :on-message on-message :on-close on-close
                         :ping-milliseconds (and ping-seconds
                                                 (not (and idle-seconds
                                                           (<= idle-seconds ping-seconds)))
                                                 (as-milliseconds ping-seconds))
                         :idle-milliseconds (as-milliseconds idle-seconds)
                         :request
                         (format nil "~A from ~A" (exchange-words exchange)
                                 (http-address (exchange-http exchange))))))
    (note-heard socket)
    (setf (websocket-shared-queue socket)
          (make-queue #'make-shared-queue socket high-water-mark :plain nil))
    (setf (websocket-decoder socket)
          (make-message-decoder
           :message-octets (or message-octets (* 1024 1024))
           :reserve (lambda (octets whole-p)
                      (and (change-reservation (websocket-reserved socket)
                                               (+ octets (websocket-reserved socket))
                                               :share (if whole-p 1 *waiting-share*))
                           ;; A vector that grows to twice its size is copied.
                           (make-room-in-heap (* 2 octets))))))
    socket))

(defun step-websocket (socket step)
  "Applies STEP to the state of SOCKET; ends its output when that is over.  The caller holds the
lock."
  (setf (websocket-state socket) (next-websocket-state (websocket-state socket) step))
  (when (over-p (websocket-state socket))
    (close-shared-queue (websocket-shared-queue socket))))

(defun note-heard (socket)
  "Notes that octets have come for SOCKET, unless it is closing."
  (with-lock-briefly ((websocket-lock socket))
    (when (sending-p (websocket-state socket))
      (let ((most (or (websocket-ping-milliseconds socket) (websocket-idle-milliseconds socket))))
        (setf (websocket-pinged-p socket) nil
              (websocket-due socket) (and most (+ (milliseconds) most)))))))

(defun websocket-open-p (socket)
  "True while messages can be sent to SOCKET, as far as is known."
  (sending-p (websocket-state socket)))

;;; From any thread

(defun put-in-websocket (socket frame)
  "Puts FRAME, octets that must not change any more, into the shared queue of SOCKET.  Returns the
same as PUT-IN-SHARED-QUEUE."
  (with-lock-briefly ((websocket-lock socket))
    (if (sending-p (websocket-state socket))
        (put-in-shared-queue (websocket-shared-queue socket) frame)
        :over)))

(defun put-close (socket frame)
  "Puts FRAME, a close frame, into the queue of SOCKET, and notes that it was sent.  The caller
holds the lock."
  (put-in-shared-queue (websocket-shared-queue socket) frame :however-full)
  (step-websocket socket :send-close))

(defun note-code (socket code reason)
  "Notes CODE and REASON of a close frame of either side.  From now on the client has
*CLOSING-SECONDS* to end SOCKET.  The caller holds the lock."
  (setf (websocket-code socket) code
        (websocket-reason socket) reason
        (websocket-pinged-p socket) t
        (websocket-due socket) (end-after *closing-seconds*)))

(defun resume-websocket (socket)
  "Has the owner of SOCKET send what only that can send, and look at the state of SOCKET."
  (have-sent (websocket-shared-queue socket)))

(defun end-websocket (socket)
  "Notes that the TCP connection of SOCKET has ended, or will end."
  (with-lock-briefly ((websocket-lock socket)) (step-websocket socket :end))
  (end-shared-queue (websocket-shared-queue socket)))

(defun close-websocket (socket &key (code 1000) (reason ""))
  "Ends SOCKET, a WEBSOCKET, with a close frame behind earlier messages.  CODE is an integer of RFC
6455, section 7.4.  REASON is a string, of which the first 123 octets are sent.  True for the first
call, while SOCKET is open."
  (check-type socket websocket)
  (let ((frame (encode-close code reason)))
    (when (with-lock-briefly ((websocket-lock socket))
            (when (sending-p (websocket-state socket))
              (put-close socket frame)
              (note-code socket code reason)
              t))
      (resume-websocket socket)
      t)))

(defun say-going-away (socket)
  "Sends the client of SOCKET a close frame (RFC 6455, section 7.4.1) if its engine stops."
  (unless (running-p (suspended-exchange-engine socket))
    (close-websocket socket :code +going-away+ :reason "The server stops.")))

;;; The owner of the connection

(defmethod continue-over ((socket websocket) http)
  (say-going-away socket)
  (let* ((io (http-io http))
         (shared-queue (websocket-shared-queue socket))
         (now (milliseconds))  ; before reading: later octets are read before their deadline
         (more-p (receive-messages socket io))
         (idle (websocket-idle-milliseconds socket))
         (ping (websocket-ping-milliseconds socket)))
    ;; While octets are unsent, the write timeout applies instead.  So a ping may be late: then the
    ;; client has as much time to answer it as others.
    (when (and (websocket-due socket)
               (>= now (websocket-due socket))
               (progn (send-queued shared-queue io) ; if nobody else has
                      (null (io-unsent io))))
      (cond ((or (null ping)
                 (websocket-pinged-p socket)
                 (eq :over (put-in-websocket socket (encode-frame :ping (make-octets 0)))))
             (end-websocket socket))
            (t
             (setf (websocket-pinged-p socket) t
                   (websocket-due socket) (and idle (+ (milliseconds) (- idle ping)))))))
    (cond ((eq :gone (websocket-state socket)) :broken)
          ((send-queued shared-queue io) :close)
          ((and more-p (null (io-unsent io))) :again)
          (t
           (set-deadline-at (suspended-exchange-connection socket) :deferred
                            (and (null (io-unsent io)) (websocket-due socket)))
           :deferred))))

(defconstant +input-turn+ 64
  "After so many messages of a WebSocket, its owner serves other connections that are ready.")

(defun receive-messages (socket io)
  "Handles the messages of SOCKET that have come over IO.  True when its turn is over although more
may have come."
  (dotimes (turn +input-turn+ t)
    (unless (and (reads-on-p socket) (null (io-unsent io)))
      (return nil))
    (let ((new-p (= (io-start io) (io-end io))))
      (ecase (if (and new-p
                      (io-drained-p io)
                      ;; It may have come with the last octets, without its own event.
                      (not (peer-left-p socket)))
                 :none
                 (fill-input io))
        (:some
         (when new-p
           (note-heard socket))
         (multiple-value-bind (kind end value more)
             (decode-message (websocket-decoder socket) (io-input io) (io-start io) (io-end io))
           (setf (io-start io) end)
           (lend-no-buffers io)         ; the program may take long
           (unwind-protect (when kind   ; it is whole
                             (hand-over socket kind value more))
             (when (member kind '(:text :binary))
               (change-reservation (websocket-reserved socket) 0)))))
        (:none (return nil))
        (:end                           ; a hard stop may have made it
         (say-going-away socket)
         (end-websocket socket)
         (return nil))))))

(defun reads-on-p (suspended-exchange)
  "True when SUSPENDED-EXCHANGE takes input."
  (and (websocket-p suspended-exchange)
       (receiving-p (websocket-state suspended-exchange))
       (websocket-on-message suspended-exchange)
       (not (shared-queue-shut-p (websocket-shared-queue suspended-exchange)))))

(defgeneric hand-over (socket kind value more)
  (:documentation "Handles what has come for SOCKET: KIND, VALUE and MORE as DECODE-MESSAGE returns
them.")
  (:method ((socket websocket) kind value more)
    (ecase kind
      (:ping (put-in-websocket socket (encode-frame :pong value)))
      (:pong)
      ((:text :binary)
       (when (sending-p (websocket-state socket))
         (call-for-websocket socket (websocket-on-message socket) socket kind value)))
      (:close (end-messages socket value more ""))
      (:failure (end-messages socket value more more)))))

(defun end-messages (socket code reason answer)
  "Notes that nothing comes for SOCKET behind a close frame or failure with CODE and REASON; a close
frame that is owed has ANSWER."
  (with-lock-briefly ((websocket-lock socket))
    (note-code socket code reason)      ; of the first that was received (section 7.1.5)
    (step-websocket socket :receive-close)
    (when (close-owed-p (websocket-state socket))
      (put-close socket (encode-close code answer)))))

(defun call-for-websocket (socket function &rest arguments)
  "Calls FUNCTION, of a program, with ARGUMENTS.  A failure ends SOCKET, but not one because the
client of SOCKET has left: the program is told of that."
  (multiple-value-bind (condition backtrace)
      (call-catching (lambda () (apply function arguments)))
    (unless (or (null condition)
                (and (typep condition 'client-left) (eq socket (client-left-source condition))))
      (fail-websocket socket condition backtrace))))

(defun fail-websocket (socket condition backtrace)
  "Ends SOCKET because a function of the program has failed with CONDITION, which has BACKTRACE, a
string or NIL."
  (log-message (suspended-exchange-engine socket) :error *error-control*
               (message-text "The WebSocket of ~A failed: ~A"
                             (list (websocket-request socket) condition) #'report-text)
               backtrace
               condition)               ; not in the text; its type counts for the throttle
  (count-failure (suspended-exchange-engine socket))
  (close-websocket socket :code 1011 :reason "The server failed."))

;;; The end

(defmethod abandon ((socket websocket))
  (setf (websocket-owner socket) (bt:current-thread))
  (let ((io (http-io (connection-data (suspended-exchange-connection socket)))))
    (when (and (shared-queue-begun-p (websocket-shared-queue socket))
               (io-open-p io)
               (null (io-unsent io)))   ; or others would have to be sent before
      (say-going-away socket)))
  (end-websocket socket)
  ;; A program may keep SOCKET for ever.
  (end-decoding (websocket-decoder socket))
  (change-reservation (websocket-reserved socket) 0)
  (let ((function (with-lock-briefly ((websocket-lock socket))
                    (shiftf (websocket-on-close socket) nil))))
    (when function
      (call-for-websocket socket function
                          socket (websocket-code socket) (websocket-reason socket)))))
