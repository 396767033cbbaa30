(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; One request of a connection and its reply.

(defstruct (exchange (:include opaque)
                     (:constructor make-exchange (connection &key kind head)))
  "What is known and was decided of one request.  Its worker alone reads and writes it."
  (connection nil :read-only t)         ; the engine's
  (kind nil :type symbol :read-only t)  ; how the application reads the connection
  (head nil)                            ; of the request; NIL until it was read
  (protocol 0 :type protocol-state)     ; decides whether the connection may be used again
  (access nil)                          ; what the access log is to tell at the end, or NIL
  ;; What is to become of the connection, :UNKNOWN at first.  The application sets it where methods of
  ;; programs need not pass values on.
  (outcome :unknown :type keyword))

(defun note-event (exchange event)
  "Notes EVENT, a keyword that NEXT-STATE knows, of the request of EXCHANGE or of its reply.  Signals
ILLEGAL-EVENT."
  (setf (exchange-protocol exchange) (next-state (exchange-protocol exchange) event)))

(defvar *exchange* nil
  "The exchange that the current thread serves, or NIL.  It is special since Hunchentoot's generic
functions, and the methods of programs, stand between those of ours.")
