(in-package #:hunchentoot-recycling-taskmaster)

;;;; Deferred replies that go on: a worker binds the context of the request again, and sends the
;;;; answer, or the end of a stream.

(defun call-resuming (exchange context thunk)
  "Calls THUNK, which goes on with the reply of EXCHANGE in CONTEXT.  Returns the connection's
outcome."
  (let* ((acceptor (deferred-reply-acceptor context))
         (*exchange* exchange))
    (labels ((resume-it ()
               (call-in-context context thunk)
               (conclude-resumed acceptor exchange context))
             (resume-with-stream ()
               (call-with-connection-stream exchange (deferred-reply-stream context)
                                            #'resume-it)))
      (declare (dynamic-extent #'resume-it #'resume-with-stream))
      (call-timed acceptor exchange #'resume-with-stream))))

(defun conclude-resumed (acceptor exchange context)
  "Ends the request of EXCHANGE after its reply, unless that is a stream whose end is still to come.
Returns the connection's outcome."
  (cond ((deferred-response-shared-queue (exchange-deferred-response exchange))
         (setf (deferred-reply-stream context) *hunchentoot-stream*)
         :deferred)
        (t
         (end-context context)
         (prog1 (conclude-exchange acceptor exchange)
           (note-served exchange)))))

(defmethod send-deferred-response ((taskmaster recycling-taskmaster) deferred-response answer)
  (let ((context (deferred-response-context deferred-response)))
    (flet ((send-it ()
             (if (typep answer 'streamed-answer)
                 (begin-outgoing deferred-response context answer)
                 (send-deferred context answer))))
      (declare (dynamic-extent #'send-it))
      (call-resuming (deferred-response-exchange deferred-response) context #'send-it))))

(defun send-deferred (context answer)
  "Sends ANSWER, a COMPLETION or :EXPIRED, in CONTEXT."
  (flet ((late-content ()
           (completed-content
            (if (eq :expired answer)
                (make-completion nil hunchentoot:+http-gateway-time-out+ '() nil)
                answer))))
    (declare (dynamic-extent #'late-content))
    (answer-by #'late-content
               (deferred-reply-acceptor context) (deferred-reply-request context))))

(defmethod end-stream ((taskmaster recycling-taskmaster) deferred-response shared-queue)
  (let ((exchange (deferred-response-exchange deferred-response))
        (context (deferred-response-context deferred-response)))
    (call-resuming exchange context
                   (lambda ()
                     (when (typep (deferred-reply-stream context) 'reply-stream)
                       (note-sent-beside (deferred-reply-stream context) shared-queue))
                     ;; The head was sent by another call, in another dynamic context.
                     (when (persists-p (exchange-protocol exchange))
                       (setf *finish-processing-socket* nil))))))

(defmethod drop-deferred ((taskmaster recycling-taskmaster) deferred-response)
  (end-context (deferred-response-context deferred-response))
  (let* ((exchange (deferred-response-exchange deferred-response))
         (access (shiftf (exchange-access exchange) nil)))
    (when access                        ; a stream may have begun
      (finish-access (deferred-reply-acceptor (deferred-response-context deferred-response))
                     exchange access))
    (note-cut exchange)))
