(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; The time limit of a handler: when it has passed, the sentinel answers 503 on the handler's
;;;; behalf.  The handler runs on, and so does its worker, which owns the connection.  Whoever
;;;; changes the claim of the EXCHANGE first, by compare-and-set, has the reply:
;;;;
;;;;   claim       event                                  becomes      action
;;;;   :RUNNING    the handler's reply begins             :REPLYING
;;;;               the handler is left                    :OVER
;;;;               the limit has passed                   :LATE        the sentinel sends 503, and
;;;;                                                                   shuts the connection down
;;;;   :REPLYING   the handler is left                    :OVER
;;;;               the limit has passed                   :LATE        the sentinel shuts it down
;;;;   :LATE       the handler's reply begins             -            DESCRIPTOR-BROKEN
;;;;               the handler is left                    -            its reply is dropped
;;;;
;;;; The sentinel and no timer looks after the limit, because handlers that are late may have all
;;;; workers, and timers need one.

(defmacro change-state (place &rest states)
  "Changes PLACE by compare-and-set to the state that follows its state in STATES, if there is one.
Returns the state before."
  `(loop for state = ,place
         for next = (getf ',states state)
         when (or (null next) (compare-and-set ,place state next))
           return state))

(defun handler-timed-out-p (exchange)
  "True when the sentinel has acted in place of the handler of EXCHANGE."
  (eq :late (exchange-claim exchange)))

;;; The worker

(defun call-with-handler-limit (exchange function)
  "Calls FUNCTION, the handler of EXCHANGE, under the limit of its application.  Returns the values
of FUNCTION."
  (let ((seconds (limits-handler-seconds (application-limits (exchange-application exchange))))
        (http (exchange-http exchange)))
    (cond ((null seconds) (funcall function))
          (t
           (setf (exchange-claim exchange) :running
                 (exchange-limit exchange) (end-after seconds)
                 (http-limited-exchange http) exchange)
           (set-deadline-at (exchange-connection exchange) :handler (exchange-limit exchange))
           (unwind-protect (funcall function)
             (lift-handler-limit exchange)
             (setf (http-limited-exchange http) nil
                   (connection-deadline (exchange-connection exchange)) nil))))))

(defun begin-limited-reply (exchange)
  "Notes that the reply of EXCHANGE begins now.  Signals DESCRIPTOR-BROKEN where the client was
answered in place of the handler."
  (when (eq :late (change-state (exchange-claim exchange) :running :replying))
    (fail-as-broken (http-io (exchange-http exchange)))))

(defun lift-handler-limit (exchange)
  "Ends the limit of the handler of EXCHANGE, if there is one.  NIL when it has passed, and the
handler's reply is not to be sent: the sentinel has answered by then."
  (or (not (eq :late (change-state (exchange-claim exchange) :running :over :replying :over)))
      (bt:with-lock-held ((application-late-lock (exchange-application exchange)))
        nil)))

;;; The sentinel

(defmethod time-out-handler ((application http-service) connection)
  (let* ((http (connection-data connection))
         (exchange (and http (http-limited-exchange http)))
         (refusal (make-refusal :handler-timeout))
         (claim nil))
    (when (and exchange (<= (exchange-limit exchange) (milliseconds)))
      ;; A worker whose handler is left now waits until the answer is sent.
      (bt:with-lock-held ((application-late-lock application))
        (setf claim (change-state (exchange-claim exchange) :running :late :replying :late))
        (when (eq :running claim)
          (setf (exchange-status exchange) (protocol-error-status refusal))
          (handler-case (send-refusal (http-io http) refusal
                                      (eq :head (head-method (exchange-head exchange))))
            (stream-error () nil))))    ; the client is gone
      (when (member claim '(:running :replying))
        (when (eq :running claim)
          (note-rejected application http refusal (exchange-head exchange)))
        (count-late (exchange-engine exchange) :handler)
        (wake-from-client (exchange-engine exchange) connection :io)))))

;;; For programs

(defun request-timed-out-p ()
  "True when the handler that the current thread runs, or the application of Clack, has run for
longer than :HANDLER-TIMEOUT.  Then its client was answered 503, or its reply was cut if that had
begun, and what the handler returns is dropped.  NIL without a request."
  (and *exchange* (handler-timed-out-p *exchange*)))
