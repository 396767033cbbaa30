(in-package #:clack.handler.recycling)

;;;; Responses that were not complete when their function returned.
;;;;
;;;;   after :REPLY-TIMEOUT seconds           then
;;;;   the responder was not called           504 is sent (503, earlier, when memory is scarce)
;;;;   only the function has used the writer  the writer is closed
;;;;   another thread has used the writer     it stays open until it is closed or the client leaves

(defmethod send-deferred-response ((server clack-server) deferred-response answer)
  (let ((delayed (deferred-response-context deferred-response)))
    (handler-case (send-late delayed answer)
      ((or descriptor-broken stream-timeout) (condition)
        (error condition))              ; the end of the connection drops ANSWER
      (error (condition)
        (drop-answer answer)
        (report-failure (delayed-exchange delayed) condition nil)))
    (cond ((not (eq :body (delayed-side delayed)))
           (conclude-delayed delayed))
          ((eq :none (written-framing answer))
           (end-written answer)
           (conclude-delayed delayed))
          (t
           :deferred))))

(defun send-late (delayed answer)
  "Sends ANSWER, a response or :EXPIRED, to DELAYED."
  (if (eq :expired answer)
      (send-text (delayed-exchange delayed) 504 "Gateway Timeout")
      (send-answer delayed answer)))

(defmethod end-stream ((server clack-server) deferred-response shared-queue)
  (declare (ignore shared-queue))
  (let ((delayed (deferred-response-context deferred-response)))
    (end-written (delayed-written delayed))
    (conclude-delayed delayed)))

(defmethod drop-deferred ((server clack-server) deferred-response)
  (let ((delayed (deferred-response-context deferred-response)))
    (release-request (delayed-exchange delayed))))

(defun conclude-delayed (delayed)
  "Ends the request of DELAYED, whose response is over.  Returns the connection's outcome."
  (conclude-request (delayed-exchange delayed)))

;;; Writers that the function has not closed

(defun used-by-function-only-p (delayed)
  "True while the response to DELAYED is not over and only the call of its function has written it."
  (not (or (delayed-elsewhere-p delayed)
           (shared-queue-shut-p (written-shared-queue (delayed-written delayed))))))

(defun limit-unused-writer (delayed)
  "If the function of DELAYED has left its writer open, has that closed after :REPLY-TIMEOUT
seconds unless another thread has used it by then."
  (let ((written (delayed-written delayed))
        (seconds (server-reply-timeout (delayed-server delayed))))
    (when (and written seconds (used-by-function-only-p delayed))
      (let ((timer (schedule (exchange-engine (delayed-exchange delayed)) seconds
                             (lambda ()
                               (when (used-by-function-only-p delayed)
                                 (close-written written))))))
        ;; The timer refers to the request and the response.  With many clients that come and go,
        ;; pending timers would hold too much memory.
        (call-when-over (written-shared-queue written) (lambda () (cancel timer)))))))
