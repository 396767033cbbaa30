(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; Detaching: a program takes a connection away.

(defun give-away (application connection http)
  "Leaves the socket of CONNECTION, with HTTP, to a program under APPLICATION.  Returns the outcome
for CONNECTION."
  (let ((base (http-base http)))
    (pace-io (http-io http) nil nil)
    (abandon-content http)              ; a non-local exit out of the request has not done so
    (cond ((null base)
           (setf (connection-outcome connection) :detached))
          ((null (io-descriptor base)) :close)
          ((encrypted-p application)
           (finish-output (http-stream http))
           ;; OpenSSL has the number of the descriptor, so the program must get this one.  From then
           ;; on that number may at any moment be that of another connection.
           (detach (worker-engine *worker*) connection)
           (setf (connection-outcome connection) :detached)
           (if (hand-descriptor-over base)
               (end-when-forgotten base)
               ;; The program has just closed it.
               (close-socket (connection-descriptor connection)))
           :detached)
          (t
           (usocket:socket-stream (connection-usocket connection)) ; lends that
           (if (lent-open-p base)
               (leave-to-program connection base)
               :close)))))

(defun end-when-forgotten (base)
  "Registers a finalizer that ends the TLS session on BASE, which a program has taken away."
  (let ((session (io-tls base)))
    (when session
      (call-when-forgotten (io-stream base) (lambda () (abandon-tls-session session))))))

(defun leave-to-program (connection io)
  "Leaves the streams of CONNECTION, with IO, to the program.  Returns the outcome for CONNECTION:
its own descriptor is closed, without a farewell."
  ;; This outcome holds also if one of the next steps fails.
  (setf (connection-outcome connection) :broken)
  (leave-to-lent io)
  (setf (connection-data connection) nil
        (connection-socket connection) nil)
  :broken)
