(in-package #:hunchentoot-recycling-taskmaster)

;;;; One request, from the head that the server has read to the reply.  Hunchentoot's objects
;;;; describe the request.  The reply is made of octets: sent at once where the handler returns it
;;;; whole (reply.lisp), else as the handler writes it (streaming.lisp).

(defun application-of (acceptor exchange)
  "The application whose limits hold for requests to ACCEPTOR: that of EXCHANGE, unless ACCEPTOR got
the connection from another acceptor."
  (let ((own (exchange-application exchange))
        (other (acceptor-taskmaster* acceptor)))
    (if (and (not (eq own other))
             (not (eq acceptor (hunchentoot:taskmaster-acceptor own)))
             (typep other 'recycling-taskmaster)
             (slot-boundp other 'hunchentoot:acceptor)
             (eq acceptor (hunchentoot:taskmaster-acceptor other)))
        other
        own)))

(defun process-head (acceptor exchange http)
  "Processes the request of EXCHANGE, which came over HTTP, in the context of
CALL-WITH-CONNECTION-STREAM.  Returns true when the connection may be used again, or :DEFERRED when
the reply comes later."
  (let* ((head (exchange-head exchange))
         (content (take-content exchange)))
    ;; They may be left from an earlier request, where one call serves all requests.
    (setf (exchange-deferred-response exchange) nil
          (exchange-upgrade exchange) nil
          (exchange-watch exchange) nil)
    (copy-head head)
    (let ((hunchentoot:*reply* (make-reply acceptor))
          (hunchentoot:*session* nil))
      (when (eq :chunked (head-framing head))
        (expect-chunked-body acceptor))
      (unless-returned (hunchentoot:process-request
                        (make-request acceptor http (head-headers head) (head-method head)
                                      (head-uri head) (head-protocol head)
                                      (if (and (head-upgrade head) (eq content *no-content*))
                                          (make-instance 'upgrade-stream)
                                          content)))
        (drop-upgrade exchange)))
    (cond ((deferred-p exchange)
           (end-content exchange)
           :deferred)
          ((switch-protocols exchange http)
           (abandon-content http)
           :deferred)
          (t
           (drop-upgrade exchange)
           (conclude-exchange acceptor exchange http)))))

(defun conclude-exchange (acceptor exchange http)
  "Completes the reply of EXCHANGE, which came over HTTP.  True when the connection may be used
again."
  (cond ((eq :error (our-side (exchange-protocol exchange)))
         (abandon-reply (http-stream http) (http-io http)))
        (t
         (finish-request acceptor exchange (http-io http))
         (end-content exchange)))
  (abandon-content http)                ; until here, the release of HTTP would give it back
  (reusable-p (exchange-protocol exchange)))

;;; The handler, and its reply

(defmethod hunchentoot:process-request ((request hunchentoot:request))
  "Does what Hunchentoot's method does, but makes the reply of octets where our own code has read
the head."
  (cond ((null (current-head))
         (call-next-method))
        (t
         (call-as-request request (lambda ()
                                    (answer hunchentoot:*acceptor* request)))
         (when (own-content request)    ; methods that read it now have no reply to give
           (keep-reply-from (own-content request)))
         ;; After this method, methods of WebSocket libraries go on with the stream.
         (when (and (eql (hunchentoot:return-code*) hunchentoot:+http-switching-protocols+)
                    (null (exchange-upgrade *exchange*)))
           (note-event *exchange* :switch)
           (open-content-stream request (stream-for-program *exchange*))))))

(defun answer (acceptor request)
  (flet ((handle ()
           ;; Making the request may have found it bad.
           (if (eql (hunchentoot:return-code hunchentoot:*reply*) hunchentoot:+http-ok+)
               (call-handler-in-time acceptor request)
               (values nil nil nil nil))))
    (declare (dynamic-extent #'handle))
    (unwind-protect (answer-by #'handle acceptor request)
      (let ((deferred-response (exchange-deferred-response *exchange*)))
        ;; An answer that is still unsent is abandoned next, which ends the context.
        (when (and deferred-response
                   (not (deferred-p *exchange*))
                   (not (deferred-response-unsent-p deferred-response)))
          (end-context (deferred-response-context deferred-response)))))))

(defun call-handler-in-time (acceptor request)
  "Like CALL-HANDLER, under the limit of time of ACCEPTOR's handlers."
  (let ((exchange *exchange*))
    (flet ((handle ()
             (when (exchange-watch exchange) ; kept for any thread that has REQUEST
               (setf (hunchentoot:aux-request-value 'watch request) (exchange-watch exchange)))
             (call-handler acceptor request)))
      (declare (dynamic-extent #'handle))
      (call-with-handler-limit exchange #'handle))))

(defmethod watch-of ((request hunchentoot:request))
  (hunchentoot:aux-request-value 'watch request))

(defun drop-late-result (condition backtrace)
  "Ends the current request, which was answered in place of its handler.  CONDITION and BACKTRACE
are those of the handler's failure, or NIL."
  (when (and condition (not (typep condition 'client-left)))
    (log-handler-error condition backtrace))
  (when (exchange-deferred-response *exchange*)
    (withdraw-deferred-response (exchange-deferred-response *exchange*)))
  (drop-upgrade *exchange*)
  ;; Methods around PROCESS-REQUEST would switch protocols by the handler's status.
  (setf (hunchentoot:return-code*) hunchentoot:+http-service-unavailable+)
  (note-event *exchange* :reply-cut))

(defun answer-by (handler acceptor request)
  "Calls HANDLER, and answers REQUEST unless the reply comes later.  HANDLER returns
content, or NIL, a condition and a backtrace; and as fourth value true if it was left by a throw."
  (multiple-value-bind (content condition backtrace left-p) (funcall handler)
    (when (exchange-upgrade *exchange*)
      (check-switch *exchange* condition))
    (let ((deferred-response (exchange-deferred-response *exchange*)))
      (cond ((handler-timed-out-p *exchange*)
             (drop-late-result condition backtrace))
            ((exchange-upgrade *exchange*) ; a head without content
             (send-result acceptor request "" condition backtrace))
            ((and deferred-response (deferred-response-waits-p deferred-response))
             (multiple-value-bind (content condition backtrace)
                 (deferred-result deferred-response left-p condition backtrace)
               (unless (eq :later content)
                 (send-result acceptor request content condition backtrace))))
            (t
             (send-result acceptor request content condition backtrace))))))
