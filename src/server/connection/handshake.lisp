(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; The TLS handshake of a connection, and the stream of a program.  No worker waits for it where
;;;; connections are parked.
;;;;
;;;;   state of the connection                 action
;;;;     no octet has come                     park it until its first octet comes
;;;;     an octet has come                     begin the handshake; where a program may read
;;;;                                           first, only if the octet begins a TLS record
;;;;     the handshake
;;;;       waits for input, or until the       park it, until the deadline of the whole handshake
;;;;       peer takes octets
;;;;       is done                             read the first request, which may have come already
;;;;       has failed                          close it; a client that spoke plain HTTP gets a reply
;;;;
;;;; A worker waits for the handshake where PROGRAM-STREAM does it, since a program has a method of
;;;; its own for that, or the server has no TLS of its own: see ENCRYPTED-STREAM.

(defun establish (application connection http)
  "Sets the stream and the buffered connection of HTTP, of CONNECTION to APPLICATION, to those that
PROGRAM-STREAM makes.  Returns :NEXT; or :END where its handshake failed, which is logged; with TLS,
any other error is logged as that, too."
  (let* ((base (http-base http))
         (socket-stream (socket-octet-stream (connection-usocket connection)))
         (stream (handler-bind ((error (lambda (condition)
                                         (when (encrypted-p application)
                                           (note-failed-handshake application condition)
                                           (return-from establish :end)))))
                   (set-deadline connection :handshake (seconds-for application :handshake)
                                 (milliseconds))
                   (unwind-protect (program-stream application socket-stream)
                     (setf (connection-deadline connection) nil))))
         (io (if (and base (eq stream socket-stream))
                 base
                 (stream-io (make-io-stream nil (make-send-queue) stream base)))))
    (setf (io-connection (io-base io)) connection
          (connection-queue connection) (io-queue (io-base io)) ; not that of the socket
          (http-io http) io
          (http-stream http) (if (io-waits-p io) stream (io-stream io))
          (http-phase http) :requests)
    :next))

(defun continue-handshake (application connection http)
  "Takes the handshake of CONNECTION over HTTP as far as it gets.  Returns :NEXT when it is done,
:NONE to wait, or :END to close."
  (multiple-value-bind (result reason) (shake-hands (io-tls (http-base http)))
    (ecase result
      (:done
       (establish application connection http))
      ((:input :output)
       (settle-head-deadline application connection http :handshake)
       :none)
      (:failed
       (let ((failure (make-condition 'handshake-failed :reason reason)))
         (note-failed-handshake application failure)
         (when (eq :plain-http (handshake-failure-kind failure))
           (let ((refusal (make-refusal :plain-http-to-tls)))
             (note-rejected application http refusal)
             (setf (send-queue-sender (io-queue (http-base http))) nil) ; no TLS
             (send-refusal (http-base http) refusal))))
       :end))))

(defconstant +behind-sentinel+ 1000
  "How many milliseconds beyond its limit a worker waits for a peer, so that the sentinel ends the
wait, and counts it.")

(defun encrypted-stream (stream context)
  "STREAM, the stream of a connection's descriptor, once it carries TLS with CONTEXT, a TLS-CONTEXT
or NIL.  Waits for the handshake.  Returns NIL where STREAM is none of ours, or no session exists
and CONTEXT is NIL.  Signals HANDSHAKE-FAILED; and STREAM-TIMEOUT behind the sentinel, unless that
ends the wait."
  (let ((io (stream-io stream)))
    (when (and io context (io-descriptor io) (null (io-tls io)))
      (begin-tls io context))
    (loop while (and io (io-tls io))
          do (multiple-value-bind (result reason) (shake-hands (io-tls io))
               (ecase result
                 (:done (return stream))
                 (:input
                  (let ((limit (wait-limit io)))
                    (await-input-within io (if (minusp limit) limit (+ limit +behind-sentinel+)))))
                 (:output (await-peer io :output))
                 (:failed (error 'handshake-failed :reason reason)))))))

;;; Kinds of failures, as an administrator would tell them apart

(define-condition handshake-failed (recycling-error)
  ((reason :initarg :reason :initform nil :reader handshake-failure-reason))
  (:report (lambda (condition stream)
             (format stream "A TLS handshake failed: ~:[the client is gone~;~:*~A~]."
                     (handshake-failure-reason condition))))
  (:documentation "Signalled when a TLS handshake has failed because of REASON, a string, or NIL
where the client is gone."))

(defmethod tls-failure-words ((condition handshake-failed))
  (or (handshake-failure-reason condition) :gone))

(defparameter *handshake-failures*
  '((:plain-http :info "the client speaks plain HTTP"
     "http request" "https proxy request")
    (:protocol :info "the client does not speak TLS, or no version of it that the server accepts"
     "unsupported protocol" "wrong version number" "wrong ssl version" "version too low"
     "unknown protocol" "inappropriate fallback" "alert protocol version")
    (:cipher :info "the client has no cipher, group or signature that the server accepts"
     "no shared cipher" "no suitable key share" "no shared group" "no suitable groups"
     "no suitable signature algorithm" "no shared signature algorithms" "alert handshake failure"
     "alert insufficient security")
    (:certificate :warning "the client does not trust the server's certificate"
     "alert unknown ca" "alert bad certificate" "alert unsupported certificate"
     "alert certificate unknown" "alert certificate expired" "alert certificate revoked")
    (:client-certificate :info "the client has shown no certificate that the server trusts"
     "peer did not return a certificate" "certificate verify failed" "no certificate returned"
     "alert no certificate")
    (:application-protocol :info "the client wants other protocols than HTTP/1.1"
     "no application protocol")
    (:gone nil nil
     "unexpected eof" "connection reset" "broken pipe" "alert user cancel" "alert close notify")
    (:other :info nil))
  "The kinds of handshake failures.  Each entry has the kind, the log level (NIL: not logged), the
message, and substrings of OpenSSL's error texts by which the kind is recognised.  Versions of
OpenSSL differ in the words around these.")

(defun handshake-failure-kinds ()
  "The kinds of failures of TLS handshakes, a list of keywords."
  (mapcar #'first *handshake-failures*))

(defun handshake-failure-kind (condition)
  "The kind of handshake failure for CONDITION, one of HANDSHAKE-FAILURE-KINDS; :EXPIRED where the
client took too long; NIL when CONDITION is no such failure."
  (let ((words (tls-failure-words condition)))
    (typecase words
      (string (or (first (find-if (lambda (entry)
                                    (some (lambda (part) (search part words :test #'char-equal))
                                          (nthcdr 3 entry)))
                                  *handshake-failures*))
                  :other))
      (keyword words)
      (t (typecase condition
           (stream-timeout :expired)
           ((or descriptor-broken end-of-file) :gone)
           (t (and (wait-timed-out-p condition) :expired)))))))

(defun note-failed-handshake (application condition)
  "Counts and logs for APPLICATION that CONDITION has ended a handshake."
  (let ((kind (handshake-failure-kind condition)))
    (count-as kind application)
    (destructuring-bind (&optional level sentence &rest parts)
        (rest (assoc kind *handshake-failures*))
      (declare (ignore parts))
      (cond ((null kind)
             (tell application :error "~A" condition))
            (level
             (tell-seldom application kind level
                          "A TLS handshake failed" "TLS handshakes failed"
                          (format nil "~@[~A ~]~:[~A~;(~A)~]" sentence sentence
                                  (tls-failure-words condition))))))))
