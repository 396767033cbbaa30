(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; A reply that comes later, where a worker keeps the connection meanwhile: where there is no poller, or a program
;;;; reads the connection itself.  Who answers notifies the worker, which does all that an owner does.

(defparameter *keeping-seconds* 1/2
  "How often a worker that keeps a connection, for an answer that comes later, looks whether its client has left or its
engine stops.")

(defmethod keep-continuation ((deferral deferral) link)
  "Waits until DEFERRAL was answered over LINK.  :CLOSE when the engine stops before."
  (setf (deferral-keeper deferral) (bt:make-condition-variable))
  (unwind-protect-whole
      (loop
        (let ((outcome (continue-link link nil)))
          (unless (eq :deferred outcome)
            (return outcome))
          (cond ((null (wire-unsent (link-wire link)))
                 (unless (visited-in-time-p deferral)
                   (return :close)))
                ((not (unsent-sent-p (link-wire link))) ; then who waits for room is told
                 (return :broken)))))
    (abandon-continuation link)))

(defun visited-in-time-p (deferral)
  "Waits until DEFERRAL is visited, its deadline has passed, or its client has left.  NIL when its engine stops before."
  (loop
    (let* ((end (and (deferral-pending-p deferral) ; a stream has none
                     (deferral-end deferral)))
           (left (and end (/ (max 1 (milliseconds-left end)) 1000))))
      (when (wait-until (lambda () (shiftf (deferral-visited-p deferral) nil))
                        (deferral-keeper deferral) (deferral-lock deferral)
                        (if left (min left *keeping-seconds*) *keeping-seconds*)
                        nil)
        (return t))
      (when (or (and (late-p deferral) (deferral-pending-p deferral))
                (ends-with-engine-p deferral)
                (if (deferral-left-p deferral)
                    (connection-failed-p deferral)
                    (kept-peer-left-p deferral)))
        (return t))
      (unless (serving-p (continuation-engine deferral))
        (return nil)))))
