(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; What the server keeps of a connection of the engine between its requests.

(define-record (http-connection (:include opaque) (:conc-name http-))
  "What is kept for a connection between its requests."
  (base nil
   :documentation "The buffered connection of the descriptor of the socket of HTTP; NIL where there
is none.")
  (io nil
   :documentation "What requests are read off, and replies written to, over HTTP: HTTP-BASE, or a
buffered connection that TLS or a stream carries.")
  (stream nil
   :documentation "The stream of HTTP that programs get: that of HTTP-IO, or what PROGRAM-STREAM has
made.")
  (shaking-p nil)                       ; its TLS handshake is not done
  (parser nil)                          ; of a head, or empty lines before one, come in part
  (head-deadline nil)                   ; by when all of that must have come
  (awaited :idle :type keyword)         ; what that is the deadline of, as AWAITED-OF has it
  (body-prefetch nil)                   ; of content, whose request is not served before
  (content nil
   :documentation "What was received early of the content of the request that is answered next over
HTTP, a stream; NIL where nothing was, or the request was answered.")
  (suspended-exchange nil
   :documentation "What goes on over HTTP, a SUSPENDED-EXCHANGE; NIL while requests are read.")
  (over-p nil
   :documentation "True when the client of HTTP has said that it would send no more, and all has
come.")
  (remote '() :type list
   :documentation "Address and port of the client of HTTP, a list.")
  (local '() :type list
   :documentation "Address and port of our end of HTTP, a list."))

(setf (documentation 'make-http-connection 'function)
      "A new HTTP; each keyword is one of its slots.")

(defun http-address (http)
  "The address of the peer of HTTP, a string."
  (first (http-remote http)))

(defun connection-usocket (connection)
  "The socket of CONNECTION, made when it is wanted for the first time."
  (or (connection-socket connection)
      (let ((descriptor (connection-descriptor connection)))
        (setf (connection-socket connection)
              (descriptor-socket descriptor
                                 (make-descriptor-stream descriptor (connection-queue connection))
                                 (connection-peer connection))))))

(defun socket-io (socket)
  "The buffered connection of SOCKET; NIL where it is none of ours."
  (stream-io (socket-octet-stream socket)))

(defun http-connection-to-socket (application socket)
  "An HTTP connection for the connection of SOCKET to APPLICATION, yet without a buffered connection
to be read.  Signals PEER-GONE where nobody is there any more."
  (let ((http (make-http-connection :base (stream-io (socket-octet-stream socket))
                                    :remote (multiple-value-list (peer-name socket))
                                    :local (name-of-our-end application socket))))
    (limit-waits socket (idle-seconds application))
    (when (http-base http)
      (let ((limits (application-limits application)))
        (limit-taking (io-queue (http-base http)) (write-seconds application)
                      (limits-reply-rate limits) (limits-reply-grace limits))))
    http))

(defun http-waits-p (http)
  "True when reading HTTP waits for the peer, so that a request is not to be read before it has
come."
  (io-waits-p (http-io http)))

(defun settle-io (http connection socket-stream stream)
  "Gives HTTP, of CONNECTION, its buffered connection for STREAM, which PROGRAM-STREAM has made of
SOCKET-STREAM."
  (let* ((base (http-base http))
         (encrypted (and base (io-encrypted base)))
         (io (cond ((and base (eq stream socket-stream)) base)
                   ((and encrypted (eq stream (io-stream encrypted))) encrypted)
                   (t (make-transport-io (transport-for stream base))))))
    (setf (io-connection (io-base io)) connection
          (connection-queue connection) (io-queue (io-base io))       ; not that of the socket
          (http-io http) io
          (http-stream http) (if (io-waits-p io) stream (io-stream io)))))

(defun abandon-body-prefetch (http)
  "Gives back what was received early over HTTP for a request that was answered, or will not be."
  (when (or (http-body-prefetch http) (http-content http))
    (uninterruptibly                    ; or who is destroyed amid it would leave some to nobody
      (when (http-body-prefetch http)
        (drop-body-prefetch (shiftf (http-body-prefetch http) nil))
        (release-input (http-io http)))
      (when (http-content http)
        (release-content (shiftf (http-content http) nil))))))
