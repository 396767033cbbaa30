(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; Calls of the service whose errors only count, and what else may fail in a thread of an engine.

(defun count-failure (engine)
  "Counts a failure while ENGINE served a connection, or did something for one."
  (with-engine (engine)
    (incf (tally-failed (engine-tally engine)))))

(defmacro counting-failures ((engine value) &body body)
  "Evaluates BODY, which calls the service of ENGINE.  A failure is only counted; VALUE stands for
the value then."
  `(handler-case (progn ,@body)
     ((or error storage-condition) ()
       (count-failure ,engine)
       ,value)))

(defun release-connection (engine connection)
  "Lets the service RELEASE CONNECTION of ENGINE, and returns its value; true after a failure."
  (counting-failures (engine t)
    (release (engine-service engine) connection)))

(defun notice-given-p (engine connection)
  "True if the service of ENGINE has told the peer of CONNECTION why that ends: see GIVE-NOTICE."
  (counting-failures (engine nil)
    (give-notice (engine-service engine) connection)))

(defun count-refused (engine reason)
  "Counts a connection that ENGINE has refused because of REASON, one of *REFUSAL-REASONS*."
  (with-engine (engine)
    (incf (getf (tally-refused-by (engine-tally engine)) reason))))

(defun refuse-with-notice (engine connection reason)
  "Counts CONNECTION, which ENGINE has just accepted, and refuses because of REASON, one of
*REFUSAL-REASONS*, and lets the service tell its peer.  The value is that of NOTICE-GIVEN-P."
  (count-refused engine reason)
  (setf (connection-deadline-kind connection) reason)
  (notice-given-p engine connection))

(defun without-reports (arguments)
  "ARGUMENTS, with the types of conditions in their places."
  (mapcar (lambda (argument)
            (if (typep argument 'condition) (type-of argument) argument))
          arguments))

(defgeneric call-noting (engine function)
  (:documentation "Calls FUNCTION, which lets the service of ENGINE log a message, and may take
long.")
  (:method ((engine engine) function)
    (funcall function)))

(defun log-message (engine level control &rest arguments)
  "Lets the service of ENGINE NOTE an event; LEVEL, CONTROL and ARGUMENTS are for that.  A
failure of it is only counted."
  (let ((service (engine-service engine)))
    (handler-case (call-noting engine (lambda () (apply #'note service level control arguments)))
      ((or error storage-condition) ()
        (count-failure engine)
        ;; The report of a condition may have failed, and would remain unknown.
        (when (some (lambda (argument) (typep argument 'condition)) arguments)
          (handler-case (apply #'note service level control (without-reports arguments))
            ((or error storage-condition) () nil)))))))

(defmacro noting-end ((engine) &body body)
  "Evaluates BODY, the life of a thread of ENGINE, which can be interrupted only within
INTERRUPTIBLY.  An error there, of an interrupt, is counted and logged, and ends the thread."
  `(handler-case (uninterruptibly ,@body)
     (serious-condition (condition)
       (count-failure ,engine)
       (log-message ,engine :error "A thread ends, and is replaced: ~A" condition))))
