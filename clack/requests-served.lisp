(in-package #:clack.handler.recycling)

;;;; A request from its head to its response.
;;;;
;;;;   the condition tells that                   and the client gets, if the response has not begun
;;;;   the content is refused (PROTOCOL-ERROR)    the status of the refusal
;;;;   the client is gone or too slow             nothing
;;;;   the application failed (any other)         500; with :DEBUG, the debugger runs first
;;;;
;;;; A response that has begun is cut, so that the client sees that the rest is missing.  If the
;;;; application has taken the connection over (socket.lisp), the connection ends.  An application
;;;; that has a limit of time, and takes longer, was answered for: its response is dropped.

;;; Failures

(defun client-gone-p (condition exchange)
  "True when CONDITION tells that the client of EXCHANGE is gone, or takes the response too slowly."
  (typecase condition
    ((or descriptor-broken stream-timeout) t)
    (client-left
     (let ((source (client-left-source condition))) ; may belong to another request
       (and source
            (or (eq source (exchange-upgrade exchange))
                (eq source (exchange-deferred-response exchange))))))))

(defun client-fault-p (condition exchange)
  "True when CONDITION, signalled while the application handled EXCHANGE, is the client's fault and
not the application's."
  (or (typep condition 'protocol-error)
      (client-gone-p condition exchange)))

(defun cut-response (exchange)
  "Ends the connection of EXCHANGE in the middle of the response."
  (note-event exchange :reply-cut)
  (let ((io (http-io (exchange-http exchange))))
    (when (io-open-p io)
      (push-output io))))

(defun send-failure (exchange status text)
  "Sends STATUS and TEXT as the response to EXCHANGE; cuts a response that has begun."
  (if (eq :idle (our-side (exchange-protocol exchange)))
      (send-text exchange status text)
      (cut-response exchange)))

(defun report-failure (exchange condition backtrace)
  "Logs CONDITION, which the application has signalled for EXCHANGE, with BACKTRACE, and sends 500."
  (let ((*answered* exchange))
    (tell (exchange-application exchange) :error *error-control* condition backtrace))
  (send-failure exchange 500 "Internal Server Error"))

(defun answer-failure (exchange condition backtrace)
  "Ends the request of EXCHANGE after CONDITION, which has BACKTRACE, a string or NIL."
  (cond ((taken-over-p exchange)
         (unless (client-gone-p condition exchange)
           (fail-program-socket (exchange-upgrade exchange) condition backtrace)))
        ((typep condition 'protocol-error)
         (note-event exchange :request-fault)
         (send-failure exchange
                       (protocol-error-status condition) (protocol-error-reason condition)))
        ((client-gone-p condition exchange)
         (note-event exchange :reply-cut))
        (t
         (report-failure exchange condition backtrace))))

;;; The application

(defun settle-options (head response)
  "RESPONSE; but where the request HEAD asks by OPTIONS for the server or its root, and the
application knows nothing there, one that says that the server is alive."
  (if (and (eql 404 (first response)) (options-of-server-p head))
      '(204 () ())
      response))

(defun answer (exchange)
  "Calls the application for the request of EXCHANGE, and sends its response."
  (let* ((*answered* exchange)
         (response (funcall (server-app (exchange-application exchange))
                            (environment exchange))))
    (cond ((functionp response)
           (respond-later exchange
                          (lambda (responder)
                            (funcall response responder)
                            (take-over-if-listened-to exchange))))
          ((or (taken-over-p exchange) (not (lift-handler-limit exchange))))
          (t
           (check-response response)
           (send-response exchange (settle-options (exchange-head exchange) response))))))

(define-condition debugger-left (recycling-error)
  ()
  (:report "The debugger was left.")
  (:documentation "Signalled when the restart ABORT is chosen for an error of an application."))

(defun call-debugging (function exchange)
  "Calls FUNCTION, which calls the application for EXCHANGE.  Errors of the application enter the
debugger in this thread, with a restart ABORT that answers 500."
  (restart-case
      (handler-bind ((error (lambda (condition)
                              (unless (client-fault-p condition exchange)
                                (invoke-debugger condition)))))
        (funcall function))
    (abort ()
      :report "Answer 500 (Internal Server Error)."
      (error 'debugger-left))))

(defun failure-of (exchange)
  "Calls ANSWER with EXCHANGE, under the limit of time of applications.  Returns the condition that
ended the call, or NIL, and its backtrace."
  (flet ((answer-it ()
           (if (server-debug-p (exchange-application exchange))
               (call-debugging (lambda () (answer exchange)) exchange)
               (answer exchange))))
    (declare (dynamic-extent #'answer-it))
    (call-catching (lambda () (call-with-handler-limit exchange #'answer-it))
                   (lambda (condition) (client-fault-p condition exchange)))))

;;; The request

(defun answer-request (exchange)
  "Answers the request of EXCHANGE, also where the application fails.  NIL where the client is
gone."
  (multiple-value-bind (failure backtrace) (failure-of exchange)
    (or (null failure)
        (handler-case (progn (answer-failure exchange failure backtrace)
                             (not (client-gone-p failure exchange)))
          ((or descriptor-broken stream-timeout) () nil)))))

(defun release-request (exchange)
  "Counts the request of EXCHANGE, which is over, and releases the memory and files of its content."
  (note-served exchange)
  (abandon-content (exchange-http exchange)))

(defun conclude-request (exchange)
  "Ends the request of EXCHANGE, whose response was sent or cut.  Returns the connection's outcome,
:PARK or :CLOSE."
  (when (eq :done (our-side (exchange-protocol exchange)))
    (end-content exchange))
  (release-request exchange)
  (if (reusable-p (exchange-protocol exchange)) :park :close))

(defun serve-request (exchange)
  "Serves the request of EXCHANGE, whose head was read.  Returns the connection's outcome."
  (take-content exchange)
  (let ((answered-p (answer-request exchange)))
    (cond ((handler-timed-out-p exchange)
           (settle-takeover exchange)   ; in vain
           (note-event exchange :reply-cut)
           (release-request exchange)
           :close)
          ((deferred-p exchange)
           (settle-takeover exchange)
           :deferred)
          ((not answered-p)
           (release-request exchange)
           :broken)
          ((settle-takeover exchange)
           (release-request exchange)
           :deferred)
          (t
           (conclude-request exchange)))))

(defun outcome-of-request (exchange)
  "Serves the request of EXCHANGE, whose head was read.  If the response comes later and the
connection needs its worker, waits with it.  Returns the connection's outcome."
  (let ((outcome (serve-request exchange)))
    (if (eq :deferred outcome)
        (leave-or-keep exchange)
        outcome)))

(defmethod respond ((server clack-server) exchange)
  (or (and (null (exchange-head exchange))
           (next-request-missing server (connection-usocket (exchange-connection exchange)) exchange
                                 (not (connection-parkable-p (exchange-connection exchange)))))
      (outcome-of-request exchange)))
