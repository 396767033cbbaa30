(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; Requests that come through proxies, and headers of the PROXY protocol.
;;;;
;;;;   state of the connection                  action
;;;;   no octet has come                        park it until its first octet comes
;;;;   the peer is no trusted proxy             close it, and count it as rejected
;;;;   the header has come in part              park it, until the deadline of a head
;;;;   the header is malformed                  close it, and count it as rejected
;;;;   the header has come whole, and tells a   refuse it
;;;;   client with too many connections
;;;;   the header has come whole otherwise      go on as if the connection began now
;;;;
;;;; No octet behind the header is read, since TLS, or a program, may read the descriptor next.
;;;; Where a worker has the connection, it waits.

(defun settle-trust (application http)
  "Records whether the peer of HTTP, a connection to APPLICATION, is a trusted proxy."
  (let* ((proxies (trusted-proxies application))
         (trusted (and proxies
                       (peer-in-p proxies (first (http-remote http)))
                       proxies)))
    (when (or trusted (http-proxying http))
      (setf (proxying-trusted (ensure-proxying http)) trusted))))

(defun client-of-origin (origin http head)
  "The CLIENT that ORIGIN, of the request HEAD over HTTP, tells."
  (make-client :remote (if (origin-address origin)
                           (list (ip-address-text (origin-address origin)) (origin-port origin))
                           (http-remote http))
               :named-p (and (origin-address origin) t)
               :asked-host (and (origin-host origin) (head-host head))
               :scheme (origin-scheme origin)))

(defun settle-client (http head)
  "Records the client of the request HEAD, as a trusted proxy tells it over HTTP, and the host that
the client has asked for.  Signals PROTOCOL-ERROR where the proxy contradicts itself."
  (let ((origin (origin-of-head head (lambda (address)
                                       (address-in-p (http-trusted http) address)))))
    (when origin
      (setf (proxying-client (ensure-proxying http)) (client-of-origin origin http head))
      (when (origin-host origin)
        (set-host head (origin-host origin))))))

(defun request-encrypted-p (application http)
  "True when the client of the current request to APPLICATION, over HTTP, uses TLS; also where a
trusted proxy tells so."
  (let ((client (http-client http)))
    (if (and client (client-scheme client))
        (eq :https (client-scheme client))
        (encrypted-p application))))

;;; Headers of the PROXY protocol

(defun proxy-header-due-p (application connection)
  "True when a header of the PROXY protocol is the next input of CONNECTION, to APPLICATION, for
which no request was read."
  (and (proxy-protocol-p application)
       (let* ((http (connection-data connection))
              (proxying (and http (http-proxying http))))
         (not (and proxying (eq :read (proxying-header proxying)))))))

(defun begin-proxied-connection (application connection)
  "Returns the HTTP connection of CONNECTION, to APPLICATION, that a header of the PROXY protocol
begins.  Signals PEER-GONE, and PROTOCOL-ERROR where the peer is no trusted proxy."
  (or (connection-data connection)
      (let ((http (http-connection-to-socket application (connection-usocket connection))))
        (setf (proxying-header (ensure-proxying http)) (make-proxy-header)
              (connection-data connection) http)
        (unless (http-trusted http)
          (error (make-refusal :no-trusted-proxy)))
        http)))

(defun receive-proxy-octets (connection http octets count)
  "Receives COUNT octets of CONNECTION, over HTTP, or fewer, into OCTETS.  Returns the same as
RECEIVE-OCTETS.  A worker that has CONNECTION waits for them."
  (let ((base (http-base http)))
    (cond ((null base)
           (receive-before-stream (connection-usocket connection) octets count))
          ((connection-parkable-p connection)
           (receive-octets (open-descriptor base) octets 0 count))
          (t
           (await-input-before-requests base)
           (receive-octets (open-descriptor base) octets 0 count)))))

(defun continue-proxy-header (connection http)
  "Takes the header of the PROXY protocol of CONNECTION, over HTTP, as far as it gets.  Returns
:READ when it has come whole, :NONE to wait, or :END.  Signals PROTOCOL-ERROR."
  (loop with header = (proxying-header (http-proxying http))
        with octets = (make-octets 512)
        for count = (receive-proxy-octets connection http octets
                                          (min (proxy-octets-due header) (length octets)))
        do (cond ((plusp count)
                  (when (decode-proxy-header header octets 0 count)
                    (return :read)))
                 ((and (minusp count) (would-block-p count))
                  (return :none))
                 (t (return :end)))))

(defun end-proxy-header (application http)
  "Makes the addresses in the header of the PROXY protocol over HTTP, to APPLICATION, those of the
connection."
  (let ((header (proxying-header (http-proxying http))))
    (when (proxy-header-source header)
      (setf (http-remote http) (proxy-header-source header)
            (http-local http) (proxy-header-destination header))
      (settle-trust application http))
    (setf (proxying-header (http-proxying http)) :read
          (http-head-deadline http) nil)))

(defun take-proxy-header (application connection)
  "Takes the header of the PROXY protocol of CONNECTION, to APPLICATION, as far as it gets.  Returns
:READ when it has come whole, :NONE to wait, or :END to close."
  (handler-case
      (let* ((http (begin-proxied-connection application connection))
             (input (if (connection-parkable-p connection)
                        (continue-proxy-header connection http)
                        (call-with-deadline connection :head (seconds-for application :head)
                                            (lambda ()
                                              (continue-proxy-header connection http))))))
        (case input
          (:read
           (end-proxy-header application http)
           (unless (admit-proxied-client connection)
             (setf input :end)))
          (:none
           (settle-head-deadline application connection http :head)
           (when (head-late-p http)
             (setf input :end))))
        input)
    (protocol-error (refusal)
      (note-rejected application (connection-data connection) refusal)
      :end)
    ((or peer-gone stream-timeout descriptor-broken) () :end)))
