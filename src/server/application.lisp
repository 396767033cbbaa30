(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; What the server asks of the application that it serves.

(defclass http-service (service)
  ()
  (:documentation "A service whose connections speak HTTP: it reads requests, has an application respond to
them, and looks after the connections.  An abstract class; its subclass is the application."))

(defgeneric respond (application exchange)
  (:documentation "Has APPLICATION answer the request of EXCHANGE, whose head was read; or, when EXCHANGE
has no head, read it and answer.  Returns what is to become of the connection, as SERVE does: :CLOSE, :PARK,
:DEFERRED when the link has a CONTINUATION, :DETACHED or :BROKEN.  An error that gets out is counted by the engine, and the connection closed."))

(defgeneric reading-kind (application)
  (:documentation "Who reads the connections of APPLICATION: the server, :OWN; the server, but a program may
read first, and what is read is left to it until it has had its turn, :WRAPPED; or a program, :FOREIGN."))

(defgeneric application-limits (application)
  (:documentation "The LIMITS of requests to APPLICATION."))

(defmethod write-rate ((application http-service))
  (let ((limits (application-limits application)))
    (values (limits-reply-rate limits) (limits-reply-grace limits))))

(defgeneric encrypted-p (application)
  (:documentation "True when the connections of APPLICATION begin with a TLS handshake."))

(defgeneric handshake-context (application)
  (:documentation "The TLS-CONTEXT by which the server takes part in the handshakes of connections of
APPLICATION; NIL where they have none, or PROGRAM-STREAM does that.")
  (:method (application)
    (declare (ignore application))
    nil))

(defgeneric program-stream (application socket-stream)
  (:documentation "The stream from which requests to APPLICATION are read, made of SOCKET-STREAM, that of a
connection: itself, one of TLS, after the handshake, or whatever a program puts around it."))

(defgeneric name-of-our-end (application socket)
  (:documentation "Address and port, a list, under which the client of SOCKET has reached APPLICATION."))

(defgeneric note-failed-handshake (application condition)
  (:documentation "Tells who runs APPLICATION of CONDITION, which has ended a handshake."))

(defgeneric check-head (application head)
  (:documentation "Signals PROTOCOL-ERROR when APPLICATION cannot answer a request with HEAD.  Not asked about
GET and HEAD, which every server supports (RFC 9110, section 9.1)."))

(defgeneric early-octets (application head)
  (:documentation "How many octets of the content of the request HEAD are received at most before APPLICATION responds, an
integer; 0 for none.")
  (:method (application head)
    (declare (ignore head))
    (limits-early-octets (application-limits application))))

(defgeneric content-refused (application refusal)
  (:documentation "Ends the current request to APPLICATION because its content is not acceptable: REFUSAL, a
PROTOCOL-ERROR, says why.  Leaves by a throw when it has answered; returns when an answer has begun before, and the error is
then signalled to who reads the content."))

(defgeneric note-rejected (application link refusal &optional method uri protocol)
  (:documentation "Counts and logs a request to APPLICATION over LINK that the server answers because of REFUSAL, a
PROTOCOL-ERROR, without a call of RESPOND; METHOD, URI and PROTOCOL are NIL where they are not known."))
