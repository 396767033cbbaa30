(in-package #:hunchentoot-recycling-taskmaster)

;;;; Replies that come later.  A handler defers its reply and returns; its worker turns to other
;;;; requests.  Any thread completes the reply; a worker binds the context of the request again, and
;;;; sends it.  The server's later.lisp has the states.
;;;;
;;;;   when the handler has returned,    and the connection    then
;;;;   the reply is complete                                   it is sent at once
;;;;   it is not                         needs no worker       the connection waits
;;;;   it is not                         needs its worker      the worker waits with it
;;;;
;;;;   a handler that is left by an error or a throw, before the reply is complete: 500 is sent

(defstruct (deferred-reply (:include deferred-response) (:copier nil))
  "A reply that comes later, with the dynamic context of its request.  Several threads may use it at
a time, the handler's among them.  Since a program may keep it after its request is over, the end
of the request removes the large objects."
  (acceptor nil :read-only t)
  (objects '() :type list)              ; request and reply; () from the end on
  (stream nil)                          ; Hunchentoot's, once the handler was left
  (files '()))                          ; temporary ones, deleted at the end; :DELETED from then on

(setf (documentation 'deferred-reply-p 'function)
      "True when OBJECT, the argument, is a reply that DEFER-REPLY has deferred.")

(define-condition reply-failed (recycling-error)
  ((reason :initarg :reason :reader reply-failed-reason))
  (:report (lambda (condition stream)
             (princ (reply-failed-reason condition) stream)))
  (:documentation "The reason of FAIL-REPLY, or of a reply that was left incomplete; its error page
shows it."))

(defun add-files (reply files)
  "Has FILES deleted at the end of REPLY, or at once when it is over."
  (loop for others = (deferred-reply-files reply)
        do (cond ((eq :deleted others)
                  (return (delete-files files)))
                 ((compare-and-set (deferred-reply-files reply) others (append files others))
                  (return)))))

;;; In the handler

(defmacro defer-reply ((reply &key (timeout :default) on-abandon) &body body)
  "Defers the reply to the current request, and evaluates BODY with the variable REPLY bound to it.
BODY hands REPLY to a thread that calls COMPLETE-REPLY, FAIL-REPLY or START-STREAM, at any time.
Then the handler returns; its value is not sent.

TIMEOUT is how many seconds the reply may take before the client gets status 504, a real, or NIL for
no limit; by default the acceptor's :REPLY-TIMEOUT.  ON-ABANDON is NIL, or a function without
arguments.  It is called once, in any thread, when the client leaves before its reply was sent.  It
must not wait, and must not take a lock that another thread holds while it waits for room in a
stream.

Any thread can read the request's content in the context of REPLY.

When the handler is left by an error or a throw before REPLY is complete, the client gets status
500.  A forgotten REPLY ends by its TIMEOUT.  Returns the values of BODY.  Signals CANNOT-DEFER."
  `(call-deferring (lambda (,reply) ,@body) ,timeout ,on-abandon))

(defun check-deferrable ()
  "Signals CANNOT-DEFER unless the reply to the current request can be deferred."
  (flet ((refuse (reason)
           (error 'cannot-defer :reason reason)))
    (cond ((null (current-head)) (refuse "no request of ours is being handled"))
          (*headers-sent* (refuse "it has begun"))
          ((exchange-deferred-response *exchange*) (refuse "it was deferred before"))
          ((exchange-upgrade *exchange*) (refuse "its connection becomes a WebSocket")))))

(defun call-deferring (function timeout on-abandon)
  "The function behind DEFER-REPLY.  FUNCTION is its body, and takes the reply."
  (check-deferrable)
  (let ((reply (defer-response #'make-deferred-reply *exchange* timeout on-abandon
                               :acceptor hunchentoot:*acceptor*
                               :objects (list hunchentoot:*request* hunchentoot:*reply*))))
    (unless-returned (funcall function reply)
      (withdraw-deferred-response reply))))

;;; In any thread

(defun complete-reply (reply content &key status headers content-type)
  "Completes REPLY, which DEFER-REPLY has deferred, with CONTENT: a string, a vector of octets, the
pathname of a file, or NIL for Hunchentoot's page of STATUS.  CONTENT may also be a function without
arguments that returns one of these; it is called in the context of the request, and must not wait.
STATUS, an integer, HEADERS, an alist of keywords or strings and values, and CONTENT-TYPE, a string,
are set in the reply where they are not NIL; other settings of the handler stay.

May be called in any thread.  True while the client waits for the reply; NIL when the client has
left or the time has run out.  Signals REPLY-ALREADY-SENT when REPLY was completed before."
  (answer-deferred-response reply
                            (lambda ()
                              (settle-reply status headers content-type)
                              (typecase content
                                (pathname
                                 (values (catch 'handler-done
                                           (hunchentoot:handle-static-file content))))
                                (function
                                 ;; A second value, as SESSION-VALUE has, is not a condition.
                                 (values (catch 'handler-done (funcall content))))
                                (t content)))))

(defun fail-reply (reply &key (reason "The reply failed."))
  "Completes REPLY as a failing handler does, with status 500.  REASON, a condition or a string, is
logged, and the error page shows it where Hunchentoot shows errors.  Returns and signals what
COMPLETE-REPLY does."
  (answer-deferred-response reply
                            (lambda ()
                              (values nil
                                      (if (typep reason 'condition)
                                          reason
                                          (make-condition 'reply-failed :reason reason))))))

(defun reply-abandoned-p (reply)
  "True when the client of REPLY is known to have left, or the time of REPLY has run out.  A client
that has closed only its half of the connection counts as one that has left, but still gets the
content that completes REPLY."
  (or (deferred-response-left-p reply)
      (deferred-response-over-p reply)))

(defun call-with-reply-context (reply function)
  "Calls FUNCTION, without arguments, with Hunchentoot's *REQUEST*, *REPLY*, *SESSION* and
*ACCEPTOR* bound as they were in the handler that has deferred REPLY.  Returns the values of
FUNCTION.  Temporary files that FUNCTION makes live as long as those of the handler.  Any thread may
ask for raw post data and parameters; threads that change anything else in these objects have to
synchronise.  Signals CLIENT-LEFT when REPLY is over: it was sent, its client has left and
:ON-ABANDON was called, or its time has run out."
  (destructuring-bind (&optional request answer) (deferred-reply-objects reply)
    (unless request
      (error 'client-left))
    (let ((hunchentoot:*acceptor* (deferred-reply-acceptor reply))
          (hunchentoot:*reply* answer)
          (hunchentoot:*session* (hunchentoot:session request)) ; which any thread may have begun
          (*engine-of-context* (suspended-exchange-engine reply)))
      (flet ((call-it ()
               (call-as-request request function (lambda (files) (add-files reply files)))))
        (if (boundp '*hunchentoot-stream*) ; in a handler
            (call-it)
            ;; It stands for the connection's, for Hunchentoot's functions that read content.
            (let ((*hunchentoot-stream*
                    (content-as-stream (or (own-content request) *no-content*))))
              (call-it)))))))

(defmacro with-reply-context ((reply) &body body)
  "Evaluates BODY as CALL-WITH-REPLY-CONTEXT calls a function for REPLY."
  `(call-with-reply-context ,reply (lambda () ,@body)))

;;; Answers: functions of no arguments that return what a handler would; or NIL and a condition

(defun settle-reply (status headers content-type)
  "Sets these in the current reply where they are not NIL.  Returns NIL."
  (when status
    (setf (hunchentoot:return-code*) status))
  (when content-type
    (setf (hunchentoot:content-type*) content-type))
  (loop for (name . value) in headers
        do (setf (hunchentoot:header-out name) value)))

(defun call-answer (answer)
  "The values of ANSWER; NIL and the error if it fails."
  (handler-case (funcall answer)
    ((or error storage-condition) (condition)
      (values nil condition))))

;;; After the handler has returned

(defun deferred-result (reply left-p condition backtrace)
  "The result of the handler that has deferred REPLY; LEFT-P is true if it was left, and CONDITION
and BACKTRACE are those of its failure.  Returns content; :LATER when the reply comes later; or NIL,
a condition and a backtrace."
  (let ((request hunchentoot:*request*))
    (cond ((and (or condition left-p (deferred-response-over-p reply))
                (or (withdraw-deferred-response reply)
                    (deferred-response-over-p reply)))
           (values nil
                   (or condition
                       (make-condition
                        'reply-failed
                        :reason "The handler was left before its deferred reply was complete."))
                   backtrace))
          (t
           (when condition              ; the client gets its answer all the same
             (log-handler-error condition backtrace))
           (setf hunchentoot:*session* (hunchentoot:session request)) ; any thread's
           (cond ((functionp (deferred-response-state reply))
                  (call-answer (take-answer reply)))
                 ((not *close-hunchentoot-stream*) ; a program has taken the connection
                  (withdraw-deferred-response reply)
                  :later)
                 (t                     ; suspends the request until there is an answer
                  (add-files reply (shiftf *tmp-files* '()))
                  (setf (deferred-reply-stream reply) *hunchentoot-stream*
                        (http-suspended-exchange (exchange-http *exchange*)) reply)
                  :later))))))

;;; Deferred replies that go on

(defun call-resuming (reply function)
  "Calls FUNCTION, which goes on with REPLY, in its context.  Returns the connection's outcome."
  (let* ((exchange (deferred-response-exchange reply))
         (acceptor (deferred-reply-acceptor reply))
         (*exchange* exchange))
    (flet ((go-on ()
             (call-with-reply-context reply function)
             (cond ((deferred-response-shared-queue reply)
                    :deferred)          ; a stream, whose end is still to come
                   (t
                    (drop-deferred (exchange-application exchange) reply)
                    (conclude-exchange acceptor exchange)))))
      (declare (dynamic-extent #'go-on))
      (call-with-connection-stream exchange (deferred-reply-stream reply) #'go-on))))

(defmethod send-deferred-response ((taskmaster recycling-taskmaster) reply answer)
  (call-resuming reply
                 (lambda ()
                   (if (shared-queue-p answer)
                       (begin-outgoing reply answer)
                       (multiple-value-bind (content condition)
                           (call-answer (if (eq :expired answer)
                                            (lambda ()
                                              (settle-reply hunchentoot:+http-gateway-time-out+
                                                            '() nil))
                                            answer))
                         (send-result hunchentoot:*acceptor* hunchentoot:*request*
                                      content condition nil))))))

(defmethod end-stream ((taskmaster recycling-taskmaster) reply)
  (call-resuming reply
                 (lambda ()
                   ;; The head was sent by another call, in another dynamic context.
                   (when (exchange-kept-p *exchange*)
                     (setf *finish-processing-socket* nil)))))

(defmethod drop-deferred ((taskmaster recycling-taskmaster) reply)
  (setf (deferred-reply-objects reply) '()
        (deferred-reply-stream reply) nil)
  (loop for files = (deferred-reply-files reply)
        until (eq :deleted files)
        when (compare-and-set (deferred-reply-files reply) files :deleted)
          do (delete-files files))
  (note-cut (deferred-response-exchange reply)))
