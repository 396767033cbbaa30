(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; What is known of a connection from one request to the next, and of the client at its end.
;;;;
;;;;   the peer of the connection    the client of a request
;;;;   is no trusted proxy           the peer, whatever the request says
;;;;   is one                        as its fields tell (see origins.lisp of http/); else the peer
;;;;
;;;; With the PROXY protocol, the source in its header takes the place of the peer.

(defstruct (http-connection (:include opaque) (:conc-name http-))
  "The state of a connection that lasts from one request to the next."
  ;; What its owner does next.  :PROXY: takes the header of the PROXY protocol.  :NEW: begins TLS,
  ;; or has the program make its stream.  :HANDSHAKE: goes on with that of TLS.  :PREFACE: sees
  ;; whether the client speaks HTTP/2.  :REQUESTS: reads requests.  :OVER: reads nothing, since the
  ;; client has announced that the last one was that.
  (phase :new :type (member :proxy :new :handshake :preface :requests :over))
  ;; The buffered connection of the descriptor of the socket of HTTP; NIL where there is none.
  (base nil)
  ;; The buffered connection for requests and replies of HTTP: HTTP-BASE, or one that a stream
  ;; carries.  NIL before the handshake.
  (io nil)
  ;; The stream of HTTP that programs get: that of HTTP-IO, or one that PROGRAM-STREAM has made.
  (stream nil)
  ;; The HTTP connection of the client's descriptor, where this one is a stream of HTTP/2; or NIL.
  (carrier nil)
  ;; How many octets of the input of HTTP-IO were looked at, where that is a head, or a line, that
  ;; came in part; or NIL.
  (part-p nil :type (or null fixnum))
  (head-deadline nil)                   ; the deadline for the whole of that
  ;; The head of the next request over HTTP, or the PROTOCOL-ERROR for which that is refused, where
  ;; it did not come in the octets of HTTP-IO; else NIL.
  (head nil)
  ;; The content of the next or current request over HTTP, a stream; NIL where there is none, or
  ;; the request was answered.
  (content nil)
  ;; The SUSPENDED-EXCHANGE of HTTP; NIL while requests are read.
  (suspended-exchange nil)
  (limited-exchange nil)                ; the EXCHANGE whose handler runs with a limit, or NIL
  ;; Address and port of the peer of HTTP, a list; with the PROXY protocol, of the proxy's client.
  (remote '() :type list)
  ;; Address and port of our end of HTTP, a list; with the PROXY protocol, of the proxy's.
  (local '() :type list)
  ;; The trusted proxies, a list, if the peer of HTTP is one of them.
  (trusted '() :type list)
  ;; The ORIGIN of the current request over HTTP, as trusted proxies tell it; or NIL.
  (origin nil :type (or null origin))
  (proxy-header nil))                   ; the PROXY-HEADER that the connection begins with, or NIL

(declaim (inline established-http request-remote))
(defun established-http (connection)
  "The HTTP connection of CONNECTION; NIL where there is none yet, or it has no HTTP-IO."
  (let ((http (connection-data connection)))
    (and http
         (http-io http)
         http)))

(defun request-remote (http)
  "Address and port, in a list, of the client of the current request over HTTP.  The port is 0 where
a proxy does not tell it."
  (let ((origin (http-origin http)))
    (if (and origin (origin-address origin))
        (list (origin-address origin) (origin-port origin))
        (http-remote http))))

(defun http-address (http)
  "The address of the client of the current request over HTTP, a string."
  (first (request-remote http)))

(defgeneric begin-http-connection (application connection)
  (:documentation "Makes the HTTP connection of CONNECTION to APPLICATION.  Signals PEER-GONE when
the client has left."))

(defmethod begin-http-connection (application (connection connection))
  (let* ((socket (connection-usocket connection))
         (base (socket-io socket))
         (http (make-http-connection :base base
                                     :remote (multiple-value-list (peer-name socket))
                                     :local (or (application-sole-name application)
                                                (multiple-value-list (local-name socket))))))
    (limit-waits socket (read-seconds application))
    (when base
      (limit-taking (io-queue base) (write-seconds application)
                    (limits-reply-rate (application-limits application))))
    (settle-trust application http)
    (when (proxy-protocol-p application)
      (setf (http-proxy-header http) (make-proxy-header)
            (http-phase http) :proxy))
    (setf (connection-data connection) http)))

;;; Trusted proxies.  A list has networks, and :UNIX, which stands for the peers of Unix-domain
;;; sockets.

(defun network-named (designator)
  "The element of a list of networks that DESIGNATOR names: that network where it is a string, an
address or a network; :UNIX; NIL if it names none."
  (cond ((eq :unix designator) :unix)
        ((stringp designator) (parse-network designator))))

(defun address-in-p (networks address)
  "True when ADDRESS, an IP-ADDRESS, is in one of NETWORKS, a list."
  (loop for network in networks
        thereis (and (not (eq :unix network))
                     (in-network-p address network))))

(defun peer-in-p (networks name)
  "True when the peer with the address NAME, a string, is in one of NETWORKS, a list."
  (if (uiop:string-prefix-p "unix:" name)
      (and (member :unix networks) t)
      (let ((address (parse-ip-address name)))
        (and address (address-in-p networks address)))))

(defun settle-trust (application http)
  "Records whether the peer of HTTP, a connection to APPLICATION, is a trusted proxy."
  (let ((proxies (trusted-proxies application)))
    (setf (http-trusted http)
          (and proxies (peer-in-p proxies (first (http-remote http))) proxies))))

(defun settle-client (http head)
  "Records the client of the request HEAD, as a trusted proxy tells it over HTTP, and the host that
the client has asked for."
  (let ((origin (origin-of-head head (lambda (address)
                                       (address-in-p (http-trusted http) address)))))
    (setf (http-origin http) origin)
    (when (and origin (origin-host origin))
      (setf (origin-asked-host origin) (shiftf (head-host head) (origin-host origin))
            (head-headers head) (acons :host (origin-host origin)
                                       (remove :host (head-headers head) :key #'car))))))

;;; Headers of the PROXY protocol
;;;
;;;   state of the connection                  action
;;;   no octet has come                        park it until its first octet comes
;;;   the peer is no trusted proxy             close it, and count it as rejected
;;;   the header has come in part              park it, until the deadline of a head
;;;   the header is malformed                  close it, and count it as rejected
;;;   the header has come whole, and tells a   refuse it
;;;   client with too many connections
;;;   the header has come whole otherwise      go on as if the connection began now
;;;
;;; No octet behind the header is read, since TLS, or a program, may read the descriptor next.

(defun read-proxy-header (application connection http)
  "Takes the header of the PROXY protocol of CONNECTION, to APPLICATION over HTTP, as far as it
gets.  Returns :NEXT when it has come whole, :NONE to wait, or :END to close."
  (handler-case
      (loop with header = (http-proxy-header http)
            with octets = (make-octets 512)
            with base = (http-base http)
            initially (unless (http-trusted http)
                        (error (make-refusal :no-trusted-proxy)))
                      (settle-head-deadline application connection http :head)
            for most = (min (proxy-header-due header) (length octets))
            for count = (if base
                            (receive-octets (open-descriptor base) octets 0 most)
                            (receive-before-stream (connection-usocket connection) octets most))
            do (cond ((plusp count)
                      (when (decode-proxy-header header octets 0 count)
                        (when (proxy-header-source header)
                          (setf (http-remote http) (proxy-header-source header)
                                (http-local http) (proxy-header-destination header))
                          (settle-trust application http))
                        (setf (http-phase http) :new
                              (connection-deadline connection) nil)
                        (let ((engine (current-engine))) ; a worker reads the header
                          (return (cond ((enter-address engine connection) :next)
                                        (t (refuse-with-notice engine connection :address)
                                           :end))))))
                     ((and (minusp count) (would-block-p count))
                      (return :none)) ; only a trusted proxy could send it slowly
                     (t (return :end))))
    (protocol-error (refusal)
      (note-rejected application http refusal)
      :end)
    ((or peer-gone stream-timeout descriptor-broken) () :end)))

;;; The limit on the connections of one address, :MAX-ADDRESS-CONNECTIONS
;;;
;;;   the connection comes from     counts for
;;;   an IPv4 address               that address, also where it is mapped to IPv6
;;;   an IPv6 address               its first 64 bits: a subscriber has all the others, and could
;;;                                 use each for one connection
;;;   a trusted proxy               nothing; with the PROXY protocol, the client that its header
;;;                                 tells, once that has come
;;;   a Unix-domain socket          nothing
;;;
;;; The fields of requests, such as X-Forwarded-For, do not count: a proxy that speaks HTTP sends
;;; the requests of many clients over one connection.

(defun client-address (connection)
  "The address, a string, of the client of CONNECTION, as far as is known before a request; NIL when
it is gone."
  (let ((http (connection-data connection)))
    (if http
        (first (http-remote http))
        (handler-case (values (connection-peer-name connection))
          (error () nil)))))

(defmethod address-limit ((application http-service) connection)
  (let* ((limit (limits-address-connections (application-limits application)))
         (text (and limit (client-address connection)))
         (address (and text (parse-ip-address text))))
    (and address
         (not (address-in-p (trusted-proxies application) address))
         (values limit (if (ipv4-p address) address (dpb 0 (byte 64 0) address))))))
