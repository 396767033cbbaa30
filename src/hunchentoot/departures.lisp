(in-package #:hunchentoot-recycling-taskmaster)

;;;; Clients that leave, are too slow, or do not speak HTTP.  These are no errors of the program, so
;;;; they do not enter the debugger where HUNCHENTOOT:*CATCH-ERRORS-P* is NIL.

(macrolet ((define-departures (&rest conditions)
             `(progn
                ,@(loop for condition in conditions
                        collect `(defmethod hunchentoot:maybe-invoke-debugger
                                     ((condition ,condition))
                                   "Does nothing, since the client has caused CONDITION."
                                   nil)))))
  (define-departures client-left protocol-error))

(defmethod hunchentoot:maybe-invoke-debugger ((condition end-of-file))
  "Does nothing where the content of a request ends too early."
  (unless (typep (ignore-errors (stream-error-stream condition)) 'content)
    (call-next-method)))
