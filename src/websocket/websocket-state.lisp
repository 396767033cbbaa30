(in-package #:hunchentoot-recycling-taskmaster.websocket)

;;;; What may still be sent and received, and who closes the TCP connection: RFC 6455, sections
;;;; 5.5.1 and 7.  A connection begins in :OPEN, when 101 (Switching Protocols) was sent.
;;;;
;;;;   state      what has happened                              we send      we read   TCP is closed by
;;;;   :OPEN      nobody has sent close                          anything     yes       nobody
;;;;   :CLOSING   we have sent close, and await the client's     nothing      yes       us, when time is up
;;;;   :CLOSED-BY-CLIENT
;;;;              the client has sent close                      close, once  no        nobody
;;;;   :FAILED    the client has broken a rule                   close, once  no        nobody
;;;;   :CLOSED    close was sent, and none is awaited            nothing      no        us, at once
;;;;   :GONE      the TCP connection has ended                   nothing      no        -
;;;;
;;;;   step             what happens
;;;;   :SEND            a message, a ping or a pong is sent
;;;;   :SEND-CLOSE      a close frame is sent
;;;;   :RECEIVE         a message, a ping or a pong was received
;;;;   :RECEIVE-CLOSE   a close frame was received
;;;;   :FAIL            the decoder has found a failure
;;;;   :END             the TCP connection has ended, whoever has ended it
;;;;
;;;; A server closes the TCP connection first, so that the client does not keep its port in
;;;; TIME_WAIT
;;;; (section 7.1.1).  What the client sends behind a close frame or a failure is not looked at.  Who has
;;;; sent close discards what it then receives, or still takes the messages: both are legal.
;;;;
;;;; What the program is told as code of the end: that of the client's close frame; +NO-CLOSE-CODE+,
;;;; 1005, where that had none; +ABNORMAL-END+, 1006, where the TCP connection ended without one.
;;;; Neither is ever in a frame (section 7.4.1).

(defparameter *websocket-steps*
  '((:open             (:send :open) (:send-close :closing)
                       (:receive :open) (:receive-close :closed-by-client) (:fail :failed) (:end :gone))
    (:closing          (:receive :closing) (:receive-close :closed) (:fail :closed) (:end :gone))
    (:closed-by-client (:send-close :closed) (:end :gone))
    (:failed           (:send-close :closed) (:end :gone))
    (:closed           (:end :gone))
    (:gone             (:end :gone)))
  "A list of (STATE (STEP AFTER) ...).  A step that an entry has not is illegal in its state.")

(define-condition misplaced-step (recycling-error)
  ((step :initarg :step :reader misplaced-step-step)
   (state :initarg :state :reader misplaced-step-state))
  (:report (lambda (condition stream)
             (format stream "~S cannot happen to a WebSocket that is ~S."
                     (misplaced-step-step condition) (misplaced-step-state condition))))
  (:documentation "A defect of whoever reports a step, and not of the client."))

(setf (documentation 'misplaced-step-step 'function)
      "The keyword of the step that MISPLACED-STEP is about, or whatever was taken for one."
      (documentation 'misplaced-step-state 'function)
      "The keyword of the state in which the step of MISPLACED-STEP has no meaning.")

(defun next-websocket-state (state step)
  "The state, a keyword, after STEP, one too, in STATE; the head of websocket-state.lisp has them
all.  Signals MISPLACED-STEP where STEP is illegal in STATE (RFC 6455, sections 5.5.1 and 7.1)."
  (or (second (assoc step (rest (assoc state *websocket-steps*))))
      (error 'misplaced-step :step step :state state)))

(defun sending-p (state)
  "True if messages, pings and pongs may be sent in STATE, a keyword (RFC 6455, section 5.5.1)."
  (eq :open state))

(defun receiving-p (state)
  "True if what comes is to be read in STATE, a keyword; else it is nothing to us (RFC 6455, section
5.5.1)."
  (and (member state '(:open :closing)) t))

(defun close-owed-p (state)
  "True if a close frame is to be sent next in STATE, a keyword: the client has sent one, or has
broken a rule (RFC 6455, sections 5.5.1 and 7.1.7)."
  (and (member state '(:closed-by-client :failed)) t))

(defun over-p (state)
  "True if the TCP connection is to be closed at once in STATE, a keyword, or has ended (RFC 6455,
section 7.1.1)."
  (and (member state '(:closed :gone)) t))
