(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; A deferred reply whose connection a worker keeps meanwhile, since there is no poller, or a
;;;; program reads the connection itself.  The thread that answers notifies the worker, which acts
;;;; as the owner.

(defparameter *keeping-seconds* 1/2
  "How often a worker that keeps a connection for a deferred reply checks whether the client has
left or the engine stops.")

(defmethod keep-suspended-exchange ((deferred-response deferred-response) http)
  "Waits until DEFERRED-RESPONSE was answered and sent over HTTP.  Returns :CLOSE when the engine
stops before."
  (setf (deferred-response-keeper deferred-response) (bt:make-condition-variable))
  (unwind-protect-whole
      (loop
        (let ((outcome (continue-http-connection http nil)))
          (unless (eq :deferred outcome)
            (return outcome))
          (cond ((null (io-unsent (http-io http)))
                 (unless (resumed-in-time-p deferred-response)
                   (return :close)))
                ((not (send-rest (http-io http))) ; then abandoning wakes threads that wait for room
                 (return :broken)))))
    (abandon-suspended-exchange http)))

(defun resumed-in-time-p (deferred-response)
  "Waits until DEFERRED-RESPONSE is resumed, its deadline has passed, or its client has left.  NIL
when its engine stops before."
  (loop
    (let* ((end (and (deferred-response-pending-p deferred-response) ; a stream has no deadline
                     (deferred-response-end deferred-response)))
           (left (and end (/ (max 1 (milliseconds-left end)) 1000))))
      (when (wait-until (lambda () (shiftf (deferred-response-resumed-p deferred-response) nil))
                        (deferred-response-keeper deferred-response)
                        (deferred-response-lock deferred-response)
                        (if left (min left *keeping-seconds*) *keeping-seconds*)
                        nil)
        (return t))
      (when (or (and (late-p deferred-response) (deferred-response-pending-p deferred-response))
                (ends-with-engine-p deferred-response)
                (if (deferred-response-left-p deferred-response)
                    (connection-failed-p deferred-response)
                    (kept-peer-left-p deferred-response)))
        (return t))
      (unless (serving-p (suspended-exchange-engine deferred-response))
        (return nil)))))
