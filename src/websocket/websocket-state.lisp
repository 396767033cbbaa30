(in-package #:hunchentoot-recycling-taskmaster.websocket)

;;;; The states of a WebSocket: RFC 6455, sections 5.5.1 and 7.  A state tells what each side may
;;;; still send, and whether we close the TCP connection.  The first state is :OPEN, after 101
;;;; (Switching Protocols) was sent.
;;;;
;;;;   state               history                              we send      we read  we close TCP
;;;;   :OPEN               neither side has sent close          anything     yes      no
;;;;   :CLOSING            we sent close, the client did not    nothing      yes      on timeout
;;;;   :CLOSED-BY-CLIENT   the client sent close                close, once  no       no
;;;;   :FAILED             the client broke a rule              close, once  no       no
;;;;   :CLOSED             we sent close, and expect no other   nothing      no       at once
;;;;   :GONE               the TCP connection has ended         nothing      no       -
;;;;
;;;;   step             event
;;;;   :SEND            a message, a ping or a pong is sent
;;;;   :SEND-CLOSE      a close frame is sent
;;;;   :RECEIVE         a message, a ping or a pong was received
;;;;   :RECEIVE-CLOSE   a close frame was received
;;;;   :FAIL            the decoder has found a failure
;;;;   :END             either side has ended the TCP connection
;;;;
;;;; The server closes the TCP connection first, so that the client does not keep its port in
;;;; TIME_WAIT (section 7.1.1).  The server ignores all octets after the client's close frame or
;;;; failure.  After its own close frame, a side may discard messages or still accept them.
;;;;
;;;; The program gets the code of the client's close frame; +NO-CLOSE-CODE+, 1005, if that frame has
;;;; no code; or +ABNORMAL-END+, 1006, if the TCP connection ended without a close frame.  A frame
;;;; never has either of these two codes (section 7.4.1).

(defparameter *websocket-steps*
  '((:open             (:send :open) (:send-close :closing)
                       (:receive :open) (:receive-close :closed-by-client) (:fail :failed)
                       (:end :gone))
    (:closing          (:receive :closing) (:receive-close :closed) (:fail :closed) (:end :gone))
    (:closed-by-client (:send-close :closed) (:end :gone))
    (:failed           (:send-close :closed) (:end :gone))
    (:closed           (:end :gone))
    (:gone             (:end :gone)))
  "A list of (STATE (STEP AFTER) ...).  A step that is not in the entry of a state is illegal in
it.")

(define-condition misplaced-step (recycling-error)
  ((step :initarg :step :reader misplaced-step-step)
   (state :initarg :state :reader misplaced-step-state))
  (:report (lambda (condition stream)
             (format stream "~S cannot happen to a WebSocket that is ~S."
                     (misplaced-step-step condition) (misplaced-step-state condition))))
  (:documentation "The calling code reported a step that is illegal in the state of the WebSocket.
This is a defect of that code, not of the client."))

(defun next-websocket-state (state step)
  "The state, a keyword, after STEP in STATE, keywords that the head of websocket-state.lisp lists.
Signals MISPLACED-STEP if STEP is illegal in STATE (RFC 6455, sections 5.5.1 and 7.1)."
  (or (second (assoc step (rest (assoc state *websocket-steps*))))
      (error 'misplaced-step :step step :state state)))

(defun sending-p (state)
  "True if messages, pings and pongs may be sent in STATE, a keyword (RFC 6455, section 5.5.1)."
  (eq :open state))

(defun receiving-p (state)
  "True if the server still reads frames in STATE, a keyword (RFC 6455, section 5.5.1)."
  (and (member state '(:open :closing)) t))

(defun close-owed-p (state)
  "True if the server has to send a close frame next in STATE, a keyword, since the client has sent
one or has broken a rule (RFC 6455, sections 5.5.1 and 7.1.7)."
  (and (member state '(:closed-by-client :failed)) t))

(defun over-p (state)
  "True if the TCP connection has ended in STATE, a keyword, or the server has to close it at once
(RFC 6455, section 7.1.1)."
  (and (member state '(:closed :gone)) t))
