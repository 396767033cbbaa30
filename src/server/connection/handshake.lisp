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
PROGRAM-STREAM makes.  Returns :NEXT; or :END where its handshake failed, which is logged."
  (let* ((base (http-base http))
         (socket-stream (socket-octet-stream (connection-usocket connection)))
         (stream (handler-bind ((error (lambda (condition)
                                         (when (and (encrypted-p application)
                                                    (note-failed-handshake
                                                     application
                                                     (or (tls-failure-words condition) condition)))
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
          (http-stream http) (if (io-source io) stream (io-stream io))
          (http-phase http) (if (http2-p application) :preface :requests))
    :next))

;;; HTTP/2; see docs/http2.md

(defparameter *preface* (concatenate 'octets (map 'octets #'char-code "PRI * HTTP/2.0")
                                     *line-end* *line-end* (map 'octets #'char-code "SM")
                                     *line-end* *line-end*)
  "What a client that speaks HTTP/2 sends first (RFC 9113, section 3.4).")

(defun read-preface (application connection http)
  "Sees whether the client of CONNECTION to APPLICATION speaks HTTP/2 over HTTP: by the protocol
that the TLS handshake has chosen, or else by its first octets.  Returns :NEXT, :NONE to wait, :END
to close, or :SESSION where it does."
  (let* ((io (http-io http))
         (speaks-p
           (cond ((io-tls io) (equal "h2" (tls-session-protocol (io-tls io))))
                 ((io-source io) nil)
                 (t
                  (loop for more = nil then :more
                        for outcome = (handler-case (fill-input io more)
                                        (descriptor-broken () :end))
                        for size = (- (io-end io) (io-start io))
                        for same = (or (mismatch *preface* (or (io-input io) #())
                                                 :start2 (io-start io) :end2 (io-end io))
                                       (length *preface*))
                        do (cond ((eq :end outcome) (return-from read-preface :end))
                                 ((= same (length *preface*)) (return t))
                                 ((< same size) (return nil))
                                 ((eq :none outcome)
                                  (settle-head-deadline application connection http
                                                        (if (plusp size) :head :idle))
                                  (setf (http-part-p http) size)
                                  (return-from read-preface
                                    (if (keep-waiting-input (worker-engine *worker*) http)
                                        :none
                                        :end)))))))))
    (setf (http-phase http) :requests
          (http-part-p http) nil
          (connection-deadline connection) nil)
    (release-input io)
    (cond (speaks-p
           (setf (http-suspended-exchange http)
                 (funcall *begin-session* application connection))
           :session)
          (t :next))))

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
       (when (eq :plain-http (note-failed-handshake application (or reason :gone)))
         (let ((refusal (make-refusal :plain-http-to-tls)))
           (note-rejected application http refusal)
           (setf (send-queue-sender (io-queue (http-base http))) nil) ; no TLS
           (send-refusal (http-base http) refusal)))
       :end))))

;;; Kinds of failures, as an administrator would tell them apart

(defun handshake-failure-kind (reason)
  "The kind of a handshake that failed for REASON, OpenSSL's words, :GONE or a condition:
:PLAIN-HTTP, :CERTIFICATE, :GONE or :OTHER; :EXPIRED where the client took too long; NIL when the
condition is about something else."
  (flet ((words-p (&rest parts)
           (some (lambda (part) (search part reason :test #'char-equal)) parts)))
    (typecase reason
      ;; Versions of OpenSSL differ in the words around these.
      (string (cond ((words-p "http request" "https proxy request") :plain-http)
                    ((and (words-p "alert") (words-p "unknown ca" "certificate")) :certificate)
                    ((words-p "unexpected eof" "connection reset" "broken pipe") :gone)
                    (t :other)))
      (stream-timeout :expired)
      ((or keyword descriptor-broken end-of-file) :gone)
      (t (and (wait-timed-out-p reason) :expired)))))

(defun note-failed-handshake (application reason)
  "Counts and logs for APPLICATION that a handshake has failed for REASON, as HANDSHAKE-FAILURE-KIND
takes it.  Returns that kind."
  (let ((kind (handshake-failure-kind reason)))
    (count-as kind application)
    (case kind
      ((nil :gone :expired))
      (t (tell-seldom application kind (if (eq :certificate kind) :warning :info)
                      "A TLS handshake failed" "TLS handshakes failed" reason)))
    kind))
