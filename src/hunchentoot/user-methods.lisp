(in-package #:hunchentoot-recycling-taskmaster)

;;;; Methods of programs beside ours.  They are looked up at each start.

(defun methods-of-program (function &rest arguments)
  "The methods of FUNCTION for ARGUMENTS that are neither Hunchentoot's nor ours: these have one of
the classes below as their first specialiser, and T as the others."
  (let ((others (mapcar (constantly (find-class t)) (rest arguments))))
    (set-difference
     (compute-applicable-methods function arguments)
     (loop for name in '(parallel-ssl-acceptor parallel-acceptor
                         hunchentoot:ssl-acceptor hunchentoot:acceptor t)
           for class = (find-class name nil)
           append (loop for qualifiers in '(() (:around) (:after))
                        for method = (and class
                                          (find-method function qualifiers (cons class others) nil))
                        when method collect method)))))

(defun wraps-connections-p (acceptor)
  "True if the program has methods of PROCESS-CONNECTION for ACCEPTOR that come before ours."
  (some (lambda (method) (not (equal '(:after) (method-qualifiers method))))
        (methods-of-program #'hunchentoot:process-connection
                            acceptor
                            (make-instance 'usocket:stream-usocket :socket nil :stream nil))))
