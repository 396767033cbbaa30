(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; The interface between the server and the application that it serves.

(defclass http-service (service)
  ((engine :initform nil :accessor application-engine)
   (sole-name :initform nil :reader application-sole-name
              :documentation "A list of the address and port of our end of every connection, where
all connections have the same; else NIL.")
   (throttle :initform (make-throttle) :reader application-throttle
             :documentation "Limits how often messages appear that clients can cause.")
   (counts :initform (make-counts) :accessor application-counts
           :documentation "What MAKE-COUNTS has returned at the last start.")
   (late-lock :initform (bt:make-lock "late handlers") :reader application-late-lock
              :documentation "Held while a late handler's client is answered.")
   (journals :initform '() :accessor application-journals
             :documentation "The journals for all destinations that the logs have had.")
   (journals-lock :initform (bt:make-lock "logs") :reader application-journals-lock))
  (:documentation "A service whose connections speak HTTP: it reads requests, has an application
respond to them, and looks after the connections.  An abstract class; its subclass is the
application."))

(defmethod server-engine ((server http-service))
  (application-engine server))

(defgeneric respond (application exchange)
  (:documentation "Has APPLICATION answer the request of EXCHANGE, whose head was read.  If EXCHANGE
has no head, APPLICATION reads it first.  Returns the outcome for the connection, as SERVE does:
:CLOSE, :PARK, :DEFERRED when the HTTP connection has a SUSPENDED-EXCHANGE, :DETACHED or :BROKEN.
After an error, the engine counts it and closes the connection."))

(defgeneric reads-first-p (application)
  (:documentation "True when a program may read a connection of APPLICATION before the server does:
then RESPOND gets an EXCHANGE without head.")
  (:method ((application t)) nil))

(defgeneric application-limits (application)
  (:documentation "The LIMITS for requests to APPLICATION."))

(defgeneric application-compression (application)
  (:documentation "The COMPRESSION of what APPLICATION replies; NIL for none."))

(defgeneric read-seconds (application)
  (:documentation "How many seconds, a real, a worker or the server waits at a time for content from
a client of APPLICATION, and by default for its handshake, its next request or the head of one; NIL
for no limit."))

(defgeneric write-seconds (application)
  (:documentation "How many seconds, a real, a client of APPLICATION may accept no octets of its
reply; NIL for no limit."))

(defgeneric encrypted-p (application)
  (:documentation "True when the connections of APPLICATION begin with a TLS handshake."))

(defgeneric handshake-context (application)
  (:documentation "The TLS-CONTEXT with which the server does the handshakes of connections to
APPLICATION; NIL where they have none, or where PROGRAM-STREAM does them.")
  (:method ((application t)) nil))

(defgeneric program-stream (application socket-stream)
  (:documentation "The stream from which requests to APPLICATION are read.  It is made of
SOCKET-STREAM, the stream of a connection: SOCKET-STREAM itself, a stream of TLS after the
handshake, or any stream that a program puts around it."))

(defgeneric trusted-proxies (application)
  (:documentation "The proxies that are believed when they tell APPLICATION of their clients: a
list of what NETWORK-NAMED returns; () for none."))

(defgeneric proxy-protocol-p (application)
  (:documentation "True when each connection of APPLICATION begins with a header of the PROXY
protocol, before TLS."))

(defgeneric http2 (application)
  (:documentation "Whether APPLICATION speaks HTTP/2: T over TLS, :CLEARTEXT on plain ports, or
NIL."))

(defgeneric http2-streams (application)
  (:documentation "How many requests, an integer, a client of APPLICATION that speaks HTTP/2 may
have at a time."))

(defun http2-p (application)
  "True if the connections of APPLICATION may speak HTTP/2."
  (eq (http2 application) (if (encrypted-p application) t :cleartext)))

(defgeneric note-rejected (application http refusal &optional head)
  (:documentation "Counts and logs a request to APPLICATION over HTTP that the server refuses
without a call of RESPOND, because of REFUSAL, a PROTOCOL-ERROR.  HEAD is its head as far as it is
known, or NIL.")
  (:method ((application http-service) http refusal &optional head)
    (declare (ignore http head))
    (count-as (protocol-error-status refusal) application)
    (let ((name (protocol-error-refusal refusal)))
      (when (member name '(:no-memory :malformed-proxy-header :no-trusted-proxy))
        (tell-seldom application name :warning
                     "A request was refused" "requests were refused"
                     (protocol-error-reason refusal))))))

(defgeneric turn-away (application connection reason)
  (:documentation "Tells the client of CONNECTION, which was just accepted, that APPLICATION has no
room for it, because of REASON: :THREADS when all serve, :ADDRESS when the client has as many
connections as it may.  Must not wait for the client.  Its value does not matter.  An error is
counted.")
  (:method ((application http-service) connection reason)
    (tell-seldom application reason :warning
                 "A connection was refused" "connections were refused"
                 (if (eq :address reason)
                     (format nil "too many come from ~A" (client-address connection))
                     "all threads serve"))
    ;; Under TLS, an answer needs a handshake first, and this thread cannot wait for one.
    (unless (encrypted-p application)
      (let ((socket (connection-usocket connection))
            (reply (make-output)))
        (encode-refusal reply (make-refusal :busy) nil)
        (write-stream-octets (socket-octet-stream socket)
                             (output-octets reply) 0 (output-fill reply))))))

;;; Messages to the log of an application

(defun tell (application level control &rest arguments)
  "Logs the message of CONTROL and ARGUMENTS, as for FORMAT, for APPLICATION at LEVEL.  Never
signals."
  (let ((engine (application-engine application)))
    (if engine
        (apply #'log-message engine level control arguments)
        (apply #'note application level control arguments))))

(defun tell-seldom (application name level once often &optional reason)
  "Counts an event of NAME, a keyword, and logs it for APPLICATION at LEVEL, unless that was done
just now.  The message says ONCE or, after a number, OFTEN, both strings, and the last REASON, a
string or NIL."
  (let ((count (count-event (application-throttle application) name)))
    (when count
      (tell application level *rare-control*
            (if (= 1 count) once (format nil "~D ~A since the last message" count often))
            (and reason (string-right-trim "." reason))))))

;;; What an application counts

(defun make-counts ()
  "An alist of fresh counters: of rejected requests by status, and of failed handshakes by kind."
  (loop for key in (append (sort (remove-duplicates (mapcar #'second *refusals*)) #'<)
                           '(:plain-http :certificate :gone :other))
        collect (cons key (make-counter))))

(defun count-as (key application)
  "Counts an event of APPLICATION, if it has a counter for KEY."
  (let ((counter (cdr (assoc key (application-counts application)))))
    (when counter
      (counter-add counter 1))))

;;; Its logs

(defun journal-for (application destination)
  "The journal of APPLICATION for DESTINATION."
  (flet ((known ()
           (find destination (the list (application-journals application))
                 :key #'journal-destination :test #'eq)))
    (or (known)
        (with-lock-briefly ((application-journals-lock application))
          (or (known)
              (first (push (make-journal destination application)
                           (application-journals application))))))))

(defun settle-logs (application destinations)
  "Has a journal of APPLICATION run for each of DESTINATIONS, and no other."
  (dolist (destination destinations)
    (start-journal (journal-for application destination)))
  (dolist (journal (application-journals application))
    (unless (member (journal-destination journal) destinations)
      (end-journal journal))))

;;; Its engine

(defun make-engine-on (application listener parking-p &rest limits)
  "Makes the engine of APPLICATION, which serves the connections of LISTENER once it is started, and
returns it.  It parks them if PARKING-P, where the platform can.  LIMITS are those on threads."
  (check-http2 (http2 application) parking-p)
  (let ((name (multiple-value-list (local-name listener))))
    (setf (slot-value application 'sole-name)
          (and (not (member (first name) '("0.0.0.0" "::") :test #'string=)) name)
          (application-counts application) (make-counts)
          *request-ids* (make-random-state t)
          (application-engine application)
          (apply (if (and parking-p (readiness-supported-p))
                     #'make-ready-engine
                     #'make-blocking-engine)
                 application listener
                 :idle (as-milliseconds (seconds-for application :idle)) limits))))
