(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; Conditions of replies that programs meet, with Hunchentoot as with Clack.
;;;;
;;;;   CLIENT-LEFT          the client gets no more octets
;;;;   REPLY-ALREADY-SENT   the program itself has given or closed the reply before
;;;;   CANNOT-DEFER         the reply has begun, so it cannot come later
;;;;   STREAM-FULL          the client is slow, and the program does not wait for it
;;;;   CONTENT-TOO-LONG     the program writes more than it has announced

(define-condition client-left (recycling-error)
  ((source :initarg :source :initform nil :reader client-left-source))
  (:report "The client gets no more octets: it has left, or the reply has ended.")
  (:documentation "Signalled to the caller that reads or writes octets of a client that has left or
is too slow, also when the server was stopped; and to the caller that uses a reply, or writes to a
WebSocket, that has ended."))

(define-condition reply-already-sent (recycling-error)
  ()
  (:report "The reply was given or closed before.")
  (:documentation "Signalled to the caller that gives a reply, Clack's response, for the second
time, or writes to one that it has closed itself, also after the client has left."))

(define-condition cannot-defer (recycling-error)
  ((reason :initarg :reason :reader cannot-defer-reason))
  (:report (lambda (condition stream)
             (format stream "This reply cannot be deferred: ~A." (cannot-defer-reason condition))))
  (:documentation "Signalled where a reply cannot be deferred, or its connection not be taken over,
because there is no request, or the reply has begun or was deferred before."))

(define-condition stream-full (recycling-error)
  ()
  (:report "More than its high-water mark is on its way to the client already.")
  (:documentation "Signalled by a write to a stream when an earlier write has returned NIL and the
client has taken nothing since."))

(define-condition content-too-long (recycling-error stream-error)
  ()
  (:report "More was written than the Content-Length of the reply has announced.")
  (:documentation "Signalled when a program writes more than it has announced.  The stream of a
handler sends the announced octets first; others send nothing of that write."))
