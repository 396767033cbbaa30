(in-package #:hunchentoot-recycling-taskmaster)

;;;; Methods of programs beside ours.  Those of PROCESS-CONNECTION decide how the connections of an
;;;; acceptor are read:
;;;;
;;;;   kind       methods                  the server
;;;;   :OWN       none, or :AFTER          reads a request, then calls the function for it
;;;;   :WRAPPED   :AROUND or :BEFORE       looks ahead for a request, calls the function for it, and
;;;;                                       then reads it, since the method may read first
;;;;   :FOREIGN   one without qualifier    calls the function once for a connection that has input
;;;;
;;;; They are looked up at each start.

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

(defun connection-kind-of (acceptor)
  "The kind of ACCEPTOR's connections; see the table above."
  (let ((qualifiers (mapcar #'method-qualifiers
                            (methods-of-program #'hunchentoot:process-connection
                                                acceptor
                                                (make-instance 'usocket:stream-usocket
                                                               :socket nil :stream nil)))))
    (cond ((member '() qualifiers) :foreign)
          ((or (member '(:around) qualifiers :test #'equal)
               (member '(:before) qualifiers :test #'equal))
           :wrapped)
          (t :own))))
