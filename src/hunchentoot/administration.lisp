(in-package #:hunchentoot-recycling-taskmaster)

(defmethod stats ((server hunchentoot:acceptor))
  (let ((engine (server-engine server))
        (taskmaster (acceptor-taskmaster* server)))
    (append
     (cond ((or engine (typep taskmaster 'recycling-taskmaster))
            (engine-stats engine))
           (t
            (loop for name in (append *statistics* '(:errors :in-progress))
                  collect name
                  collect (case name
                            (:threads (hunchentoot:taskmaster-thread-count taskmaster))
                            (:busy (requests-in-progress server))))))
     (rejection-statistics server)
     (handshake-statistics server)
     (list :log-dropped (lines-lost server)))))

(defmethod list-connections ((server hunchentoot:acceptor))
  (let ((engine (and (hunchentoot:started-p server) (server-engine server))))
    (and engine (list-engine-connections engine))))

(defmethod ready-p ((server hunchentoot:acceptor))
  (let ((engine (server-engine server)))
    (if engine
        (engine-ready-p engine)
        (hunchentoot:started-p server)))) ; another taskmaster than ours has no drain

(define-condition recycling-taskmaster-corrupted-error (recycling-error)
  ((acceptor :initarg :acceptor :reader corrupted-acceptor)
   (problems :initarg :problems :reader corruption-problems))
  (:report (lambda (condition stream)
             (format stream "~A has threads that were destroyed and live:~{~%  ~A~}"
                     (corrupted-acceptor condition) (corruption-problems condition))))
  (:documentation "Signalled by ABANDON-ACCEPTOR when threads have survived their destruction.  The
restart RETRY destroys the threads once more, and IGNORE goes on."))

(defun check-abandonable (acceptor engine)
  "Signals HUNCHENTOOT:PARAMETER-ERROR if ACCEPTOR was started, but not by ENGINE."
  (when (and (null engine) (hunchentoot:started-p acceptor))
    (hunchentoot:parameter-error
     "ABANDON-ACCEPTOR cannot destroy the threads of ~A: only its taskmaster, ~A, which is no ~
      RECYCLING-TASKMASTER, knows them.  HUNCHENTOOT:STOP it."
     acceptor (acceptor-taskmaster* acceptor))))

(defun abandon-acceptor (acceptor)
  "The last resort when STOP does not help, for the REPL: destroys every thread of ACCEPTOR in the
middle of its work, frees the port, and returns ACCEPTOR, which can be started again.

Signals RECYCLING-TASKMASTER-CORRUPTED-ERROR, with restarts RETRY and IGNORE, when threads survive.
Signals STOP-FROM-WORKER in a request handler of ACCEPTOR.  Signals HUNCHENTOOT:PARAMETER-ERROR when
another taskmaster than a RECYCLING-TASKMASTER has started ACCEPTOR, since only that knows its
threads."
  (let ((engine (server-engine acceptor)))
    (check-abandonable acceptor engine)
    (loop
      (when engine
        (abandon-engine engine))
      (stop-listening acceptor (and engine (engine-listener engine)))
      (settle-logs acceptor)
      (restart-case (let ((survivors (and engine (threads-left engine))))
                      (when survivors
                        (error 'recycling-taskmaster-corrupted-error
                               :acceptor acceptor :problems survivors))
                      (return acceptor))
        (retry ()
          :report "Destroy the threads once more.")
        (ignore ()
          :report "Go on without them."
          (return acceptor))))))
