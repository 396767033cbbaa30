(in-package #:clack.handler.recycling)

;;;; Delayed responses: the application returns a function, and the server calls it with a
;;;; responder.  Any thread may call the responder, at any time.  It gives the responder a whole
;;;; response, or one without a body; then it gets a writer, another function, for the body.  The
;;;; server's deferred-response.lisp has the states of all responses that come later.
;;;;
;;;;   the responder is called                  with a whole response:  with one without a body:
;;;;   by the application's function, in its    it is sent now          its head is sent now (see
;;;;   call                                                             written-responses.lisp)
;;;;   elsewhere, before the function has       it is sent when the     likewise
;;;;   returned                                 function has returned
;;;;   elsewhere, after that                    the caller, or the      likewise
;;;;                                            connection's owner,
;;;;                                            sends it
;;;;   for the second time                      REPLY-ALREADY-SENT      REPLY-ALREADY-SENT
;;;;   again, after the first response failed   it is taken as the      likewise
;;;;   to leave and signalled an error          first
;;;;   after the client has left, or the        nothing is sent         the writer signals
;;;;   response has timed out                                           CLIENT-LEFT
;;;;
;;;;   when the function has returned,          and the connection      then
;;;;   the response is over                                             the next request is read
;;;;   it is not                                needs no worker         the connection waits
;;;;   it is not                                needs its worker        the worker waits with it
;;;;
;;;;   when the function was left by an error or a throw,
;;;;   the response has begun                                           it is cut
;;;;   it has not                                                       500 is sent
;;;;
;;;; A response for which the responder is not called in time is 504.  socket.lisp tells what
;;;; happens when the application takes the connection over.

(defstruct (delayed (:include opaque) (:constructor make-delayed (exchange deferred-response)))
  "The response to EXCHANGE."
  (exchange nil :read-only t)
  (deferred-response nil :read-only t)
  (thread (bt:current-thread))          ; it calls the function; NIL when this has returned
  (written nil)                         ; a WRITTEN-RESPONSE that was begun, in any thread
  (elsewhere-p nil))                    ; true when anything else than the function's call answered

(defun delayed-side (delayed)
  (our-side (exchange-protocol (delayed-exchange delayed))))

(defun delayed-server (delayed)
  (exchange-application (delayed-exchange delayed)))

(defun delayed-io (delayed)
  (http-io (exchange-http (delayed-exchange delayed))))

(defun within-function-p (delayed)
  "True when the current thread is in the call of the function that is to answer DELAYED."
  (eq (bt:current-thread) (delayed-thread delayed)))

(defun begin-delayed (exchange)
  "Makes the response to EXCHANGE a delayed one, and returns it."
  (let* ((seconds (server-reply-timeout (exchange-application exchange)))
         (deferred-response (make-deferred-response exchange (end-after seconds) nil)))
    (prog1 (setf (deferred-response-context deferred-response)
                 (make-delayed exchange deferred-response))
      ;; Last, since the end of the exchange uses the context.
      (setf (exchange-deferred-response exchange) deferred-response))))

;;; The responder

(defun check-body (response)
  "Signals UNFIT-RESPONSE unless RESPONSE, a list with a body, has one that can be sent."
  (unless (typep (third response) '(or list pathname (vector octet)))
    (error 'unfit-response :response response)))

(defun answer-delayed (delayed answer)
  "Answers DELAYED with ANSWER, a response or a WRITTEN-RESPONSE.  True while the client waits for
it.  Signals REPLY-ALREADY-SENT."
  (answer-deferred-response (delayed-deferred-response delayed) answer))

(defun send-taken (delayed)
  "Sends the answer to DELAYED, in the call of its function."
  (multiple-value-bind (answer come-p) (take-answer (delayed-deferred-response delayed))
    (when come-p
      (send-answer delayed answer)
      ;; The function may run on for long.
      (setf (deferred-response-answer (delayed-deferred-response delayed)) nil))))

(defun send-answer (delayed answer)
  "Sends ANSWER to DELAYED: a response with a body, or the head of a WRITTEN-RESPONSE."
  (if (typep answer 'streamed-answer)
      (begin-written answer)
      (send-response (delayed-exchange delayed) answer)))

(defun cut-delayed (delayed written)
  "Ends the response to DELAYED early: its client is gone, or has got only a part of it.  WRITTEN is
the WRITTEN-RESPONSE, or NIL."
  (note-event (delayed-exchange delayed) :reply-cut)
  (drop-answer written))

(defun send-within-function (delayed written)
  "Sends the answer to DELAYED in the call of its function.  WRITTEN is the WRITTEN-RESPONSE, or NIL
for a whole response.  If sending fails before anything has left, the function may answer once more.
A client that is gone is not a failure here: the writer signals it."
  (let ((over-p nil))
    (unwind-protect
         (handler-case (progn (send-taken delayed)
                              (setf over-p t))
           ((or descriptor-broken stream-timeout) ()
             (cut-delayed delayed written)
             (setf over-p t)))
      (cond (over-p)
            ((eq :idle (delayed-side delayed))
             (drop-answer written)
             (reopen-deferred-response (delayed-deferred-response delayed)))
            (t
             (cut-delayed delayed written))))))

(defun give-response (delayed response)
  "Answers DELAYED with RESPONSE.  Returns a writer if that has no body, else NIL."
  (check-response response)
  (let* ((within-p (within-function-p delayed))
         (written (and (null (cddr response))
                       (make-written delayed (first response) (second response)))))
    (unless written
      (check-body response))
    (when (and within-p (not (eq :idle (delayed-side delayed))))
      (error 'reply-already-sent))      ; it was answered, or its connection was taken over
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

(defun leave-response (delayed)
  "Leaves DELAYED to the threads that will answer or write it."
  (limit-unused-writer delayed)
  (setf (http-suspended-exchange (exchange-http (delayed-exchange delayed)))
        (delayed-deferred-response delayed)))

(defun settle-delayed (delayed)
  "Ends DELAYED after its function has returned, or leaves it to other threads."
  (ecase (delayed-side delayed)
    (:idle (leave-response delayed))
    (:body (if (written-to-end-p (delayed-written delayed))
               (end-within (delayed-written delayed))
               (leave-response delayed)))
    ((:done :switched :error)           ; perhaps without the responder
     (withdraw-response delayed))))

(defun withdraw-response (delayed)
  "Lets no thread answer DELAYED any more, and drops an answer that was not sent."
  (withdraw-deferred-response (delayed-deferred-response delayed))
  (drop-answer (take-answer (delayed-deferred-response delayed))))

(defun drop-answer (answer)
  "Drops ANSWER, of a deferred response, or NIL.  A writer of it signals CLIENT-LEFT from now on."
  (when (typep answer 'streamed-answer)
    (drop-written answer)))

(defun give-up-delayed (delayed)
  "Lets no thread answer or write DELAYED any more, whose function was left."
  (withdraw-response delayed)
  (when (delayed-written delayed)
    (drop-written (delayed-written delayed))))

(defun respond-later (exchange function)
  "Calls FUNCTION, which the application has returned for the request of EXCHANGE, with a responder.
The response may come later."
  (let ((delayed (begin-delayed exchange)))
    (unless-returned (progn
                       (funcall function (make-responder delayed))
                       (setf (delayed-thread delayed) nil)
                       (order-memory)   ; a thread that closes the writer reads that next
                       (if (lift-handler-limit exchange)
                           (settle-delayed delayed)
                           (give-up-delayed delayed)))
      (setf (delayed-thread delayed) nil)
      (give-up-delayed delayed))))
