(in-package #:clack.handler.recycling)

;;;; A request from its head to its response.
;;;;
;;;;   what is signalled                                   the client gets, if the response has not begun
;;;;   because its content is refused (PROTOCOL-ERROR)     the refusal's status
;;;;   because it is gone, or takes too long               nothing
;;;;   anything else                                       500; with :DEBUG, first the debugger
;;;;
;;;; Where the response has begun it is cut, so that the client sees that the rest is missing.
;;;; Where the application has taken the connection over (socket.lisp), that ends.

(defun body-of (exchange)
  "The content of the request of EXCHANGE as an application gets it."
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
  "True when CONDITION tells that the client of EXCHANGE is gone, or takes too long: amid BODY, or
amid the response."
  (typecase condition
    ((or descriptor-broken stream-timeout) t)
    (program-socket-over
     (let ((socket (program-socket-over-socket condition))) ; it may be another request's
       (and socket
            (eq socket (exchange-upgrade exchange)))))
    (client-left (client-left-within-p condition))
    (end-of-file (and (raw-body-source body)
                      (eq (stream-error-stream condition) (raw-body-source body))))))

(defun client-fault-p (condition exchange body)
  "True when CONDITION is no failure of the application, which was called with BODY for EXCHANGE."
  (or (typep condition 'protocol-error)
      (client-gone-p condition exchange body)))

(defun cut-response (exchange)
  "Ends the connection of EXCHANGE, whose response has begun, without the end of that."
  (note-event exchange :reply-cut)
  (let ((io (http-io (exchange-http exchange))))
    (when (io-open-p io)
      (leave-output-to-engine io))))

(defun send-failure (exchange status text)
  "Sends STATUS and TEXT, unless a response has begun."
  (if (eq :idle (our-side (exchange-protocol exchange)))
      (send-text exchange status text)
      (cut-response exchange)))

(defun report-failure (exchange condition)
  "Tells of CONDITION, which the application has signalled for EXCHANGE, and the client that it
failed."
  (tell (exchange-application exchange) :error "~A" condition)
  (send-failure exchange 500 "Internal Server Error"))

(defun answer-failure (exchange body condition)
  "Does what is left to be done for the request of EXCHANGE, whose content was BODY for the
application, after CONDITION."
  (cond ((taken-over-p exchange)
         (unless (client-gone-p condition exchange body)
           (fail-program-socket (exchange-upgrade exchange) condition)))
        ((typep condition 'protocol-error)
         (note-event exchange :request-fault)
         (send-failure exchange (protocol-error-status condition) (protocol-error-reason condition)))
        ((client-gone-p condition exchange body)
         (note-event exchange :reply-cut))
        (t
         (report-failure exchange condition))))

;;; The application

(defun answer (exchange body)
  "Has the application answer the request of EXCHANGE, whose content is BODY for it."
  (let* ((*answered* exchange)
         (response (funcall (server-app (exchange-application exchange)) (environment exchange body))))
    (cond ((functionp response)
           (respond-later exchange body
                          (lambda (responder)
                            (funcall response responder)
                            (take-over-if-listened-to exchange))))
          ((taken-over-p exchange))
          (t
           (end-reading body)
           (check-response response)
           (send-response exchange response)))))

(define-condition debugger-left (recycling-error)
  ()
  (:report "The debugger was left.")
  (:documentation "Somebody has looked at an error of an application, and wants no more of it."))

(defun call-debugging (function exchange body)
  "Calls FUNCTION, in which an application is called with BODY for EXCHANGE; its errors are taken to
the debugger, in this thread, which can go on with 500."
  (restart-case
      (handler-bind ((error (lambda (condition)
                              (unless (client-fault-p condition exchange body)
                                (invoke-debugger condition)))))
        (funcall function))
    (abort ()
      :report "Answer 500 (Internal Server Error)."
      (error 'debugger-left))))

(defun failure-of (exchange body)
  "Has the request of EXCHANGE answered; see ANSWER.  Returns the condition that has ended that, or
NIL."
  (flet ((answer-it ()
           (answer exchange body)))
    (declare (dynamic-extent #'answer-it))
    (handler-case (progn (if (server-debug-p (exchange-application exchange))
                             (call-debugging #'answer-it exchange body)
                             (answer-it))
                         nil)
      (storage-condition (condition)
        (make-room-in-heap 0)           ; or the next application would find none either
        condition)
      (serious-condition (condition) condition))))

;;; The request

(defun end-reading-unless-later (exchange body)
  "Lets no other thread read more of BODY, of the request of EXCHANGE, unless the response comes
later."
  (unless (deferred-p exchange)
    (end-reading body)))

(defun answer-request (exchange)
  "Has the request of EXCHANGE answered, whatever fails.  NIL where the client is gone."
  (let ((body *empty-body*))
    (unwind-protect
         (let ((failure (handler-case (progn (setf body (body-of exchange))
                                             nil)
                          (protocol-error (condition) condition))))
           (unless failure
             (setf failure (failure-of exchange body)))
           (end-reading-unless-later exchange body)
           (or (null failure)
               (handler-case (progn (answer-failure exchange body failure)
                                    (not (client-gone-p failure exchange body)))
                 ((or descriptor-broken stream-timeout) () nil))))
      (unless (deferred-p exchange)
        (release-body body)))))

(defun release-request (exchange)
  "Gives back what the server has kept of the content of the request of EXCHANGE, which is over, and
counts that."
  (count-request (exchange-connection exchange))
  (unless (eq :none (head-framing (exchange-head exchange)))
    (release-octets (exchange-content exchange)))
  (abandon-body-prefetch (exchange-http exchange)))

(defun conclude-request (exchange)
  "Ends the request of EXCHANGE, whose response was sent, or cut; returns what is to become of the
connection."
  (when (eq :done (our-side (exchange-protocol exchange)))
    (end-content (exchange-application exchange) exchange nil))
  (release-request exchange)
  (if (reusable-p (exchange-protocol exchange)) :park :close))

(defun serve-request (exchange)
  "Serves the request of EXCHANGE, whose head was read; returns what is to become of its
connection."
  (let ((content (take-content (exchange-application exchange) exchange)))
    (unless (eq *no-content* content)
      ;; The release of the HTTP connection gives the memory back, also where the application has
      ;; ended its thread.
      (setf (http-content (exchange-http exchange)) content)))
  (setf (exchange-protocol exchange)
        (state-after-head (exchange-protocol exchange) (exchange-head exchange)))
  (let ((answered-p (answer-request exchange)))
    (cond ((deferred-p exchange)
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
  "Serves the request of EXCHANGE, whose head was read, and what goes on over its connection then if
that needs the worker; returns what is to become of it."
  (let ((outcome (serve-request exchange)))
    (if (eq :deferred outcome)
        (leave-or-keep exchange)
        outcome)))

(defmethod respond ((server clack-server) exchange)
  (or (and (null (exchange-head exchange))
           (next-request-missing server (connection-usocket (exchange-connection exchange)) exchange
                                 (not (connection-parkable-p (exchange-connection exchange)))))
      (outcome-of-request exchange)))
