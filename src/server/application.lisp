(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; What the server asks of the application that it serves.

(defclass http-service (service)
  ((engine :initform nil :accessor application-engine)
   (log-throttle :initform (make-log-throttles) :reader application-log-throttles
                 :documentation "What has happened, and no message has told of."))
  (:documentation "A service whose connections speak HTTP: it reads requests, has an application
respond to them, and looks after the connections.  An abstract class; its subclass is the
application."))

(setf (documentation 'application-engine 'function)
      "The engine that serves APPLICATION, of the last start: each makes a new one, so that what an
earlier one had to leave behind cannot disturb it.  NIL before the first.")

(defgeneric respond (application exchange)
  (:documentation "Has APPLICATION answer the request of EXCHANGE, whose head was read; or, when
EXCHANGE has no head, read it and answer.  Returns what is to become of the connection, as SERVE
does: :CLOSE, :PARK, :DEFERRED when the HTTP connection has a SUSPENDED-EXCHANGE, :DETACHED or
:BROKEN.  An error that gets out is counted by the engine, and the connection closed."))

(defgeneric reading-kind (application)
  (:documentation "Who reads the connections of APPLICATION: the server, :OWN; the server, but a
program may read first, and what is read is left to it until it has had its turn, :WRAPPED; or a
program, :FOREIGN."))

(defgeneric application-limits (application)
  (:documentation "The LIMITS of requests to APPLICATION."))

(defgeneric idle-seconds (application)
  (:documentation "How many seconds, a real, a client of APPLICATION may let a worker, or the
server, wait for its handshake, its next request or the rest of one; NIL for no limit."))

(defgeneric write-seconds (application)
  (:documentation "How many seconds, a real, a client of APPLICATION may take nothing of what is
sent to it; NIL for no limit."))

(defgeneric encrypted-p (application)
  (:documentation "True when the connections of APPLICATION begin with a TLS handshake."))

(defgeneric handshake-context (application)
  (:documentation "The TLS-CONTEXT by which the server takes part in the handshakes of connections
of APPLICATION; NIL where they have none, or PROGRAM-STREAM does that.")
  (:method (application)
    (declare (ignore application))
    nil))

(defgeneric program-stream (application socket-stream)
  (:documentation "The stream from which requests to APPLICATION are read, made of SOCKET-STREAM,
that of a connection: itself, one of TLS, after the handshake, or whatever a program puts around
it."))

(defgeneric name-of-our-end (application socket)
  (:documentation "Address and port, a list, under which the client of SOCKET has reached
APPLICATION."))

(defgeneric note-failed-handshake (application condition)
  (:documentation "Tells who runs APPLICATION of CONDITION, which has ended a handshake."))

(defgeneric check-head (application head)
  (:documentation "Signals PROTOCOL-ERROR when APPLICATION cannot answer a request with HEAD.  Not
asked about GET and HEAD, which every server supports (RFC 9110, section 9.1)."))

(defgeneric early-octets (application head)
  (:documentation "How many octets of the content of the request HEAD are received at most before
APPLICATION responds, an integer; 0 for none.")
  (:method (application head)
    (declare (ignore head))
    (limits-early-octets (application-limits application))))

(defgeneric content-refused (application refusal)
  (:documentation "Ends the current request to APPLICATION because its content is not acceptable:
REFUSAL, a PROTOCOL-ERROR, says why.  Leaves by a throw when it has answered; returns when an answer
has begun before, and the error is then signalled to who reads the content."))

(defgeneric note-rejected (application http refusal &optional method uri protocol)
  (:documentation "Counts and logs a request to APPLICATION over HTTP that the server answers
because of REFUSAL, a PROTOCOL-ERROR, without a call of RESPOND; METHOD, URI and PROTOCOL are NIL
where they are not known.")
  (:method (application http refusal &optional method uri protocol)
    (declare (ignore application http refusal method uri protocol))
    nil)
  (:method :after ((application http-service) http refusal &optional method uri protocol)
    (declare (ignore http method uri protocol))
    (when (eq :tls-to-plain-http (protocol-error-refusal refusal))
      (tell-seldom application :tls-to-plain-http :info
                   "A client speaks TLS where plain HTTP is spoken"
                   "clients spoke TLS where plain HTTP is spoken"))))

;;; What is told to the people who run an application

(defun tell (application level control &rest arguments)
  "Tells what CONTROL and ARGUMENTS, for FORMAT, say to the people who run APPLICATION, at LEVEL.
Never signals."
  (let ((engine (application-engine application)))
    (if engine
        (apply #'log-message engine level control arguments)
        (apply #'note application level control arguments))))

(defun log-throttle-of (application name)
  "What has happened to APPLICATION of what has NAME, a keyword, and was not told."
  (cdr (assoc name (application-log-throttles application))))

(defun tell-seldom (application name level once often &optional reason)
  "Like LOG-RARELY with ONCE, OFTEN and REASON, of what has NAME, a keyword, among what APPLICATION
tells seldom, at LEVEL."
  (log-rarely (log-throttle-of application name)
              (lambda (&rest arguments) (apply #'tell application level arguments))
              once often reason))

(defun tell-of-refusal (application most)
  "Tells that a connection to APPLICATION was refused, since all MOST threads serve."
  (tell-seldom application :refused :warning
               "A connection was refused" "connections were refused"
               (format nil "all ~A threads serve" most)))

(defun tell-of-failed-handshake (application condition)
  "Tells that CONDITION has ended a TLS handshake with APPLICATION, if that is to be told."
  (multiple-value-bind (level reason) (handshake-failure-telling condition)
    (when level
      (tell-seldom application (handshake-failure-kind condition) level
                   "A TLS handshake failed" "TLS handshakes failed" reason))))
