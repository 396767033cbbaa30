(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; The TLS handshake of a connection.  No worker waits for it.
;;;;
;;;;   state of the connection                 action
;;;;   no HTTP connection yet
;;;;     no octet has come                     park it until its first octet comes
;;;;     an octet has come                     begin the handshake; where a program may read
;;;;                                           first, only if the octet begins a TLS record
;;;;   the handshake
;;;;     waits for input                       park it, until the deadline of the whole handshake
;;;;     waits until the peer takes octets     likewise
;;;;     is done                               read the first request, which may have come already
;;;;     has failed                            close it; a client that spoke plain HTTP gets a reply
;;;;
;;;; Where a worker reads the connection, because a program has a method of its own for that, or
;;;; the engine is the blocking one, the worker waits for the handshake: see ENCRYPTED-STREAM.

(defun handshake-begins-p (application connection kind)
  "True when the server begins the handshake of CONNECTION, of KIND, which has input."
  (and (handshake-context application)
       (or (eq :own kind)
           (eql +tls-handshake-record+ (first-octet (connection-descriptor connection))))))

(defun begin-handshake (application connection)
  "Makes the HTTP connection of CONNECTION, whose handshake begins now.  Signals PEER-GONE when the
client has left."
  (let* ((http (or (connection-data connection) ; made for a header of the PROXY protocol
                   (http-connection-to-socket application (connection-usocket connection))))
         (io (http-base http)))
    (begin-tls io (handshake-context application))
    (setf (http-io http) io
          (http-stream http) (io-stream io)
          (http-phase http) :handshake
          (connection-data connection) http)))

(defun continue-handshake (application connection http)
  "Takes the handshake of CONNECTION over HTTP as far as it gets.  Returns true when it is done;
otherwise NIL and, as second value, :NONE to wait or :END to close."
  (let ((session (io-tls (http-io http))))
    (multiple-value-bind (result reason) (shake-hands session)
      (ecase result
        (:done
         (setf (http-phase http) :requests)
         (put-program-stream application connection http)
         t)
        (:input
         (settle-head-deadline application connection http :handshake)
         (values nil :none))
        (:output
         (settle-head-deadline application connection http :handshake)
         (leave-handshake-to-engine connection session)
         (values nil :none))
        (:failed
         (end-handshake application http reason)
         (values nil :end))))))

(defun end-handshake (application http reason)
  "Logs for APPLICATION that the handshake over HTTP failed because of REASON.  A client that speaks
plain HTTP gets a reply."
  (let ((failure (make-condition 'handshake-failed :reason reason)))
    (note-failed-handshake application failure)
    (when (eq :plain-http (handshake-failure-kind failure))
      (let ((refusal (make-refusal :plain-http-to-tls)))
        (note-rejected application http refusal)
        (setf (send-queue-sender (io-queue (http-base http))) nil) ; no TLS
        (send-refusal-at-once (http-base http) refusal)))))

(defun put-program-stream (application connection http)
  "Installs the stream that PROGRAM-STREAM of APPLICATION makes of the stream of HTTP, whose
handshake is done."
  (let ((socket-stream (io-stream (http-base http))))
    (settle-io http connection socket-stream
               (call-with-deadline connection :handshake (seconds-for application :handshake)
                                   (lambda ()
                                     (program-stream application socket-stream))))))

(defun leave-handshake-to-engine (connection session)
  "Queues a step with which the engine continues the handshake of SESSION, of CONNECTION, when the
peer takes octets."
  (write-parts (connection-queue connection)
               (list (make-step-part (lambda ()
                                       (not (eq :output (shake-hands session))))))))

;;; Where a worker waits

(defconstant +behind-sentinel+ 1000
  "How many milliseconds beyond its limit a worker waits for a peer, so that the sentinel ends the
wait, and counts it.")

(defun await-input-before-requests (io)
  "Waits until the descriptor beneath IO is ready for reading IO.  Signals STREAM-TIMEOUT behind the
sentinel, unless that ends the wait."
  (let ((limit (wait-limit (io-base io))))
    (await-input-within io (if (minusp limit) limit (+ limit +behind-sentinel+)))))

(defun encrypted-stream (stream context)
  "STREAM, the stream of a connection's descriptor, once it carries TLS with CONTEXT, a TLS-CONTEXT
or NIL.  Waits for the handshake.  Returns NIL where STREAM is none of ours, or no session exists
and CONTEXT is NIL.  Signals HANDSHAKE-FAILED and STREAM-TIMEOUT."
  (let ((io (stream-io stream)))
    (when (and io context (io-descriptor io) (null (io-tls io)))
      (begin-tls io context))
    (loop while (and io (io-tls io))
          do (multiple-value-bind (result reason) (shake-hands (io-tls io))
               (ecase result
                 (:done (return stream))
                 (:input (await-input-before-requests io))
                 (:output (await-peer io :output))
                 (:failed (error 'handshake-failed :reason reason)))))))
