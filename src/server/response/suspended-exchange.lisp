(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; A suspended exchange: the use of a connection, after a request was read, that needs no worker
;;;; while it waits.  It is a deferred reply, a stream of events, or another protocol.
;;;;
;;;; While an HTTP connection has a suspended exchange, SERVE continues that, and reads no request.
;;;; Invariant: the caller of CONTINUE-OVER owns the connection, or is the worker that keeps it.

(defstruct (suspended-exchange (:include opaque) (:constructor nil) (:copier nil))
  "The use of a connection that needs no worker while it waits."
  ;; The HTTP-SERVICE of SUSPENDED-EXCHANGE.
  (application nil :read-only t)
  ;; The engine of the connection of SUSPENDED-EXCHANGE.
  (engine nil :read-only t)
  ;; The CONNECTION of the engine on which SUSPENDED-EXCHANGE continues.
  (connection nil :read-only t))

(defgeneric continue-over (suspended-exchange http resuming-p)
  (:documentation "Continues SUSPENDED-EXCHANGE over HTTP as far as possible without waiting.
Returns an outcome as SERVE does: :DEFERRED as long as more is to come.  If RESUMING-P, the current
thread may be any, and must not read."))

(defgeneric abandon (suspended-exchange)
  (:documentation "Ends SUSPENDED-EXCHANGE, whose connection is about to be closed.  The result has
no meaning."))

(defgeneric suspended-exchange-memory (suspended-exchange)
  (:documentation "How many octets of memory, an integer, SUSPENDED-EXCHANGE keeps while it waits
without a worker, besides its input.")
  (:method ((suspended-exchange suspended-exchange))
    0))

(defgeneric resume (suspended-exchange)
  (:documentation "Has SUSPENDED-EXCHANGE continued, in the current thread or another one, since
there is work for it.")
  (:method ((suspended-exchange suspended-exchange))
    (resume-connection (suspended-exchange-engine suspended-exchange)
                       (suspended-exchange-connection suspended-exchange))))

(defgeneric keep-suspended-exchange (suspended-exchange http)
  (:documentation "Continues SUSPENDED-EXCHANGE over HTTP to its end, in the current worker, which
waits.  Returns an outcome as SERVE does."))

(defun peer-left-p (suspended-exchange)
  "True when the poller has reported that the peer of SUSPENDED-EXCHANGE will send no more, or is
gone."
  (let ((connection (suspended-exchange-connection suspended-exchange)))
    (and (connection-parkable-p connection)
         (peer-ended-p connection))))

(defun kept-peer-left-p (suspended-exchange)
  "Like PEER-LEFT-P, where a worker keeps the connection of SUSPENDED-EXCHANGE.  Asks the system,
since the poller may not watch the connection."
  (let* ((http (connection-data (suspended-exchange-connection suspended-exchange)))
         (base (http-base http)))
    (or (peer-left-p suspended-exchange)
        (and base (input-ended-p base)))))

(defun connection-failed-p (suspended-exchange)
  "True when the peer has reset the connection of SUSPENDED-EXCHANGE, or it has failed otherwise;
not when the peer has only closed its sending side.  Asks the system."
  (let ((base (http-base (connection-data (suspended-exchange-connection suspended-exchange)))))
    (and base (io-failed-p base))))

(defun send-rest (io)
  "Sends the queue of IO; waits for the peer.  NIL when that is gone, or takes no octets in time."
  (handler-case (progn (send-output io) t)
    ((or descriptor-broken stream-timeout) () nil)))

(defun continue-http-connection (http resuming-p)
  "The result of CONTINUE-OVER for the suspended exchange of HTTP; :BROKEN where the peer is gone,
or there is no memory for its waiting input."
  (let ((suspended-exchange (http-suspended-exchange http))
        (io (http-io http)))
    (handler-case
        (loop
          (let ((outcome (continue-over suspended-exchange http resuming-p)))
            (cond ((not (member outcome '(:deferred :again)))
                   (release-input io (input-memory io))     ; it has ended
                   (return outcome))
                  ((keep-waiting-input (suspended-exchange-engine suspended-exchange) http)
                   (return outcome))
                  (t
                   (return :broken)))))
      ;; DESCRIPTOR-BROKEN, STREAM-TIMEOUT, or the error of a stream of the Lisp.
      (stream-error () :broken))))

(defun continue-after-event (http)
  "Like CONTINUE-HTTP-CONNECTION, for a worker that has got an event.  The poller will not repeat an
event of input, so the next reader has to look."
  (setf (io-drained-p (http-io http)) nil)
  (continue-http-connection http nil))

(defun abandon-suspended-exchange (http)
  "Abandons the suspended exchange of HTTP, if there is one.  HTTP has it until that is done: where
the thread is destroyed meanwhile, the last release of the connection abandons it again."
  (let ((suspended-exchange (http-suspended-exchange http)))
    (when suspended-exchange
      (abandon suspended-exchange)
      (setf (http-suspended-exchange http) nil))))

(defun waits-alone-p (exchange http)
  "True when the connection of EXCHANGE, with HTTP, can wait without a worker."
  (and (connection-parkable-p (exchange-connection exchange))
       (not (http-waits-p http))
       (engine-sends-p (http-io http))))

(defun leave-or-keep (exchange)
  "Lets the connection of EXCHANGE wait without a worker, or keeps it in the current worker to the
end of the suspended exchange.  Returns an outcome as SERVE does."
  (let ((http (exchange-http exchange)))
    (if (waits-alone-p exchange http)
        :deferred
        (keep-suspended-exchange (http-suspended-exchange http) http))))
