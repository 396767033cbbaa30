(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; The TLS handshake of a connection, without a worker that waits.
;;;;
;;;;   the descriptor has, of a connection     does
;;;;   without a HTTP connection
;;;;     nothing yet                           nothing: it is parked, for its first octet
;;;;     an octet                              begins the handshake; where a program may read first, only if
;;;;                                           that octet begins a TLS record
;;;;   whose handshake
;;;;     wants input                           is parked, until the deadline of all of the handshake
;;;;     wants to send more than is taken      is parked likewise, until more is taken
;;;;     is done                               is read for its first request, which may have come already
;;;;     failed                                is closed; who spoke plain HTTP is told so
;;;;
;;;; Where a worker reads the connection, because a program has a method of its own for that, or a
;;;; blocking engine serves it, the worker waits instead: see ENCRYPTED-STREAM.

(defun handshake-begins-p (application connection kind)
  "True when we begin the handshake of CONNECTION, of KIND, on which something has come."
  (and (handshake-context application)
       (or (eq :own kind)
           (eql +tls-handshake-record+ (first-octet (connection-descriptor connection))))))

(defun begin-handshake (application connection)
  "The HTTP connection of CONNECTION, whose handshake is to begin.  Signals PEER-GONE where nobody
is there any more."
  (let* ((http (http-connection-to-socket application (connection-usocket connection)))
         (io (encrypt-io (http-base http) (handshake-context application))))
    (setf (http-io http) io
          (http-stream http) (io-stream io)
          (http-shaking-p http) t
          (connection-data connection) http)))

(defun shaken-p (application connection http)
  "Takes the handshake of CONNECTION over HTTP as far as it gets.  Returns true when it is done;
else what becomes of the connection, :NONE or :END, as second value."
  (let ((transport (io-transport (http-io http))))
    (multiple-value-bind (result reason) (transport-handshake transport)
      (ecase result
        (:done
         (setf (http-shaking-p http) nil)
         (put-program-stream application connection http)
         t)
        (:input
         (settle-head-deadline application connection http :handshake)
         (values nil :none))
        (:output
         (settle-head-deadline application connection http :handshake)
         (leave-handshake-to-engine connection transport)
         (values nil :none))
        (:failed
         (end-handshake application http reason)
         (values nil :end))))))

(defun end-handshake (application http reason)
  "Tells who runs APPLICATION that the handshake over HTTP failed because of REASON; and the client,
where it speaks plain HTTP."
  (let ((failure (make-condition 'handshake-failed :reason reason)))
    (note-failed-handshake application failure)
    (when (eq :plain-http (handshake-failure-kind failure))
      (let ((refusal (make-refusal :plain-http-to-tls)))
        (note-rejected application http refusal)
        (send-refusal-at-once (http-base http) refusal)))))

(defun put-program-stream (application connection http)
  "Has the program make what it likes of the stream of HTTP, whose handshake is done."
  (let ((socket-stream (io-stream (http-base http))))
    (settle-io http connection socket-stream
               (call-with-deadline connection :handshake (idle-seconds application)
                                   (lambda ()
                                     (program-stream application socket-stream))))))

(defun leave-handshake-to-engine (connection transport)
  "Has the engine go on with the handshake of TRANSPORT, of CONNECTION, when its peer takes octets."
  (enqueue (connection-queue connection)
           (list (make-step-part (lambda ()
                                   (not (eq :output (transport-handshake transport))))))))

;;; Where a worker waits

(defconstant +behind-sentinel+ 1000
  "For how many milliseconds longer than it may a worker waits for a peer where the sentinel may
end, and count, what takes too long.")

(defun complete-handshake (io)
  "Waits until the handshake of IO, which TLS carries, is done.  Signals HANDSHAKE-FAILED and
STREAM-TIMEOUT."
  (loop
    (multiple-value-bind (result reason) (transport-handshake (io-transport io))
      (ecase result
        (:done (return io))
        (:input
         (let ((limit (wait-limit (io-base io))))
           (await-input-within io (if (minusp limit) limit (+ limit +behind-sentinel+)))))
        (:output (await-peer io :output))
        (:failed (error 'handshake-failed :reason reason))))))

(defun encrypted-stream (stream context)
  "The stream that TLS by CONTEXT, a TLS-CONTEXT, or NIL where there is none, carries on STREAM,
that of the descriptor of a connection, after its handshake, for which it waits; NIL where STREAM is
none of ours, or CONTEXT is NIL.  Signals HANDSHAKE-FAILED and STREAM-TIMEOUT."
  (let ((base (stream-io stream)))
    (cond ((null base) nil)
          ((io-encrypted base)
           (io-stream (complete-handshake (io-encrypted base))))
          ((and context (io-descriptor base))
           (io-stream (complete-handshake (encrypt-io base context)))))))

(defun end-encryption (base)
  "Ends the TLS session that ENCRYPT-IO has made on BASE, if there is one, and nobody has ended it."
  (let ((encrypted (io-encrypted base)))
    (when (and encrypted (io-open-p encrypted))
      (close (io-stream encrypted) :abort t))))
