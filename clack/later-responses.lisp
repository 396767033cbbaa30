(in-package #:clack.handler.recycling)

;;;; The response to a request whose function has returned before the response was complete.
;;;;
;;;;   after :RESPONSE-TIMEOUT seconds                        then
;;;;   the responder was not called                           504 is sent; 503 before, where there is no memory
;;;;   the writer was used in the function's call only        what was written is all
;;;;   the writer was used elsewhere, or later                it stays open until it is closed, or the client leaves

(defmethod send-deferred-response ((server clack-server) deferred-response answer)
  (let ((delayed (deferred-response-context deferred-response)))
    (handler-case (send-late delayed answer)
      ((or descriptor-broken stream-timeout) (condition)
        (error condition))              ; who abandons the connection drops ANSWER
      (error (condition)
        (drop-answer answer)
        (report-failure (delayed-exchange delayed) condition)))
    (cond ((not (eq :body (delayed-side delayed)))
           (conclude-delayed delayed))
          ((eq :none (written-framing answer))
           (end-written answer)
           (conclude-delayed delayed))
          (t
           :deferred))))

(defun send-late (delayed answer)
  "Sends ANSWER to DELAYED: a response, :EXPIRED or :EVICTED."
  (let ((exchange (delayed-exchange delayed)))
    (case answer
      (:expired (send-text exchange 504 "Gateway Timeout"))
      (:evicted (send-text exchange 503 "Service Unavailable"))
      (t (send-answer delayed answer)))))

(defmethod end-stream ((server clack-server) deferred-response shared-queue)
  (declare (ignore shared-queue))
  (let ((delayed (deferred-response-context deferred-response)))
    (end-written (delayed-written delayed))
    (conclude-delayed delayed)))

(defmethod drop-deferred ((server clack-server) deferred-response)
  (let ((delayed (deferred-response-context deferred-response)))
    (release-body (forget-body delayed))
    (release-request (delayed-exchange delayed))))

(defun conclude-delayed (delayed)
  "Ends the request of DELAYED, whose response is over, and returns what is to become of its
connection."
  (release-body (forget-body delayed))
  (conclude-request (delayed-exchange delayed)))

;;; Writers that the function has left open

(defun used-by-function-only-p (delayed)
  "True while only the function of DELAYED, in its call, has written the response, and it is not
over."
  (not (or (delayed-elsewhere-p delayed)
           (shared-queue-over-p (written-shared-queue (delayed-written delayed))))))

(defun limit-unused-writer (delayed)
  "Sees to it that a response that the function of DELAYED has begun to write, and left open, ends
after the :RESPONSE-TIMEOUT if nobody else writes it by then."
  (let ((written (delayed-written delayed))
        (seconds (server-response-timeout (delayed-server delayed))))
    (when (and written seconds (used-by-function-only-p delayed))
      (let ((timer (schedule (exchange-engine (delayed-exchange delayed)) seconds
                             (lambda ()
                               (when (used-by-function-only-p delayed)
                                 (close-written written))))))
        ;; The timer holds the request and the response: of many clients that come and go, too much.
        (call-when-over (written-shared-queue written) (lambda () (cancel timer)))))))
