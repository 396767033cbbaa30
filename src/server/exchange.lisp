(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; One request of a connection and its reply.

(defstruct (exchange (:include opaque)
                     (:constructor make-exchange (connection &key kind head)))
  "What is known and was decided of one request.  Its worker alone reads and writes it."
  (connection nil :read-only t)         ; the engine's
  (kind nil :type symbol :read-only t)  ; how the application reads the connection
  (head nil)                            ; of the request; NIL until it was read
  (last-p nil)                          ; the reply is to say that the connection will be closed
  ;; The handler failed after the head of its reply was sent: the client is to see that the rest is
  ;; missing.
  (cut-short-p nil)
  (access nil)                          ; what the access log is to tell at the end, or NIL
  ;; What is to become of the connection, :UNKNOWN at first.  The application sets it where methods of
  ;; programs need not pass values on.
  (outcome :unknown :type keyword))

(defvar *exchange* nil
  "The exchange that the current thread serves, or NIL.  It is special since Hunchentoot's generic
functions, and the methods of programs, stand between those of ours.")
