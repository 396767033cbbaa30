(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; One request of a connection and its reply.

(define-record (exchange (:include opaque)
                         (:constructor make-exchange
                             (application connection
                              &key kind head (engine (and *worker* (worker-engine *worker*))))))
  "What is known and was decided of one request.  The owner of its connection alone reads and writes
it."
  (application nil :read-only t
   :documentation "The HTTP-SERVICE that is to respond to the request of EXCHANGE.")
  (connection nil :read-only t
   :documentation "The engine's CONNECTION over which the request of EXCHANGE came.")
  (engine nil :read-only t
   :documentation "The engine of the connection of EXCHANGE.")
  (kind nil :type symbol :read-only t
   :documentation "Who reads the connection of EXCHANGE: see READING-KIND.")
  (head nil
   :documentation "The HEAD of the request of EXCHANGE; NIL until it was read.")
  (content nil
   :documentation "The content of the request of EXCHANGE, a stream; NIL until it was taken.")
  (protocol 0 :type protocol-state
   :documentation "The PROTOCOL-STATE of the request of EXCHANGE and its reply, which decides
whether the connection may be used again.")
  (access nil
   :documentation "What the access log is to tell of EXCHANGE at its end, as the application likes;
or NIL.")
  (deferred-response nil
   :documentation "The DEFERRED-RESPONSE of the reply of EXCHANGE; NIL unless it is to come later.")
  (upgrade nil
   :documentation "What the application is to make of the connection of EXCHANGE when its reply with
status 101 was sent; NIL for nothing."))

(defun note-event (exchange event)
  "Notes EVENT, a keyword that NEXT-STATE knows, of the request of EXCHANGE or of its reply.
Signals ILLEGAL-EVENT."
  (setf (exchange-protocol exchange) (next-state (exchange-protocol exchange) event)))

(defvar *exchange* nil
  "The exchange that the current thread serves, or NIL.  It is special since Hunchentoot's generic
functions, and the methods of programs, stand between those of ours.")

(declaim (inline exchange-http))
(defun exchange-http (exchange)
  "The HTTP connection over which the request of EXCHANGE came."
  (connection-data (exchange-connection exchange)))

(defun current-head ()
  "The head of the current request; NIL where our own code has not read it."
  (and *exchange* (exchange-head *exchange*)))

(defun current-http-connection ()
  "The HTTP connection over which the current request came; only where our own code has read it."
  (exchange-http *exchange*))
