(in-package #:hunchentoot-recycling-taskmaster)

;;;; Handlers that take too long, as their programs see them; the server's handler-limit.lisp
;;;; answers in their place.

(defun note-watch (request watch)
  "Keeps WATCH, of the handler of REQUEST, there for any thread that has REQUEST."
  (setf (hunchentoot:aux-request-value 'watch request) watch))

(defun watch-of (request)
  (and request
       (hunchentoot:aux-request-value 'watch request)))

(defun request-timed-out-p (&optional (request (current-request)))
  "True when the handler of REQUEST, by default the current one, has run for longer than the
acceptor's :HANDLER-TIMEOUT.  Then its client was answered 503, or its reply was cut if that had
begun, and what the handler returns is dropped.  Any thread may call this.  NIL without a request."
  (let ((watch (watch-of request)))
    (and watch
         (watch-late-p watch))))

(defun call-when-timed-out (function &optional (request (current-request)))
  "Has FUNCTION, without arguments, called once if REQUEST, by default the current one, runs into
the acceptor's :HANDLER-TIMEOUT, as for canceling a query for which the handler waits.  It is called
in a thread of its own after the client was answered; at once, by the caller, if that has happened
before; and not at all when the handler has returned.  It takes the place of the last such function
of REQUEST; NIL is for none.  An error in it is logged.  Returns NIL."
  (call-when-late (watch-of request) function))
