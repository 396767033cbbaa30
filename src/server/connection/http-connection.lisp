(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; The state of a connection that lasts from one request to the next.

(defstruct (http-connection (:include opaque) (:conc-name http-))
  "The state of a connection that lasts from one request to the next."
  ;; The buffered connection of the descriptor of the socket of HTTP; NIL where there is none.
  (base nil)
  ;; The buffered connection for requests and replies of HTTP: HTTP-BASE, or one that TLS or a
  ;; stream carries.
  (io nil)
  ;; The stream of HTTP that programs get: that of HTTP-IO, or one that PROGRAM-STREAM has made.
  (stream nil)
  (parser nil)                          ; of a head, or of empty lines before one, that came in part
  (head-deadline nil)                   ; the deadline for the whole of that
  (awaited :idle :type keyword)         ; the kind of that deadline, see AWAITED-OF
  ;; The content of the next or current request over HTTP, a stream; NIL where there is none, or
  ;; the request was answered.
  (content nil)
  ;; The SUSPENDED-EXCHANGE of HTTP; NIL while requests are read.
  (suspended-exchange nil)
  (watch nil)                           ; the HANDLER-WATCH of the handler that runs, or NIL
  ;; :HANDSHAKE until that of TLS is done; :OVER when the client has announced that it sends no
  ;; further request, and the last one was read.
  (phase :requests :type (member :handshake :requests :over))
  ;; Address and port of the peer of HTTP, a list; with the PROXY protocol, of the proxy's client.
  (remote '() :type list)
  ;; Address and port of our end of HTTP, a list; with the PROXY protocol, of the proxy's.
  (local '() :type list)
  (proxying nil :type (or null proxying))) ; NIL where no proxy is trusted

(declaim (inline http-handshaking-p http-trusted http-client))
(defun http-handshaking-p (http)
  "True until the TLS handshake of HTTP is done."
  (eq :handshake (http-phase http)))

(defun http-trusted (http)
  "The trusted proxies, a list, if the peer of HTTP is one of them."
  (let ((proxying (http-proxying http)))
    (and proxying (proxying-trusted proxying))))

(defun http-client (http)
  "The CLIENT of the current request over HTTP, as trusted proxies tell it; NIL where they tell
none."
  (let ((proxying (http-proxying http)))
    (and proxying (proxying-client proxying))))

(defun forget-client (http)
  "Forgets the client of the last request over HTTP."
  (let ((proxying (http-proxying http)))
    (when proxying
      (setf (proxying-client proxying) nil))))

(defun ensure-proxying (http)
  "The PROXYING of HTTP, perhaps a new one."
  (or (http-proxying http)
      (setf (http-proxying http) (make-proxying))))

(declaim (inline established-http))
(defun established-http (connection)
  "The HTTP connection of CONNECTION; NIL where there is none, or where only a header of the PROXY
protocol was read."
  (let ((http (connection-data connection)))
    (and http
         (http-io http)
         http)))

(declaim (inline request-remote))
(defun request-remote (http)
  "Address and port, in a list, of the client of the current request over HTTP.  The port is 0 where
a proxy does not tell it."
  (let ((client (http-client http)))
    (if client
        (client-remote client)
        (http-remote http))))

(defun http-address (http)
  "The address of the client of the current request over HTTP, a string."
  (first (request-remote http)))

(defun connection-usocket (connection)
  "The socket of CONNECTION, made at the first call."
  (or (connection-socket connection)
      (let ((descriptor (connection-descriptor connection)))
        (setf (connection-socket connection)
              (descriptor-socket descriptor
                                 (make-io-stream descriptor (connection-queue connection))
                                 (connection-peer connection))))))

(defun socket-io (socket)
  "The buffered connection of SOCKET; NIL where it is none of ours."
  (stream-io (socket-octet-stream socket)))

(defun http-connection-to-socket (application socket)
  "An HTTP connection for SOCKET, of a connection to APPLICATION.  Its HTTP-IO is not set yet.
Signals PEER-GONE when the client has left."
  (let ((http (make-http-connection :base (stream-io (socket-octet-stream socket))
                                    :remote (multiple-value-list (peer-name socket))
                                    :local (name-of-our-end application socket))))
    (limit-waits socket (read-seconds application))
    (when (http-base http)
      (let ((limits (application-limits application)))
        (limit-taking (io-queue (http-base http)) (write-seconds application)
                      (limits-reply-rate limits) *reply-grace*)))
    (settle-trust application http)
    http))

(defun http-waits-p (http)
  "True when reading HTTP waits for the peer, so that a worker must not read a request before it has
come."
  (io-waits-p (http-io http)))

(defun settle-io (http connection socket-stream stream)
  "Sets the buffered connection of HTTP, of CONNECTION, to that of STREAM, which PROGRAM-STREAM has
made of SOCKET-STREAM."
  (let* ((base (http-base http))
         (io (if (and base (eq stream socket-stream))
                 base
                 (stream-io (make-io-stream nil (make-send-queue) stream base)))))
    (setf (io-connection (io-base io)) connection
          (connection-queue connection) (io-queue (io-base io))       ; not that of the socket
          (http-io http) io
          (http-stream http) (if (io-waits-p io) stream (io-stream io)))))
