(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; What goes on over a connection once a request was read, and needs no worker: a reply that comes
;;;; later, a stream of events, another protocol.
;;;;
;;;; While an HTTP connection has a suspended exchange, SERVE continues that, and reads no request.
;;;; Invariant: who calls CONTINUE owns the connection, or is the worker that keeps it.

(define-record (suspended-exchange (:include opaque) (:constructor nil) (:copier nil))
  "What goes on over a connection."
  (application nil :read-only t
   :documentation "The HTTP-SERVICE for which SUSPENDED-EXCHANGE goes on.")
  (engine nil :read-only t
   :documentation "The engine of the connection of SUSPENDED-EXCHANGE.")
  (connection nil :read-only t
   :documentation "The engine's CONNECTION over which SUSPENDED-EXCHANGE goes on."))

(defgeneric continue-over (suspended-exchange http resuming-p)
  (:documentation "Goes on with SUSPENDED-EXCHANGE over HTTP as far as that is possible without
waiting, and returns what SERVE does: :DEFERRED as long as more is to come.  When RESUMING-P, the
thread may be any, and reads nothing."))

(defgeneric abandon (suspended-exchange)
  (:documentation "Tells SUSPENDED-EXCHANGE that its connection is about to be closed.  What it
returns does not matter."))

(defgeneric over-at-once-p (suspended-exchange)
  (:documentation "True when nothing of SUSPENDED-EXCHANGE is to be sent any more, also of what
waits for the peer.")
  (:method ((suspended-exchange suspended-exchange))
    nil))

(defgeneric suspended-exchange-memory (suspended-exchange)
  (:documentation "How many octets of memory SUSPENDED-EXCHANGE keeps, an integer, that count as
long as it waits without a worker, besides those of what has come for it.")
  (:method ((suspended-exchange suspended-exchange))
    0))

(defgeneric resume (suspended-exchange)
  (:documentation "Has SUSPENDED-EXCHANGE go on, by the current thread or by another one: there is
something for it.")
  (:method ((suspended-exchange suspended-exchange))
    (resume-connection (suspended-exchange-engine suspended-exchange) (suspended-exchange-connection suspended-exchange))))

(defgeneric keep-suspended-exchange (suspended-exchange http)
  (:documentation "Goes on, in the current worker, with SUSPENDED-EXCHANGE over HTTP to its end,
waiting for whatever it has to; returns what SERVE does."))

(defun peer-left-p (suspended-exchange)
  "True when the peer of SUSPENDED-EXCHANGE will send no more, or is gone, as far as the poller has
told."
  (let ((connection (suspended-exchange-connection suspended-exchange)))
    (and (connection-parkable-p connection)
         (peer-ended-p connection))))

(defun kept-peer-left-p (suspended-exchange)
  "What PEER-LEFT-P is for, where a worker keeps the connection of SUSPENDED-EXCHANGE, and no poller
need tell of it."
  (let* ((http (connection-data (suspended-exchange-connection suspended-exchange)))
         (base (http-base http)))
    (or (peer-left-p suspended-exchange)
        (and base (input-ended-p base)))))

(defun connection-failed-p (suspended-exchange)
  "True when the connection of SUSPENDED-EXCHANGE was reset by its peer, or has failed otherwise, as
far as that is known; not when the peer has only ended its half.  Asks the system."
  (let ((base (http-base (connection-data (suspended-exchange-connection suspended-exchange)))))
    (and base (io-failed-p base))))

(defun send-rest (io)
  "Sends what is unsent of IO, waiting for its peer; NIL when that is gone, or takes none in
time."
  (handler-case (progn (send-unsent io) t)
    ((or descriptor-broken stream-timeout) () nil)))

(defun continue-http-connection (http resuming-p)
  "What CONTINUE-OVER returns for the suspended exchange of HTTP; :BROKEN where the peer is gone, or
there is no memory for what is to wait."
  (let ((suspended-exchange (http-suspended-exchange http))
        (io (http-io http)))
    (handler-case
        (loop
          (let ((outcome (continue-over suspended-exchange http resuming-p)))
            (cond ((not (member outcome '(:deferred :again)))
                   (release-input io (input-memory io))     ; it has ended, and with it what it kept
                   (return outcome))
                  ((keep-waiting-input (suspended-exchange-engine suspended-exchange) http)
                   (return outcome))
                  ((not (eq :park (give-input-up suspended-exchange io)))
                   (return :broken)))))
      ;; DESCRIPTOR-BROKEN and STREAM-TIMEOUT; or what the Lisp's own streams signal.
      (stream-error () :broken))))

(defun continue-after-event (http)
  "Like CONTINUE-HTTP-CONNECTION, for a worker that has got an event: if that was one of input there
will be no other, so whoever reads next has to look."
  (setf (io-drained-p (http-io http)) nil)
  (continue-http-connection http nil))

(defun abandon-suspended-exchange (http)
  "Ends what goes on over HTTP, if anything does."
  (let ((suspended-exchange (shiftf (http-suspended-exchange http) nil)))
    (when suspended-exchange
      (abandon suspended-exchange))))

(defun waits-alone-p (exchange http)
  "True when the connection of EXCHANGE, with HTTP, can go on without a worker."
  (and (connection-parkable-p (exchange-connection exchange))
       (not (eq :foreign (exchange-kind exchange))) ; whose program reads it
       (not (http-waits-p http))
       (engine-sends-p (http-io http))))

(defun leave-or-keep (exchange)
  "Lets the connection of EXCHANGE go on without a worker, or keeps it in the current one to the end
of that; returns what SERVE does."
  (let ((http (exchange-http exchange)))
    (if (waits-alone-p exchange http)
        :deferred
        (keep-suspended-exchange (http-suspended-exchange http) http))))
