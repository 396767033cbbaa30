(in-package #:clack.handler.recycling)

;;;; Applications that take too long, as they see it themselves; the server's handler-limit.lisp
;;;; answers in their place.

(defun watch-of (env)
  "The HANDLER-WATCH of the request with ENV, an environment, or NIL for the current one."
  (let ((exchange (if env (getf env :clack.io) *answered*)))
    (and (typep exchange 'exchange)
         (exchange-watch exchange))))

(defun request-timed-out-p (&optional env)
  "True when the application has taken longer than :HANDLER-TIMEOUT for the request with the
environment ENV, a plist, by default the request for which the current thread calls the application.
Then its client was answered 503, or its response was cut if that had begun, and what the
application returns is dropped.  Any thread may call this.  NIL without a request."
  (let ((watch (watch-of env)))
    (and watch
         (watch-late-p watch))))

(defun call-when-timed-out (function &optional env)
  "Has FUNCTION, without arguments, called once if the request with the environment ENV, a plist, by
default the request for which the current thread calls the application, runs into :HANDLER-TIMEOUT,
as for canceling a query for which the application waits.  It is called in a thread of its own after
the client was answered; at once, by the caller, if that has happened before; and not at all when
the application has returned.  It takes the place of the last such function of the request; NIL is
for none.  An error in it is logged.  Returns NIL."
  (call-when-late (watch-of env) function))
