(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; The TLS handshake of a connection, without a worker that waits.
;;;;
;;;;   the descriptor has, of a connection     does
;;;;   without a link
;;;;     nothing yet                           nothing: it is parked, for its first octet
;;;;     an octet                              begins the handshake; where a program may read first, only if
;;;;                                           that octet begins a TLS record
;;;;   whose handshake
;;;;     wants input                           is parked, until the deadline of all of the handshake
;;;;     wants to send more than is taken      is parked likewise, until more is taken
;;;;     is done                               is read for its first request, which may have come already
;;;;     failed                                is closed; who spoke plain HTTP is told so
;;;;
;;;; Where a worker reads the connection, because a program has a method of its own for that, or a blocking
;;;; engine serves it, the worker waits instead: see ENCRYPTED-STREAM.

(defun handshake-begins-p (application connection kind)
  "True when we begin the handshake of CONNECTION, of KIND, on which something has come."
  (and (handshake-context application)
       (or (eq :own kind)
           (eql +tls-handshake-record+ (first-octet (connection-descriptor connection))))))

(defun begin-handshake (application connection)
  "The link of CONNECTION, whose handshake is to begin.  Signals PEER-GONE where nobody is there any more."
  (let* ((link (link-to-socket application (connection-usocket connection)))
         (wire (encrypt-wire (link-base link) (handshake-context application))))
    (setf (link-wire link) wire
          (link-stream link) (wire-stream wire)
          (link-shaking-p link) t
          (connection-data connection) link)))

(defun shaken-p (application connection link)
  "Takes the handshake of CONNECTION over LINK as far as it gets.  Returns true when it is done; else what
becomes of the connection, :NONE or :END, as second value."
  (let ((transport (wire-transport (link-wire link))))
    (multiple-value-bind (result reason) (transport-handshake transport)
      (ecase result
        (:done
         (setf (link-shaking-p link) nil)
         (put-program-stream application connection link)
         t)
        (:input
         (settle-head-deadline application connection link :handshake)
         (values nil :none))
        (:output
         (settle-head-deadline application connection link :handshake)
         (leave-handshake-to-engine connection transport)
         (values nil :none))
        (:failed
         (end-handshake application link reason)
         (values nil :end))))))

(defun end-handshake (application link reason)
  "Tells who runs APPLICATION that the handshake over LINK failed because of REASON; and the client, where it
speaks plain HTTP."
  (let ((failure (make-condition 'handshake-failed :reason reason)))
    (note-failed-handshake application failure)
    (when (eq :plain-http (handshake-failure-kind failure))
      (let ((refusal (make-refusal :plain-http-to-tls)))
        (note-rejected application link refusal)
        (send-refusal-at-once (link-base link) refusal)))))

(defun put-program-stream (application connection link)
  "Has the program make what it likes of the stream of LINK, whose handshake is done."
  (let ((socket-stream (wire-stream (link-base link))))
    (settle-wire link connection socket-stream
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
  "For how many milliseconds longer than it may a worker waits for a peer where the sentinel may end, and
count, what takes too long.")

(defun complete-handshake (wire)
  "Waits until the handshake of WIRE, which TLS carries, is done.  Signals HANDSHAKE-FAILED and
STREAM-TIMEOUT."
  (loop
    (multiple-value-bind (result reason) (transport-handshake (wire-transport wire))
      (ecase result
        (:done (return wire))
        (:input
         (let ((limit (wait-limit (wire-base wire))))
           (await-input-within wire (if (minusp limit) limit (+ limit +behind-sentinel+)))))
        (:output (await-peer wire :output))
        (:failed (error 'handshake-failed :reason reason))))))

(defun encrypted-stream (stream context)
  "The stream that TLS by CONTEXT, a TLS-CONTEXT, or NIL where there is none, carries on STREAM, that of the
descriptor of a connection, after its handshake, for which it waits; NIL where STREAM is none of ours, or
CONTEXT is NIL.  Signals HANDSHAKE-FAILED and STREAM-TIMEOUT."
  (let ((base (stream-wire stream)))
    (cond ((null base) nil)
          ((wire-encrypted base)
           (wire-stream (complete-handshake (wire-encrypted base))))
          ((and context (wire-descriptor base))
           (wire-stream (complete-handshake (encrypt-wire base context)))))))

(defun end-encryption (base)
  "Ends the TLS session that ENCRYPT-WIRE has made on BASE, if there is one, and nobody has ended it."
  (let ((encrypted (wire-encrypted base)))
    (when (and encrypted (wire-open-p encrypted))
      (close (wire-stream encrypted) :abort t))))
