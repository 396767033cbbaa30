(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; What goes on over a connection once a request was read, and needs no worker: a reply that comes later, a stream
;;;; of events, another protocol.
;;;;
;;;; While a link has a continuation, SERVE continues that, and reads no request.  Invariant: who calls
;;;; CONTINUE owns the connection, or is the worker that keeps it.

(define-record (continuation (:include opaque) (:constructor nil) (:copier nil))
  "What goes on over a connection."
  (application nil :read-only t
   :documentation "The HTTP-SERVICE for which CONTINUATION goes on.")
  (engine nil :read-only t
   :documentation "The engine of the connection of CONTINUATION.")
  (connection nil :read-only t
   :documentation "The engine's CONNECTION over which CONTINUATION goes on."))

(defgeneric continue-over (continuation link visitor-p)
  (:documentation "Goes on with CONTINUATION over LINK as far as that is possible without waiting, and returns what
SERVE does: :DEFERRED as long as more is to come.  When VISITOR-P, the thread may be any, and reads nothing."))

(defgeneric abandon (continuation)
  (:documentation "Tells CONTINUATION that its connection is about to be closed.  What it returns does not matter."))

(defgeneric over-at-once-p (continuation)
  (:documentation "True when nothing of CONTINUATION is to be sent any more, also of what waits for the peer.")
  (:method ((continuation continuation))
    nil))

(defgeneric continuation-memory (continuation)
  (:documentation "How many octets of memory CONTINUATION keeps, an integer, that count as long as it waits without a worker,
besides those of what has come for it.")
  (:method ((continuation continuation))
    0))

(defgeneric visit (continuation)
  (:documentation "Has CONTINUATION go on, by the current thread or by another one: there is something for it.")
  (:method ((continuation continuation))
    (visit-connection (continuation-engine continuation) (continuation-connection continuation))))

(defgeneric keep-continuation (continuation link)
  (:documentation "Goes on, in the current worker, with CONTINUATION over LINK to its end, waiting for whatever it has to;
returns what SERVE does."))

(defun peer-left-p (continuation)
  "True when the peer of CONTINUATION will send no more, or is gone, as far as the poller has told."
  (let ((connection (continuation-connection continuation)))
    (and (connection-parkable-p connection)
         (peer-ended-p connection))))

(defun kept-peer-left-p (continuation)
  "What PEER-LEFT-P is for, where a worker keeps the connection of CONTINUATION, and no poller need tell of it."
  (let* ((link (connection-data (continuation-connection continuation)))
         (base (link-base link)))
    (or (peer-left-p continuation)
        (and base (input-ended-p base)))))

(defun connection-failed-p (continuation)
  "True when the connection of CONTINUATION was reset by its peer, or has failed otherwise, as far
as that is known; not when the peer has only ended its half.  Asks the system."
  (let ((base (link-base (connection-data (continuation-connection continuation)))))
    (and base (wire-failed-p base))))

(defun unsent-sent-p (wire)
  "Sends what is unsent of WIRE, waiting for its peer; NIL when that is gone, or takes none in
time."
  (handler-case (progn (send-unsent wire) t)
    ((or descriptor-broken stream-timeout) () nil)))

(defun continue-link (link visitor-p)
  "What CONTINUE-OVER returns for the continuation of LINK; :BROKEN where the peer is gone, or there is no memory for what
is to wait."
  (let ((continuation (link-continuation link))
        (wire (link-wire link)))
    (handler-case
        (loop
          (let ((outcome (continue-over continuation link visitor-p)))
            (cond ((not (member outcome '(:deferred :again)))
                   (release-input wire (input-memory wire)) ; it has ended, and with it what it kept
                   (return outcome))
                  ((input-kept-p (continuation-engine continuation) link)
                   (return outcome))
                  ((not (eq :park (give-input-up continuation wire)))
                   (return :broken)))))
      ;; DESCRIPTOR-BROKEN and STREAM-TIMEOUT; or what the Lisp's own streams signal.
      (stream-error () :broken))))

(defun continue-after-event (link)
  "Like CONTINUE-LINK, for a worker that has got an event: if that was one of input there will be no other, so whoever
reads next has to look."
  (setf (wire-drained-p (link-wire link)) nil)
  (continue-link link nil))

(defun abandon-continuation (link)
  "Ends what goes on over LINK, if anything does."
  (let ((continuation (shiftf (link-continuation link) nil)))
    (when continuation
      (abandon continuation))))

(defun waits-alone-p (exchange link)
  "True when the connection of EXCHANGE, with LINK, can go on without a worker."
  (and (connection-parkable-p (exchange-connection exchange))
       (not (eq :foreign (exchange-kind exchange))) ; whose program reads it
       (not (link-waits-p link))
       (engine-sends-p (link-wire link))))

(defun leave-or-keep (exchange)
  "Lets the connection of EXCHANGE go on without a worker, or keeps it in the current one to the end of that; returns what
SERVE does."
  (let ((link (exchange-link exchange)))
    (if (waits-alone-p exchange link)
        :deferred
        (keep-continuation (link-continuation link) link))))
