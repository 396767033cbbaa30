(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; What goes on without a worker: a suspended exchange is the use of a connection, after a request
;;;; was read, while it waits.  It is a deferred response or a WebSocket.
;;;;
;;;; While an HTTP connection has a suspended exchange, SERVE continues that, and reads no request.
;;;; Invariant: the caller of CONTINUE-OVER owns the connection, or is the worker that keeps it,
;;;; where there is no poller, or a program reads the connection itself.

(defstruct (suspended-exchange (:include opaque) (:constructor nil) (:copier nil))
  "The use of a connection that needs no worker while it waits."
  ;; The HTTP-SERVICE of SUSPENDED-EXCHANGE.
  (application nil :read-only t)
  ;; The engine of the connection of SUSPENDED-EXCHANGE.
  (engine nil :read-only t)
  ;; The CONNECTION of the engine on which SUSPENDED-EXCHANGE continues.
  (connection nil :read-only t)
  ;; The thread that continues SUSPENDED-EXCHANGE, or runs its handler; NIL while there is none.
  (owner (bt:current-thread))
  (lock (bt:make-lock "suspended exchange") :read-only t)
  (keeper nil)                          ; a condition variable, if a worker keeps the connection
  (resumed-p nil))                      ; that worker has something to do

(defgeneric continue-over (suspended-exchange http)
  (:documentation "Continues SUSPENDED-EXCHANGE over HTTP as far as possible without waiting.
Returns an outcome as SERVE does: :DEFERRED as long as more is to come."))

(defgeneric abandon (suspended-exchange)
  (:documentation "Ends SUSPENDED-EXCHANGE, whose connection is about to be closed.  The result has
no meaning."))

(defun resume (suspended-exchange)
  "Has SUSPENDED-EXCHANGE continued by a worker, since there is work for it.  Any thread may call
this, and does not wait."
  (let ((keeper (suspended-exchange-keeper suspended-exchange))) ; set before its first look
    (if keeper
        (with-lock-briefly ((suspended-exchange-lock suspended-exchange))
          (setf (suspended-exchange-resumed-p suspended-exchange) t)
          (bt:condition-notify keeper))
        (resume-connection (suspended-exchange-engine suspended-exchange)
                           (suspended-exchange-connection suspended-exchange)))))

(defun peer-left-p (suspended-exchange)
  "True when the peer of SUSPENDED-EXCHANGE will send no more, or is gone, as the poller has
reported, or the system says where a worker keeps the connection."
  (let* ((connection (suspended-exchange-connection suspended-exchange))
         (base (http-base (connection-data connection))))
    (or (and (connection-parkable-p connection) (peer-ended-p connection))
        (and base
             (suspended-exchange-keeper suspended-exchange)
             (io-descriptor base)
             (await-descriptor (io-descriptor base) :end :until (milliseconds))))))

(defun send-rest (io)
  "Sends the queue of IO; waits for the peer.  NIL when that is gone, or takes no octets in time."
  (handler-case (progn (send-output io) t)
    ((or descriptor-broken stream-timeout) () nil)))

(defun continue-http-connection (http &optional (event-p t))
  "Continues the suspended exchange of HTTP.  Returns an outcome as SERVE does; :BROKEN where the
peer is gone, or there is no memory for its waiting input.  EVENT-P is true where the caller may
have got an event of input, which the poller will not repeat: so the next reader has to look."
  (let ((suspended-exchange (http-suspended-exchange http))
        (io (http-io http)))
    (when event-p
      (setf (io-drained-p io) nil))
    (setf (suspended-exchange-owner suspended-exchange) (bt:current-thread))
    (unwind-protect
         (handler-case
             (let ((outcome (continue-over suspended-exchange http)))
               (cond ((not (member outcome '(:deferred :again)))
                      (release-input io) ; it has ended
                      outcome)
                     ((keep-waiting-input (suspended-exchange-engine suspended-exchange) http)
                      outcome)
                     (t :broken)))
           ;; DESCRIPTOR-BROKEN, STREAM-TIMEOUT, or the error of a stream of the Lisp.
           (stream-error () :broken))
      (setf (suspended-exchange-owner suspended-exchange) nil))))

(defun abandon-suspended-exchange (http)
  "Abandons the suspended exchange of HTTP, if there is one.  HTTP has it until that is done: where
the thread is destroyed meanwhile, the last release of the connection abandons it again."
  (let ((suspended-exchange (http-suspended-exchange http)))
    (when suspended-exchange
      (abandon suspended-exchange)
      (setf (http-suspended-exchange http) nil))))

(defun leave-or-keep (exchange)
  "Lets the connection of EXCHANGE wait without a worker; or continues its suspended exchange to the
end in the current worker, which waits.  Returns an outcome as SERVE does, :CLOSE when the engine
stops before.  The worker looks twice a second whether the client has left, its time has run out or
the engine stops; more often, whether there are octets to send, while it waits for input."
  (let* ((connection (exchange-connection exchange))
         (http (exchange-http exchange))
         (io (http-io http))
         (suspended-exchange (http-suspended-exchange http)))
    (if (and (connection-parkable-p connection)
             (not (io-source io))
             (engine-sends-p io))
        :deferred
        (loop
          initially (setf (suspended-exchange-keeper suspended-exchange)
                          (bt:make-condition-variable))
          do (let ((outcome (continue-http-connection http)))
               (unless (member outcome '(:deferred :again))
                 (return outcome)))
             (unless (send-rest io)
               (return :broken))        ; the release wakes threads that wait for room
             (unless (serving-p (exchange-engine exchange))
               (abandon-suspended-exchange http) ; a hard stop waits for no client
               (return :close))
             (if (reads-on-p suspended-exchange)
                 (when (and (not (input-waiting-p io))
                            (await-input (connection-handle connection)
                                         :until (end-after 1/20))
                            (io-source io)
                            ;; Where another stream stands between, a reader may have to wait
                            ;; although a few octets have come.
                            (not (or (io-beneath io) (io-tls-handle io))))
                   ;; LISTEN of ABCL may not show what the socket has, or its end.
                   (setf (io-source-ready-p io) t))
                 (wait-until (lambda ()
                               (shiftf (suspended-exchange-resumed-p suspended-exchange) nil))
                             (suspended-exchange-keeper suspended-exchange)
                             (suspended-exchange-lock suspended-exchange)
                             1/2 nil))))))
