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

(defun body-of (exchange)
  "The content of the request of EXCHANGE, as the stream that the application gets."
  (if (eq :none (head-framing (exchange-head exchange)))
      *empty-body*
      (let* ((content (exchange-content exchange))
             (size (content-size content)))
        (if (and size
                 (<= size *raw-body-memory*)
                 (<= size (content-at-hand content)))
            (whole-body (read-all-content content nil :body-too-large))
            (partial-body content)))))

;;; Failures

(defun client-gone-p (condition exchange body)
  "True when CONDITION tells that the client of EXCHANGE is gone or too slow, while it sends BODY or
takes the response."
  (typecase condition
    ((or descriptor-broken stream-timeout) t)
    (client-left
     (let ((source (client-left-source condition))) ; may belong to another request
       (and source
            (or (eq source (exchange-upgrade exchange))
                (eq source (exchange-deferred-response exchange))))))
    (end-of-file (and (raw-body-source body)
                      (eq (stream-error-stream condition) (raw-body-source body))))))

(defun client-fault-p (condition exchange body)
  "True when CONDITION, signalled while the application handled EXCHANGE with BODY, is the client's
fault and not the application's."
  (or (typep condition 'protocol-error)
      (client-gone-p condition exchange body)))

(defun cut-response (exchange)
  "Ends the connection of EXCHANGE in the middle of the response."
  (note-event exchange :reply-cut)
  (let ((io (http-io (exchange-http exchange))))
    (when (io-open-p io)
      (leave-output-to-engine io))))

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

(defun answer-failure (exchange body condition backtrace)
  "Ends the request of EXCHANGE with BODY after CONDITION, which has BACKTRACE, a string or NIL."
  (cond ((taken-over-p exchange)
         (unless (client-gone-p condition exchange body)
           (fail-program-socket (exchange-upgrade exchange) condition backtrace)))
        ((typep condition 'protocol-error)
         (note-event exchange :request-fault)
         (send-failure exchange
                       (protocol-error-status condition) (protocol-error-reason condition)))
        ((client-gone-p condition exchange body)
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

(defun answer (exchange body)
  "Calls the application for the request of EXCHANGE with BODY, and sends its response."
  (let* ((*answered* exchange)
         (response (funcall (server-app (exchange-application exchange))
                            (environment exchange body))))
    (cond ((functionp response)
           (respond-later exchange body
                          (lambda (responder)
                            (funcall response responder)
                            (take-over-if-listened-to exchange))))
          ((or (taken-over-p exchange) (not (lift-handler-limit exchange))))
          (t
           (end-reading body)
           (check-response response)
           (send-response exchange (settle-options (exchange-head exchange) response))))))

(define-condition debugger-left (recycling-error)
  ()
  (:report "The debugger was left.")
  (:documentation "Signalled when the restart ABORT is chosen for an error of an application."))

(defun call-debugging (function exchange body)
  "Calls FUNCTION, which calls the application for EXCHANGE with BODY.  Errors of the application
enter the debugger in this thread, with a restart ABORT that answers 500."
  (restart-case
      (handler-bind ((error (lambda (condition)
                              (unless (client-fault-p condition exchange body)
                                (invoke-debugger condition)))))
        (funcall function))
    (abort ()
      :report "Answer 500 (Internal Server Error)."
      (error 'debugger-left))))

(defun failure-of (exchange body)
  "Calls ANSWER with EXCHANGE and BODY, under the limit of time of applications.  Returns the
condition that ended the call, or NIL, and its backtrace."
  (flet ((answer-it ()
           (if (server-debug-p (exchange-application exchange))
               (call-debugging (lambda () (answer exchange body)) exchange body)
               (answer exchange body))))
    (declare (dynamic-extent #'answer-it))
    (call-catching (lambda () (call-with-handler-limit exchange #'answer-it))
                   (lambda (condition) (client-fault-p condition exchange body)))))

;;; The request

(defun answer-request (exchange)
  "Answers the request of EXCHANGE, also where the application fails.  NIL where the client is
gone."
  (let ((body *empty-body*) (backtrace nil))
    (unwind-protect
         (let ((failure (handler-case (progn (setf body (body-of exchange))
                                             nil)
                          (protocol-error (condition) condition))))
           (unless failure
             (setf (values failure backtrace) (failure-of exchange body)))
           (unless (deferred-p exchange)
             (end-reading body))
           (or (null failure)
               (handler-case (progn (answer-failure exchange body failure backtrace)
                                    (not (client-gone-p failure exchange body)))
                 ((or descriptor-broken stream-timeout) () nil))))
      (unless (deferred-p exchange)
        (release-body body)))))

(defun release-request (exchange)
  "Counts the request of EXCHANGE, which is over, and releases the memory and files of its content."
  (note-served exchange)
  (unless (eq :none (head-framing (exchange-head exchange)))
    (release-octets (exchange-content exchange)))
  (abandon-body-prefetch (exchange-http exchange)))

(defun conclude-request (exchange)
  "Ends the request of EXCHANGE, whose response was sent or cut.  Returns the connection's outcome,
:PARK or :CLOSE."
  (when (eq :done (our-side (exchange-protocol exchange)))
    (end-content (exchange-application exchange) exchange nil))
  (release-request exchange)
  (if (reusable-p (exchange-protocol exchange)) :park :close))

(defun serve-request (exchange)
  "Serves the request of EXCHANGE, whose head was read.  Returns the connection's outcome."
  (let ((content (take-content (exchange-application exchange) exchange)))
    (unless (eq *no-content* content)
      ;; So the release of the HTTP connection gives the memory back, even if the application ends
      ;; this thread.
      (setf (http-content (exchange-http exchange)) content)))
  (setf (exchange-protocol exchange)
        (state-after-head (exchange-protocol exchange) (exchange-head exchange)))
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
