(in-package #:clack.handler.recycling)

;;;; Responses that an application gives to a function, the responder, in any thread and at any
;;;; time: as a whole, or without a body; then it gets a writer, another function, for that.  See
;;;; the server's deferred-response.lisp for what holds of all replies that come later.
;;;;
;;;;   the responder is called                 a whole response                 one without a body
;;;;   by the function that the application    is sent at once                  its head is sent at once; see
;;;;   has returned, in its call                                                written-responses.lisp
;;;;   elsewhere, before that has returned     is sent when that has returned   likewise
;;;;   elsewhere, later                        is sent by who has called, or    likewise
;;;;                                           the connection's owner
;;;;   for the second time                     RESPONSE-OVER                    RESPONSE-OVER
;;;;   again, where the first could not be     likewise, as if it were the      likewise
;;;;   sent, and its caller was told           first
;;;;   when nobody waits for it any more       nothing                          its writer signals CLIENT-LEFT
;;;;
;;;;   when the function has returned,         and its connection
;;;;   the response is over                                              the next request is read
;;;;   it is not                               can wait without a worker the connection waits
;;;;   it is not                               is the worker's to keep   the worker waits with it
;;;;   by an error or a throw, it has begun                              it is cut
;;;;   by an error or a throw, it has not                                500 is sent
;;;;   the connection was taken over                                     see socket.lisp
;;;;
;;;; Where nobody has answered when its time is over, 504 is sent.

(define-condition response-over (recycling-error)
  ()
  (:report "The response was given before, or has come to its end.")
  (:documentation "Signalled to who calls a responder for the second time, or a writer that was
closed."))

(defstruct (delayed (:include opaque) (:constructor make-delayed (exchange body deferred-response)))
  "The response to EXCHANGE, whose request has a content that is BODY for the application."
  (exchange nil :read-only t)
  (body nil)                            ; *EMPTY-BODY* when the response is over
  (deferred-response nil :read-only t)
  (thread (bt:current-thread))          ; that is in the function; NIL when this has returned
  (written nil)                         ; a WRITTEN-RESPONSE that it has begun; or, later, anybody
  ;; The answer did not come from the function during its call.
  (elsewhere-p nil))

(defun forget-body (delayed)
  "Has DELAYED, whose response is over, refer to the content of its request no longer, which is
returned: the application may keep a responder for as long as it likes."
  (shiftf (delayed-body delayed) *empty-body*))

(defun delayed-side (delayed)
  (our-side (exchange-protocol (delayed-exchange delayed))))

(defun delayed-server (delayed)
  (exchange-application (delayed-exchange delayed)))

(defun delayed-io (delayed)
  (http-io (exchange-http (delayed-exchange delayed))))

(defun within-function-p (delayed)
  "True in the function that is to answer DELAYED, while it runs."
  (eq (bt:current-thread) (delayed-thread delayed)))

(defun begin-delayed (exchange body)
  "The response to EXCHANGE, pending from now on."
  (let ((deferred-response (make-deferred-response exchange (end-after (server-response-timeout (exchange-application exchange))) nil)))
    (prog1 (setf (deferred-response-context deferred-response) (make-delayed exchange body deferred-response))
      ;; The end of the exchange asks for its context.
      (setf (exchange-deferred-response exchange) deferred-response))))

;;; The responder

(defun check-body (response)
  "Checks that RESPONSE, a list with a body, has one that can be sent."
  (unless (typep (third response) '(or list pathname (vector octet)))
    (error 'unfit-response :response response)))

(defun answer-delayed (delayed answer)
  "Makes ANSWER, a response or a WRITTEN-RESPONSE, that to DELAYED.  True when somebody waits for
it."
  (handler-case (answer-deferred-response (delayed-deferred-response delayed) answer)
    (already-answered () (error 'response-over))))

(defun send-taken (delayed)
  "Sends what DELAYED was answered, within the function."
  (multiple-value-bind (answer come-p) (take-answer (delayed-deferred-response delayed))
    (when come-p
      (cond ((typep answer 'streamed-answer)
             (with-reading-turn ((delayed-body delayed)) ; others may read it
               (send-answer delayed answer)))
            (t
             (end-reading (delayed-body delayed))
             (send-answer delayed answer)))
      ;; The function may go on for long.
      (setf (deferred-response-answer (delayed-deferred-response delayed)) nil))))

(defun send-answer (delayed answer)
  "Sends ANSWER, a response with a body, or a WRITTEN-RESPONSE, of which that is the head."
  (if (typep answer 'streamed-answer)
      (begin-written answer)
      (send-response (delayed-exchange delayed) answer)))

(defun cut-delayed (delayed written)
  "Ends the response to DELAYED, WRITTEN or NIL, whose client is gone, or has got a part of it."
  (note-event (delayed-exchange delayed) :reply-cut)
  (drop-answer written))

(defun send-within-function (delayed written)
  "Sends what DELAYED was answered, WRITTEN unless that is NIL, in its function.  Where that fails
before anything has left it may be answered once more.  That the client is gone is no failure: it is
the writer's to tell."
  (let ((over-p nil))
    (unwind-protect
         (handler-case (progn (send-taken delayed)
                              (setf over-p t))
           ;; END-OF-FILE comes in the middle of the request's content.
           ((or descriptor-broken stream-timeout end-of-file) ()
             (cut-delayed delayed written)
             (setf over-p t)))
      (cond (over-p)
            ((eq :idle (delayed-side delayed))
             (drop-answer written)
             (reopen-deferred-response (delayed-deferred-response delayed)))
            (t
             (cut-delayed delayed written))))))

(defun give-response (delayed response)
  "Gives RESPONSE to DELAYED.  Returns a writer where it has no body."
  (check-response response)
  (let* ((within-p (within-function-p delayed))
         (written (and (null (cddr response))
                       (make-written delayed (first response) (second response) within-p))))
    (unless written
      (check-body response))
    (when (and within-p (not (eq :idle (delayed-side delayed))))
      (error 'response-over))           ; its connection may have been taken over
    (unless within-p
      (setf (delayed-elsewhere-p delayed) t))
    (cond ((not (answer-delayed delayed (or written response)))
           (when written
             (drop-written written)))
          (within-p
           (send-within-function delayed written)))
    (and written (make-writer written))))

(defun make-responder (delayed)
  "The function by which an application answers DELAYED."
  (lambda (response)
    (give-response delayed response)))

;;; When the function has returned

(defun takable-p (exchange)
  "True when the client of EXCHANGE sends its content if that is read, it is not too much, and
nothing of it is lost."
  (let ((protocol (exchange-protocol exchange))
        (content (exchange-content exchange)))
    (and (content-readable-p content)
         (not (too-much-to-come-p content))
         ;; Otherwise the client can no longer be asked for the content that it holds back.
         (or (eq :idle (our-side protocol))
             (not (eq :held (client-side protocol)))))))

(defun take-rest-of-content (delayed)
  "Takes what has yet to come of the content of DELAYED's request: from now on nobody but the
connection's owner may read that, and BODY can be read in any thread."
  (let ((body (delayed-body delayed))
        (exchange (delayed-exchange delayed)))
    (when (and (raw-body-content body) (takable-p exchange))
      (take-rest body *unasked-limit*))
    (end-reading body)
    (end-content (delayed-server delayed) exchange nil)))

(defun leave-response (delayed)
  "Leaves DELAYED to whoever answers or writes it."
  (take-rest-of-content delayed)
  (limit-unused-writer delayed)
  (setf (http-suspended-exchange (exchange-http (delayed-exchange delayed))) (delayed-deferred-response delayed)))

(defun settle-delayed (delayed)
  "Does what is left to be done for DELAYED when its function has returned."
  (ecase (delayed-side delayed)
    (:idle (leave-response delayed))
    (:body (if (written-to-end-p (delayed-written delayed))
               (end-within (delayed-written delayed))
               (leave-response delayed)))
    ((:done :switched :error)           ; perhaps by other means than the responder
     (withdraw-response delayed))))

(defun withdraw-response (delayed)
  "Lets nobody answer DELAYED any more, and drops what it was answered, if that was not sent."
  (withdraw-deferred-response (delayed-deferred-response delayed))
  (drop-answer (take-answer (delayed-deferred-response delayed))))

(defun drop-answer (answer)
  "Drops ANSWER, of a deferred response, or NIL: who writes it, if it is written, is told."
  (when (typep answer 'streamed-answer)
    (drop-written answer)))

(defun give-up-delayed (delayed)
  "Lets nobody answer or write DELAYED any more, whose function was left."
  (withdraw-response delayed)
  (when (delayed-written delayed)
    (drop-written (delayed-written delayed))
    (end-turns (delayed-written delayed))))

(defun respond-later (exchange body function)
  "Has FUNCTION, which an application has returned for the request of EXCHANGE, whose content is
BODY for it, answer by the responder that it is called with.  The response may come later."
  (let ((delayed (begin-delayed exchange body)))
    (unless-returned (progn
                       (funcall function (make-responder delayed))
                       (setf (delayed-thread delayed) nil)
                       (when (delayed-written delayed)
                         (end-turns (delayed-written delayed)))
                       (settle-delayed delayed)
                       (unless (deferred-p exchange)
                         (forget-body delayed)))
      (setf (delayed-thread delayed) nil)
      (give-up-delayed delayed)
      (forget-body delayed))))
