(in-package #:clack.handler.recycling)

;;;; A server of one Clack application: its arguments, its start and stop, and RUN, which Clack
;;;; calls.  The layer below sees it as an application, and the engine sees it as its service.

(defgeneric server-address (server)
  (:documentation "The address on which SERVER, a CLACK-SERVER, listens: a string, or NIL before it
listens.  For a Unix-domain socket, it is \"unix:\" followed by the path."))

(defgeneric server-port (server)
  (:documentation "The port on which SERVER, a CLACK-SERVER, listens: an integer, or NIL before it
listens.  For a Unix-domain socket, it is 0."))

(defclass clack-server (http-service)
  ((app :initarg :app)
   (arguments :initarg :arguments :reader server-arguments
              :documentation "All arguments of RUN, a plist.")
   (debug :initarg :debug :initform nil)
   (limits :initarg :limits :reader application-limits)
   (read-timeout :initarg :read-timeout :initform 20 :reader read-seconds)
   (write-timeout :initarg :write-timeout :initform 20 :reader write-seconds)
   (trusted-proxies :initarg :trusted-proxies :initform '() :reader trusted-proxies)
   (http2 :initarg :http2 :initform nil :reader http2)
   (http2-streams :initarg :http2-streams :initform 100 :reader http2-streams)
   (proxy-protocol-p :initarg :proxy-protocol :initform nil :reader proxy-protocol-p)
   (precompressed-files-p :initarg :precompressed-files :initform nil
                          :reader server-precompressed-files-p)
   (compression :initarg :compression-in-use :reader application-compression)
   (message-log-format :initarg :message-log-format :initform :text
                       :reader server-message-log-format)
   (tls-context :initarg :tls-context :initform nil
                :reader handshake-context :reader encrypted-p)
   (threads :initarg :threads :reader server-threads
            :documentation "The limits on the number of threads, keyword arguments of an engine.")
   (address :initform nil :reader server-address)
   (port :initform nil :reader server-port)
   (listener :initform nil :accessor server-listener)
   (stopped-p :initform nil :accessor server-stopped-p)
   (lock :initform (bt:make-lock "clack server") :reader server-lock)
   (stopped :initform (bt:make-condition-variable) :reader server-stopped
            :documentation "Notified when STOPPED-P has become true.")
   (output :initform *standard-output* :reader server-output)
   (error-output :initform *error-output* :reader server-error-output))
  (:documentation "A server of one Clack application; see RUN."))

;;; The arguments of RUN, with the meanings that Clack's handlers for Hunchentoot and Woo give them

(defparameter *clack-limits* (make-limits :header-octets (* 128 1024))
  "The limits of a server by default.  Clack's own tests send a head of 96,000 octets.")

(defun thread-limits (&key worker-num (max-thread-count 100) (max-accept-count :unlimited)
                      &allow-other-keys)
  "The limits on threads in arguments of RUN, as keyword arguments of an engine."
  (let ((most (and max-thread-count     ; with Woo, :WORKER-NUM may be any number
                   (max max-thread-count (or worker-num 1)))))
    (check-accept-count max-accept-count most)
    (list :standby (min (or worker-num 8) (or most most-positive-fixnum))
          :thread-limit most
          :accept-limit max-accept-count)))

(defun tls-context-for (arguments)
  "The TLS-CONTEXT for ARGUMENTS, a plist for RUN; NIL where they do not ask for TLS: by :SSL, or
without it, as with Woo, by a file."
  (flet ((keyword-of (name)             ; that Clack's handlers have for a name of *TLS-ARGUMENTS*
           (case name
             (:ssl-certificate-file :ssl-cert-file)
             (:ssl-privatekey-file :ssl-key-file)
             (:ssl-privatekey-password :ssl-key-password)
             (t name))))
    (cond ((not (getf arguments :ssl (or (getf arguments :ssl-cert-file)
                                         (getf arguments :ssl-key-file))))
           nil)
          ((not (fboundp 'context-of-settings))
           (unfit :ssl " cannot be had: this was built with the feature HUNCHENTOOT-NO-SSL"))
          (t
           (handler-case
               (funcall 'context-of-settings
                        (loop for name in (symbol-value '*tls-arguments*)
                              collect name
                              collect (getf arguments (keyword-of name)
                                            (if (eq name :ssl-minimum-protocol) :tls-1.2 nil))))
             (unfit-argument (condition)
               (error 'unfit-argument :name (keyword-of (unfit-argument-name condition))
                                      :words (unfit-argument-words condition))))))))

(defun make-clack-server (app arguments)
  "A CLACK-SERVER of APP with ARGUMENTS, a plist for RUN.  Signals UNFIT-ARGUMENT."
  (check-arguments arguments (arguments-of :common :threads :run))
  (destructuring-bind (&key listen fd reuse-port proxy-protocol trusted-proxies
                         (persistent-connections-p t)
                         compression (compression-least-octets 1024)
                         (compression-types *compressible-types*)
                       &allow-other-keys)
      arguments
    (when (and (or listen fd reuse-port) (not (readiness-supported-p)))
      (unfit (cond (listen :listen) (fd :fd) (t :reuse-port)) " needs SBCL under Linux"))
    (when (and listen fd)
      (unfit :listen " and FD exclude each other"))
    (check-proxy-protocol proxy-protocol trusted-proxies)
    (apply #'make-instance 'clack-server
           :allow-other-keys t
           :app app
           :arguments arguments
           :limits (changed-limits *clack-limits*
                                   (if persistent-connections-p
                                       arguments
                                       (list* :max-connection-requests 1 arguments)))
           :trusted-proxies (mapcar #'network-named trusted-proxies)
           :tls-context (tls-context-for arguments)
           :compression-in-use (compression-of compression compression-least-octets
                                               compression-types)
           :threads (apply #'thread-limits arguments)
           arguments)))

;;; Start and stop

(defmethod begin-serving ((server clack-server))
  (destructuring-bind (&key (address "127.0.0.1") (port 5000) (backlog 1024) (defer-accept 1)
                         listen listen-mode fd reuse-port (parking t)
                       &allow-other-keys)
      (server-arguments server)
    (prepare-process)
    (let ((listener (open-listener address port backlog
                                   :path listen :mode listen-mode :descriptor fd
                                   :reuse-port reuse-port :defer-accept defer-accept)))
      (setf (server-listener server) listener
            (values (slot-value server 'address) (slot-value server 'port)) (local-name listener))
      (settle-logs server (list (server-error-output server)))
      (loop with known = (arguments-of :common :threads :run :tls :limits)
            for (name) on (server-arguments server) by #'cddr
            unless (assoc name known)
              do (tell server :warning "The argument ~S is unknown, and has no effect." name))
      (start-engine (apply #'make-engine-on server listener parking (server-threads server)))
      (tell server :info "Listening on ~A." (place-of server)))))

(defmethod end-serving ((server clack-server) soft-p seconds &optional (delay 0))
  (unless (server-stopped-p server)
    (prog1 (and (application-engine server)
                (stop-engine (application-engine server) :soft soft-p :timeout seconds
                                                          :delay delay))
      (let ((listener (with-lock-briefly ((server-lock server))
                        (shiftf (server-listener server) nil))))
        (when listener
          (close-listener listener)))
      (settle-logs server '())           ; takes a little longer when its stream blocks
      (with-lock-briefly ((server-lock server))
        (setf (server-stopped-p server) t)
        (bt:condition-notify (server-stopped server))))))

(defun stop (server &key soft (timeout (if soft nil 1)) (delay 0))
  "Stops SERVER, a CLACK-SERVER, and frees its port.  Running requests have TIMEOUT seconds to end,
a real, or NIL for no limit; delayed responses are given up.  When SOFT, the server first serves all
requests that have come and waits for delayed responses, within TIMEOUT, which then is NIL by
default; before that, it serves for DELAY seconds, a real, as before, but closes each connection
after the next response, and is not ready for balancers.  Returns SERVER and a list of plists, one
for each thread that has not ended and, when SOFT, one for each connection whose client has not got
all of its response.  Does nothing when SERVER was stopped before."
  (values server (end-serving server soft timeout delay)))

(defun run (app &rest arguments &key debug address port on-start &allow-other-keys)
  "Serves APP, a Clack application: a function or the name of one, that takes an environment
and returns a response.  Returns the server, a CLACK-SERVER, after that was stopped: by STOP in
another thread, or by a non-local exit or the destruction of the current thread, which stop it in
order and free its port.  ARGUMENTS are keywords and values; unknown ones only cause a warning in
the log.

  :DEBUG              true: an error of APP enters the debugger in the thread that serves the
                      request, while others go on; NIL, the default: it is logged on *ERROR-OUTPUT*
                      and answered with 500
  :ADDRESS            the address to listen on, a string, or NIL for all; default 127.0.0.1
  :PORT               the port, an integer, or 0 for any free one; default 5000
  :LISTEN             the path of a Unix-domain socket, a string or pathname, in place of :ADDRESS
                      and :PORT
  :LISTEN-MODE        the mode of that socket's file, an integer
  :FD                 an inherited socket that listens already: a descriptor number; :SYSTEMD for
                      the first one that the service manager hands over; or a list of :SYSTEMD and
                      a name, a string, for the first one of that name
  :REUSE-PORT         true: other processes of the same user may listen on the same port
  :BACKLOG            how many connections may wait in the kernel; default 1024
  :DEFER-ACCEPT       after how many seconds the server accepts a connection without input; default
                      1; NIL: at once
  :WORKER-NUM         how many threads the server makes at start and keeps, an integer; default 8
  :MAX-THREAD-COUNT   how many requests may be served at a time, an integer, or NIL for no limit;
                      default 100
  :MAX-ACCEPT-COUNT   the number of connections that may be served or wait at that limit, a number;
                      others are answered 503.  :UNLIMITED, the default: all wait; NIL: none waits
  :READ-TIMEOUT       how many seconds a client may send nothing, a real, or NIL; default 20
  :WRITE-TIMEOUT      how many seconds a client may take nothing, a real, or NIL; default 20
  :REPLY-TIMEOUT      how many seconds after APP has returned its responder may be called, a real;
                      then the server sends 504.  Default 60; NIL for no limit
  :WEBSOCKET-MESSAGE-OCTETS
                      how many octets a message of a WebSocket may have, an integer; default 1 MiB.
                      A larger one ends its WebSocket with code 1009 (RFC 6455, section 7.4.1)
  :WEBSOCKET-PING-SECONDS
                      after how many seconds of silence the server sends the client of a WebSocket a
                      ping, a real; default 30; NIL for never
  :WEBSOCKET-IDLE-SECONDS
                      after how many seconds of silence that client counts as gone, a real; default
                      75; NIL for never
  :PERSISTENT-CONNECTIONS-P
                      NIL: each connection serves one request; default true
  :PARKING            NIL: a connection between two requests keeps its thread; default true
  :TRUSTED-PROXIES, :PROXY-PROTOCOL
                      as for HUNCHENTOOT-RECYCLING-TASKMASTER:PARALLEL-ACCEPTOR; then the
                      environment has the address, the scheme and the host of clients behind proxies
  :HTTP2, :HTTP2-STREAMS
                      as for HUNCHENTOOT-RECYCLING-TASKMASTER:PARALLEL-ACCEPTOR; :HTTP2 T is for TLS
  :PRECOMPRESSED-FILES
                      true: in place of a file, the server sends its sibling whose name has .br,
                      .zst or .gz at its end, if the client accepts that coding, and the sibling is
                      no older than the file.  A response with Content-Encoding or ETag has the file
                      itself.  Default NIL
  :COMPRESSION, :COMPRESSION-LEAST-OCTETS, :COMPRESSION-TYPES
                      as for HUNCHENTOOT-RECYCLING-TASKMASTER:PARALLEL-ACCEPTOR
  :MESSAGE-LOG-FORMAT the format of messages on *ERROR-OUTPUT*: :TEXT, the default, or :JSON, an
                      object in a line, with the REQUEST-ID of the request, if any
  :ON-START           a function, called with the server when it accepts connections
  :SSL                true: the server speaks TLS; by default when there is one of the files below
  :SSL-CERT-FILE, :SSL-KEY-FILE, :SSL-KEY-PASSWORD
                      certificate and key, PEM files, and the password of the key
  :SSL-CERTIFICATES, :SSL-MINIMUM-PROTOCOL, :SSL-CIPHERS, :SSL-CLIENT-CA-FILE, :SSL-VERIFY-CLIENT
                      as for HUNCHENTOOT-RECYCLING-TASKMASTER:PARALLEL-SSL-ACCEPTOR
  :MAX-BODY-OCTETS, :MAX-REQUEST-LINE-OCTETS, :MAX-HEADER-OCTETS, :MAX-HEADER-COUNT,
  :MIN-CONTENT-RATE, :MIN-REPLY-RATE, :HANDLER-TIMEOUT,
  :HANDSHAKE-TIMEOUT, :HEAD-TIMEOUT, :IDLE-TIMEOUT, :MAX-CONNECTION-REQUESTS,
  :MAX-ADDRESS-CONNECTIONS
                      as for HUNCHENTOOT-RECYCLING-TASKMASTER:PARALLEL-ACCEPTOR

Signals UNFIT-ARGUMENT for an argument that makes no sense, and LISTEN-FAILED where it cannot
listen."
  (declare (ignore debug address port))
  (join-clack-socket)
  (let ((server (make-clack-server app arguments)))
    (unwind-protect-whole
        (progn (begin-serving server)
               (when on-start (funcall on-start server))
               (wait-until (lambda () (server-stopped-p server))
                           (server-stopped server) (server-lock server) nil nil)
               server)
      ;; Or a thread that is destroyed twice would never free the port.
      (uninterruptibly (stop server)))))

;;; The main function of a program

(defmethod renew-files ((server clack-server))
  (mapc #'flush-journal (application-journals server))
  (when (encrypted-p server)
    (set-published (slot-value server 'tls-context) (tls-context-for (server-arguments server)))))

(defun run-until-signalled (app &rest arguments &key (drain-timeout 30) (drain-delay 0) on-start
                            &allow-other-keys)
  "The main function of a program: serves APP, a Clack application, until a signal ends that, and
exits.  Never returns.  ARGUMENTS are keywords and values for RUN, :DRAIN-TIMEOUT and :DRAIN-DELAY.
Call it in the main thread.  Signals and the code of the exit are as for
HUNCHENTOOT-RECYCLING-TASKMASTER:SERVE-UNTIL-SIGNALLED:

  SIGTERM, SIGINT  stop softly, within DRAIN-TIMEOUT seconds, a real, or NIL for no limit; for
                   DRAIN-DELAY seconds before that, a real, serve, but be not ready, and close each
                   connection after the next response; a second such signal stops at once
  SIGHUP           read the files of TLS anew

The service manager is told as there.

ON-START, a function or NIL, is called with the server once that accepts connections.  If the start
or ON-START signals an error, the process prints it as one sentence to *ERROR-OUTPUT*, and exits
with 1.  Signals an error on a Lisp other than SBCL, ECL and ABCL."
  (serve-and-exit (lambda ()
                    (join-clack-socket)
                    (make-clack-server app arguments))
                  drain-timeout drain-delay on-start))

;;; For people who look after it

(defmethod place-of ((server clack-server))
  (place-text (server-address server) (server-port server)))

(defmethod note ((server clack-server) level control &rest arguments)
  "Limits the rate of all messages, since clients may cause any of them."
  (let* ((exchange *exchange*)
         (line (apply #'message-line
                      server (server-message-log-format server) level control arguments
                      (not (equal control *rare-control*))
                      (and exchange
                           (list :request (exchange-words exchange)
                                 :request-id (keep-request-id (exchange-request-id exchange))
                                 :trace-id (parse-traceparent
                                            (head-header (exchange-head exchange) :traceparent))
                                 :remote-address (and (exchange-http exchange) ; unless closed
                                                      (http-address (exchange-http exchange))))))))
    (when line
      (append-line (journal-for server (server-error-output server)) line))))

;;; Questions of the layer below, and of the engine

(defmethod program-stream ((server clack-server) socket-stream)
  (let ((context (handshake-context server)))
    (if (and context (null (stream-io socket-stream))) ; else that has done the handshake
        (funcall 'make-tls-stream context socket-stream) ; which not every build has
        socket-stream)))

(defmethod make-engine-thread ((server clack-server) role thunk)
  (bt:make-thread thunk :name (case role
                                (:sentinel (format nil "clack-listener-~A" (place-of server)))
                                (t (format nil "clack-worker-~A-~D" (place-of server) role)))))

(defmethod call-as-worker ((server clack-server) thunk)
  ;; As with Clack's other handlers, applications write to the streams of CLACKUP's caller.
  (let ((*standard-output* (server-output server))
        (*error-output* (server-error-output server)))
    (call-with-worker-buffers thunk)))
