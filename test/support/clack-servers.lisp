(in-package #:hunchentoot-recycling-taskmaster-test)

;;; Servers of Clack applications, without Clack: RUN in a thread, as CLACK:CLACKUP calls it.

(defmethod port-of ((server handler:clack-server))
  (handler:server-port server))

(defvar *clack-log* nil
  "What the server that WITH-CLACK has started tells people: a stream.")

(defvar *clack-stream* nil
  "The stream that is to be *CLACK-LOG*; NIL for a new string stream.")

(defun clack-log ()
  "All that the server has told people since this was called last."
  (taken-from-log *clack-log*))

(defun await-log (wanted)
  "Waits until what the server has told people since CLACK-LOG was called last has WANTED, a string,
or WANTED, a function, is true for it; returns that."
  (let ((told ""))
    (eventually ((format nil "the log to have ~S" wanted))
      (setf told (concatenate 'string told (clack-log)))
      (and (if (functionp wanted) (funcall wanted told) (search wanted told))
           told))))

(defun await-start-told ()
  "Waits until *SERVER* has told people, by *CLACK-LOG*, where it listens."
  (unless *clack-stream*
    (await-log "Listening on ")))

(defun start-clack (app arguments)
  "Starts a server of APP by RUN with ARGUMENTS in a thread of its own; returns it, and the task.
Signals what RUN does when it fails."
  (let* ((server nil)
         (log *clack-log*)
         (parking-p *parking-p*)
         (task (in-background ("a server of Clack")
                 (let ((*error-output* log))
                   (apply #'handler:run app
                          (append arguments
                                  (list :port 0 :parking parking-p
                                        :on-start (lambda (started) (setf server started)))))))))
    (eventually ("the server to start")
      (or server (task-done-p task)))
    (if server
        (values server task)
        (task-result task))))

(defun call-with-clack (app arguments function)
  "Calls FUNCTION while a server of APP, made with ARGUMENTS, runs."
  (let ((*clack-log* (or *clack-stream* (make-string-output-stream))))
    (multiple-value-bind (*server* task) (start-clack app arguments)
      (unwind-protect (progn (await-start-told)
                             (funcall function))
        (handler:stop *server*)
        (task-result task)))))

(defmacro with-clack ((environment response &rest arguments) &body body)
  "Evaluates BODY with *SERVER* bound to a server, made with ARGUMENTS, whose application returns
the value of RESPONSE, in which the variable ENVIRONMENT is bound to that of the request."
  `(call-with-clack (lambda (,environment)
                      (declare (ignorable ,environment))
                      ,response)
                    (list ,@arguments)
                    (lambda () ,@body)))

(defun text-response (&rest strings)
  "A response of Clack's with STRINGS."
  (list 200 '(:content-type "text/plain; charset=utf-8") strings))
