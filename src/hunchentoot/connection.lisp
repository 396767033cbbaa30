(in-package #:hunchentoot-recycling-taskmaster)

;;;; A connection of a parallel acceptor, from its first octet to its last.

(defstruct link
  "What we keep for a connection between its requests."
  (stream nil)                          ; as INITIALIZE-CONNECTION-STREAM returned it
  (remote '() :type list)               ; address and port of the peer
  (local '() :type list))               ; address and port of our end

(defun establish-link (acceptor socket connection)
  "Prepares CONNECTION for its first request.  The handshake of a TLS connection, which may
stall, happens here, under a deadline."
  (let ((seconds (hunchentoot:acceptor-read-timeout acceptor))
        (link (make-link :remote (multiple-value-list (peer-name socket))
                         :local (multiple-value-list (local-name socket)))))
    (limit-waits socket seconds)
    (send-without-delay socket)
    (setf (connection-data connection) link)
    (call-with-deadline connection :handshake seconds
                        (lambda ()
                          (setf (link-stream link)
                                (hunchentoot:initialize-connection-stream
                                 acceptor (socket-octet-stream socket)))))
    link))

(defun make-request (acceptor link initargs)
  "An instance of the request class of ACCEPTOR for a request that came over LINK."
  (destructuring-bind ((remote-address remote-port) (local-address local-port))
      (list (link-remote link) (link-local link))
    (apply #'make-instance (hunchentoot:acceptor-request-class acceptor)
           :acceptor acceptor
           :remote-addr remote-address :remote-port remote-port
           :local-addr local-address :local-port local-port
           initargs)))

(defun serve-request (acceptor socket connection)
  "Serves the next request of CONNECTION; returns what is to become of it."
  (let ((link (or (connection-data connection)
                  (establish-link acceptor socket connection))))
    (multiple-value-bind (outcome stream)
        (call-with-connection-stream
         (link-stream link)
         (lambda ()
           (when (process-one-request acceptor
                                      (lambda (&rest initargs)
                                        (make-request acceptor link initargs)))
             (count-request connection))))
      (setf (link-stream link) stream)
      outcome)))

(defmethod hunchentoot:process-connection ((acceptor parallel-acceptor) socket)
  "Serves one request when called by our taskmaster, who calls again for the next one;
otherwise all of them, as Hunchentoot does."
  (if *connection*
      (setf *outcome* (serve-request acceptor socket *connection*))
      (call-next-method)))

(defmethod input-buffered-p ((taskmaster recycling-taskmaster) connection)
  (handler-case (listen (link-stream (connection-data connection)))
    ;; TLS streams signal the peer's end already here.  Who reads will see it too, and is
    ;; prepared for it.
    (error () t)))

(defmethod release ((taskmaster recycling-taskmaster) connection)
  (let ((link (connection-data connection))
        (socket-stream (socket-octet-stream (connection-socket connection))))
    (when (and link (link-stream link) (not (eq (link-stream link) socket-stream)))
      (close (link-stream link)))
    (finish-output socket-stream)))
