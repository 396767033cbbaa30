(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; A WebSocket over a connection.  The layer websocket/ has the protocol; this file moves its
;;;; octets in and out, without a worker between two messages.
;;;;
;;;;   the owner of the connection finds        action
;;;;   messages                                 call ON-MESSAGE for each, in their order, and wait
;;;;   a ping                                   send a pong, unless too much waits to be sent
;;;;   a close frame                            answer with one, and close when that was sent
;;;;   a failure                                send a close frame with its code, and close likewise
;;;;   the end                                  close the connection
;;;;   nothing for PING-SECONDS                 send a ping
;;;;   nothing for IDLE-SECONDS                 close the connection, unless a ping is still to be
;;;;                                            sent, or was sent just now
;;;;   no close frame for *CLOSING-SECONDS*     close the connection
;;;;   after it has sent one
;;;;   its engine stops                         send a close frame with code 1001
;;;;
;;;; Input is not read while the client does not take the output.  ON-CLOSE is called once.

(defmethod continue-over ((socket websocket) http resuming-p)
  (setf (websocket-owner socket) (bt:current-thread)
        (websocket-begun-p socket) t)
  (unwind-protect (continue-websocket socket (http-io http) resuming-p)
    (setf (websocket-owner socket) nil)))

(defun continue-websocket (socket io resuming-p)
  (say-going-away socket)
  (let* ((now (milliseconds)) ; before reading: later octets are read before their deadline
         (more-p (and (not resuming-p)
                      (prog1 (receive-messages socket io)
                        (keep-time socket now))))
         (ended-p (send-queued (websocket-shared-queue socket) io)))
    (note-ping-sent socket io)
    (cond (ended-p :close)
          ((eq :gone (websocket-state socket)) :broken)
          ((and more-p (null (io-unsent io))) :again)
          (t
           (settle-websocket-deadline socket io)
           :deferred))))

(defconstant +input-turn+ 64
  "After so many messages, or buffers of input, of a WebSocket, its owner serves other connections
that are ready.")

(defun receive-messages (socket io)
  "Handles the messages of SOCKET that have come over IO.  True when its turn is over although more
may have come."
  (let ((turns +input-turn+))
    (loop while (and (reads-on-p socket) (null (io-unsent io)))
          do (when (minusp (decf turns))
               (return t))
             (let ((new-p (= (io-start io) (io-end io))))
               (when new-p
                 (send-for-websocket socket))
               (ecase (if (nothing-new-p socket io) :none (fill-input io))
                 (:some
                  (when new-p
                    (setf (websocket-heard socket) (milliseconds)
                          (websocket-pinged socket) nil))
                  (handle-input socket io))
                 (:none (return nil))
                 (:end
                  (say-going-away socket)
                  (note-end-of-input socket)
                  (return nil)))))))

(defgeneric reads-on-p (socket)
  (:documentation "True when input for SOCKET is to be read.")
  (:method ((socket websocket))
    (receiving-p (websocket-state socket))))

(defgeneric note-end-of-input (socket)
  (:documentation "Notes that the client of SOCKET will send no more.")
  (:method ((socket websocket))
    (end-websocket socket)))

(defun nothing-new-p (socket io)
  "True when all input of SOCKET over IO was read, so that an event will announce the next.  The
client's end may have come with the last octets, without an event of its own."
  (and (io-all-read-p io)
       (not (peer-left-p socket))))

(defgeneric handle-input (socket io)
  (:documentation "Handles the next part of the input of IO for SOCKET."))

(defmethod handle-input ((socket websocket) io)
  "Handles the next event, if that is whole."
  (multiple-value-bind (kind end value more)
      (decode-message (websocket-decoder socket) (io-input io) (io-start io) (io-end io))
    (setf (io-start io) end)
    (lend-no-buffers io)                ; the handler may take long
    (ecase kind
      ((nil :pong))
      (:ping (put-in-websocket socket (encode-frame :pong value)))
      ((:text :binary)
       (unwind-protect (call-on-message socket kind value)
         (reduce-account (websocket-memory socket) 0)))
      (:close (note-close socket :receive-close value more))
      (:failure (note-close socket :fail value more)))))

(defun call-on-message (socket kind message)
  (when (sending-p (websocket-state socket))
    (call-for-websocket socket (if (eq :text kind) "ON-TEXT" "ON-BINARY")
                        (lambda ()
                          (funcall (websocket-on-message socket) socket kind message)))))

(defun call-for-websocket (socket callback function)
  "Calls FUNCTION, which calls the function of a program that it knows as CALLBACK, a string.  A
failure is logged, and ends SOCKET."
  (multiple-value-bind (condition backtrace) (call-catching function)
    (when condition
      (log-callback-failure socket callback condition backtrace)
      (close-websocket-with socket 1011 "The server failed."))))

(defun log-callback-failure (socket callback condition backtrace)
  "Logs CONDITION, with BACKTRACE, of a call of CALLBACK, a string, for SOCKET."
  (log-message (suspended-exchange-engine socket) :error *error-control*
               (message-text "~A of ~A failed: ~A"
                             (list callback (websocket-request socket) condition) #'report-text)
               backtrace
               condition))              ; not in the text; its type counts for the throttle

(defun note-close (socket step code reason)
  "Applies STEP, :RECEIVE-CLOSE or :FAIL, with CODE and REASON, to SOCKET, and answers with a close
frame if one is owed."
  (reduce-account (websocket-memory socket) 0)
  (with-websocket (socket)
    (when (eq :open (websocket-state socket))
      (setf (websocket-code socket) code
            (websocket-reason socket) reason))
    (step-websocket socket step)
    (when (close-owed-p (websocket-state socket))
      (step-websocket socket :send-close)
      (put-in-shared-queue (websocket-shared-queue socket)
                           (encode-close code (if (eq :fail step) reason ""))
                           :however-full))
    (when (over-p (websocket-state socket))
      (close-shared-queue (websocket-shared-queue socket)))))

;;; Time
;;;
;;; A client whose ping is late, since too many octets waited or its worker was late, does not count
;;; as gone.  The ping is sent first, and then the client has as much time as others.

(defun ping-moment (socket)
  "The time of the next ping to SOCKET, in MILLISECONDS; NIL for never."
  (let ((ping (websocket-ping-milliseconds socket)))
    (and ping
         (null (websocket-pinged socket))
         (sending-p (websocket-state socket))
         (+ (websocket-heard socket) ping))))

(defun idle-moment (socket)
  "The time at which the client of SOCKET counts as gone, in MILLISECONDS; NIL for never."
  (let ((ping (websocket-ping-milliseconds socket))
        (idle (websocket-idle-milliseconds socket))
        (heard (websocket-heard socket))
        (pinged (websocket-pinged socket)))
    (cond ((null idle) nil)
          ((or (null ping) (<= idle ping)) (+ heard idle))
          ((integerp pinged) (max (+ heard idle) (+ pinged (- idle ping))))
          (t nil))))

(defun end-moment (socket)
  "The time at which SOCKET is to be closed, in MILLISECONDS; NIL for never."
  (earlier (websocket-closing-end socket) (idle-moment socket)))

(defun keep-time (socket now)
  "Closes or pings SOCKET if that was due at NOW, in MILLISECONDS.  The input that had come by then
was read."
  (flet ((due-p (moment) (and moment (>= now moment))))
    (cond ((due-p (end-moment socket))
           (end-websocket socket))
          ((and (due-p (ping-moment socket))
                (member (put-in-websocket socket (encode-frame :ping (make-octets 0)))
                        '(:room :full)))
           (setf (websocket-pinged socket) :put)))))

(defun note-ping-sent (socket io)
  "Records the time when a ping in the queue of SOCKET was sent over IO."
  (when (and (eq :put (websocket-pinged socket))
             (null (io-unsent io)))
    (setf (websocket-pinged socket) (milliseconds))))

(defun settle-websocket-deadline (socket io)
  "Has SOCKET continued when its next moment comes.  While octets are unsent, the write timeout
applies instead."
  (set-deadline-at (suspended-exchange-connection socket) :deferred
                   (and (null (io-unsent io))
                        (earlier (end-moment socket) (ping-moment socket)))))

;;; The end

(defmethod abandon ((socket websocket))
  (when (websocket-begun-p socket)
    (say-farewell socket))
  (end-websocket socket)
  (drop-incomplete-message socket)
  (let ((function (with-websocket (socket)
                    (shiftf (websocket-on-close socket) nil))))
    (when function
      (call-for-websocket socket "ON-CLOSE"
                          (lambda ()
                            (funcall function socket
                                     (websocket-code socket) (websocket-reason socket)))))))

(defgeneric drop-incomplete-message (socket)
  (:documentation "Drops what has come of a message of SOCKET, which the caller owns and ends, and
releases its memory.  A program may keep SOCKET for ever.")
  (:method ((socket websocket))
    (end-decoding (websocket-decoder socket))
    (close-account (websocket-memory socket))))

(defun say-farewell (socket)
  "Sends the client of SOCKET, whose connection the caller owns and closes next, a close frame if
its engine stops, unless other octets would have to be sent before."
  (setf (websocket-owner socket) (bt:current-thread))
  (let ((io (websocket-io socket)))
    (when (and (io-open-p io)
               (null (io-unsent io)))
      (say-going-away socket))))

;;; Where a worker keeps the connection

(defparameter *websocket-look-seconds* 1/20
  "How often a worker that keeps a WebSocket checks for octets to send.")

(defun wait-a-little ()
  "Waits for *WEBSOCKET-LOOK-SECONDS*."
  (let ((lock (bt:make-lock "nobody's")))
    (wait-until (constantly nil) (bt:make-condition-variable) lock *websocket-look-seconds* nil)))

(defmethod keep-suspended-exchange ((socket websocket) http)
  "Reads and sends until SOCKET ends.  :CLOSE when the engine stops before."
  (let ((connection (suspended-exchange-connection socket))
        (io (http-io http)))
    (unwind-protect-whole
        (loop
          (let ((outcome (continue-after-event http)))
            (unless (member outcome '(:deferred :again))
              (return outcome)))
          (unless (send-rest io)
            (return :broken))
          (unless (serving-p (suspended-exchange-engine socket))
            (return :close))
          (cond ((not (reads-on-p socket))
                 (wait-a-little))       ; its input stays in the system
                ((and (not (input-waiting-p io))
                      (await-input (connection-handle connection)
                                   :until (end-after *websocket-look-seconds*)))
                 (note-socket-ready (io-transport io)))))
      (abandon-suspended-exchange http))))
