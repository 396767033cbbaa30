(in-package #:hunchentoot-recycling-taskmaster)

;;;; Clients that leave, are too slow, or send what is no HTTP: that is no error of the program, and
;;;; nobody is to look at it in the debugger, though HUNCHENTOOT:*CATCH-ERRORS-P* is NIL.

(macrolet ((define-departures (&rest conditions)
             `(progn
                ,@(loop for condition in conditions
                        collect `(defmethod hunchentoot:maybe-invoke-debugger
                                     ((condition ,condition))
                                   "Does nothing: the client is why it was signalled."
                                   nil)))))
  (define-departures descriptor-broken stream-timeout protocol-error client-left))

(defmethod hunchentoot:maybe-invoke-debugger ((condition end-of-file))
  "Does nothing where the content of a request ends too early."
  (unless (typep (ignore-errors (stream-error-stream condition)) 'content)
    (call-next-method)))
