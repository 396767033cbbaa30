(in-package #:hunchentoot-recycling-taskmaster)

;;;; Replies that come later: a handler says so, and returns; its worker turns to other requests.
;;;; Any thread completes the reply.  See the server's deferred-response.lisp for the states, and
;;;; its suspended-exchange.lisp for who sends.
;;;;
;;;;   when the handler has returned     and its connection             then
;;;;   the reply is complete                                            it is sent at once, as that of any handler
;;;;   it is not                         can wait without a worker      the connection waits
;;;;   it is not                         is the worker's to keep        the worker waits with it
;;;;   by an error or a throw            the reply was not complete     500 is sent
;;;;
;;;; The dynamic context of the request is kept in a DEFERRED-REPLY, and bound again for the reply.

(defvar *default-reply-timeout* 60
  "How many seconds, a real or NIL for ever, a deferred reply may take: the default of DEFER-REPLY's
:TIMEOUT.")

(defstruct (completion (:include opaque) (:constructor make-completion (content status headers content-type)))
  "What a deferred reply was completed with."
  (content nil :read-only t)
  (status nil :read-only t)
  (headers '() :read-only t)
  (content-type nil :read-only t))

(define-condition cannot-defer (recycling-error)
  ((reason :initarg :reason :reader cannot-defer-reason))
  (:report (lambda (condition stream)
             (format stream "This reply cannot be deferred: ~A." (cannot-defer-reason condition))))
  (:documentation "Signalled by DEFER-REPLY where there is no request, or its reply has begun or was
deferred before."))

(define-condition reply-failed (recycling-error)
  ((reason :initarg :reason :reader reply-failed-reason))
  (:report (lambda (condition stream)
             (princ (reply-failed-reason condition) stream)))
  (:documentation "Why a deferred reply was not completed, as its error page tells."))

;;; In the handler

(defmacro defer-reply ((reply &key (timeout '*default-reply-timeout*) on-abandon) &body body)
  "Defers the reply to the current request, and evaluates BODY with REPLY, a variable, bound to it:
BODY hands it to whoever will have the answer, by COMPLETE-REPLY, FAIL-REPLY or START-STREAM, in any
thread and at any time.  The handler then returns; what it returns is not sent.

TIMEOUT is for how many seconds, a real, the reply may take before the client gets status 504; NIL
for ever.  ON-ABANDON is NIL, or a function without arguments that is called once, in any thread,
when the client leaves before its reply was sent; it must not wait, nor want a lock of who waits for
room in a stream.  Whatever of the request's content the handler has not read is received before
BODY is evaluated, so that any thread can read it in the context of REPLY.  What is more than
:MAX-RAW-OCTETS, or is held back by a client that waits to be asked for it (RFC 9110, section
10.1.1), the handler alone can read; others get an error.

A handler that signals an error, or is left by a throw, before its reply is complete is answered
with status 500.  A reply that everybody has forgotten ends by its TIMEOUT, as any other does.
Returns what BODY returns.  Signals CANNOT-DEFER where there is no request whose reply is still to
be made."
  `(call-deferring (lambda (,reply) ,@body) ,timeout ,on-abandon))

(defun call-deferring (function timeout on-abandon)
  "What DEFER-REPLY does: FUNCTION, of the reply, is its body."
  (let ((deferred-response (begin-deferred-response timeout on-abandon)))
    (unless-returned (funcall function (deferred-response-context deferred-response))
      (withdraw-deferred-response deferred-response))))

(defun check-deferrable ()
  "Signals CANNOT-DEFER unless the reply to the current request can be deferred."
  (flet ((refuse (reason)
           (error 'cannot-defer :reason reason)))
    (cond ((null (current-head)) (refuse "there is no request whose head our own code has read"))
          ((headers-sent-p) (refuse "it has begun"))
          (hunchentoot:*header-stream* (refuse "headers are being traced"))
          ((exchange-deferred-response *exchange*) (refuse "it was deferred before"))
          ((exchange-upgrade *exchange*) (refuse "its connection becomes a WebSocket")))))

(defun begin-deferred-response (timeout on-abandon)
  (check-deferrable)
  (let ((content (own-content hunchentoot:*request*)))
    (when content
      (share-content content (limits-raw-octets (content-limits content)))))
  (setf (exchange-deferred-response *exchange*)
        (let ((deferred-response (make-deferred-response *exchange* (end-after timeout) on-abandon)))
          (setf (deferred-response-context deferred-response)
                (make-deferred-reply deferred-response
                                     hunchentoot:*acceptor* hunchentoot:*request* hunchentoot:*reply*
                                     (own-content hunchentoot:*request*) hunchentoot:*session*))
          deferred-response)))

;;; In any thread

(defun complete-reply (reply content &key status headers content-type)
  "Completes REPLY, which DEFER-REPLY has deferred, with CONTENT: a string, a vector of octets, the
pathname of a file, a function without arguments, which is called in the context of the request,
must not wait, and returns one of these; or NIL for the page of STATUS.  STATUS, an integer,
HEADERS, an alist of keywords or strings and values, and CONTENT-TYPE, a string, are set in the
reply where they are not NIL; whatever the handler has set stays.

May be called in any thread.  True when somebody still waits for the reply; NIL when its client has
gone, or its time has run out.  Signals ALREADY-ANSWERED when REPLY was completed before."
  (answer-deferred-response (deferred-reply-deferred-response reply)
                            (make-completion content status headers content-type)))

(defun fail-reply (reply &optional (reason "The reply failed."))
  "Completes REPLY as a handler does that fails: with status 500; REASON, a condition or a string,
is logged, and told where Hunchentoot tells errors.  Returns and signals what COMPLETE-REPLY does."
  (answer-deferred-response (deferred-reply-deferred-response reply)
                            (make-completion (failure reason) nil '() nil)))

(defun failure (reason)
  "A condition for REASON, a condition or a string."
  (if (typep reason 'condition) reason (make-condition 'reply-failed :reason reason)))

(defun reply-abandoned-p (reply)
  "True when nobody waits for REPLY any more: its client has left, as far as that is known, or its
time has run out.  A client that has only ended its half of the connection counts as one that has
left, and still gets what REPLY is completed with."
  (let ((deferred-response (deferred-reply-deferred-response reply)))
    (or (deferred-response-left-p deferred-response)
        (deferred-response-over-p deferred-response))))

(defun call-with-reply-context (reply function)
  "Calls FUNCTION, without arguments, with *REQUEST*, *REPLY*, *SESSION* and *ACCEPTOR* of
Hunchentoot bound as they were in the handler that has deferred REPLY, and returns what it returns.
Temporary files that are made meanwhile live as long as those of the handler.  Any thread may ask
for raw post data and parameters; what else two threads change of these objects at a time, or one
and the handler, they have to agree on.  Signals CLIENT-LEFT when REPLY is over: it was sent, its
client has left and its :ON-ABANDON was called, or its time has run out."
  (call-with-content-as-stream (or (deferred-reply-content reply) *no-content*)
                               (lambda () (call-in-context reply function))))

(defmacro with-reply-context ((reply) &body body)
  "Evaluates BODY as CALL-WITH-REPLY-CONTEXT calls a function for REPLY."
  `(call-with-reply-context ,reply (lambda () ,@body)))

;;; What it was completed with

(defun settle-reply (completion)
  "Gives the current reply what COMPLETION says of it besides its content."
  (when (completion-status completion)
    (setf (hunchentoot:return-code*) (completion-status completion)))
  (when (completion-content-type completion)
    (setf (hunchentoot:content-type*) (completion-content-type completion)))
  (loop for (name . value) in (completion-headers completion)
        do (setf (hunchentoot:header-out name) value)))

(defun completed-content (completion)
  "What a handler would return for COMPLETION: content; or NIL, and as second value a condition."
  (let ((content (completion-content completion)))
    (handler-case
        (progn
          (settle-reply completion)
          (typecase content
            (condition (values nil content))
            (pathname (call-as-handler (lambda () (hunchentoot:handle-static-file content))))
            (function (call-as-handler content))
            (t content)))
      ((or error storage-condition) (condition)
        (values nil condition)))))

;;; Where the handler has returned

(defun deferred-response-waits-p (deferred-response)
  "True when the handler that has deferred DEFERRED-RESPONSE has just returned, or was left."
  (null (deferred-reply-stream (deferred-response-context deferred-response))))

(defun deferred-result (deferred-response left-p condition backtrace)
  "What counts as the result of the handler that has deferred DEFERRED-RESPONSE, and was left if
LEFT-P, or has failed with CONDITION and BACKTRACE: content; or NIL, a condition, unless its content
was refused, and a backtrace.  :LATER when its reply is to come later."
  (cond ((and (or condition left-p (deferred-response-over-p deferred-response))
              (or (withdraw-deferred-response deferred-response) (deferred-response-over-p deferred-response)))
         (values nil
                 (or condition
                     ;; See ANSWER-REFUSAL.
                     (unless (eq :error (client-side (exchange-protocol *exchange*)))
                       (failure "The handler was left before its deferred reply was complete.")))
                 backtrace))
        (t
         (when condition                ; the client gets its answer all the same
           (log-handler-error condition backtrace))
         (cond ((completion-p (deferred-response-answer deferred-response))
                (completed-content (take-answer deferred-response)))
               ((connection-taken-p)
                (withdraw-deferred-response deferred-response)
                :later)
               (t
                (leave-reply deferred-response)
                :later)))))

(defun leave-reply (deferred-response)
  "Leaves the current request until DEFERRED-RESPONSE is answered."
  (let ((context (deferred-response-context deferred-response))
        (content (own-content hunchentoot:*request*)))
    (when content
      (keep-reply-from content)
      (end-taking content))
    (uninterruptibly                    ; else files would be left to nobody
      (add-files context (take-temporary-files))
      (setf (deferred-reply-session context) hunchentoot:*session*
            (deferred-reply-stream context) (current-stream)
            (http-suspended-exchange (current-http-connection)) deferred-response))))
