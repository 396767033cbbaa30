(in-package #:clack.handler.recycling)

;;;; Starting and stopping a server, and RUN, which Clack calls.

;;; The listener

(defun open-clack-listener (arguments)
  "Opens a listener at the place that ARGUMENTS, a plist for RUN, name."
  (let ((address (getf arguments :address "127.0.0.1"))
        (port (getf arguments :port 5000))
        (backlog (getf arguments :backlog 1024)))
    (cond ((getf arguments :listen)
           (open-path-listener (getf arguments :listen) (getf arguments :listen-mode) backlog))
          ((getf arguments :fd)
           (open-inherited-listener (inherited-descriptor (getf arguments :fd))))
          (t
           (handler-bind ((error (lambda (condition) (tell-where address port condition))))
             (if (getf arguments :reuse-port)
                 (open-shared-port-listener address port backlog)
                 (usocket:socket-listen (or address usocket:*wildcard-host*) port
                                        :reuse-address t :backlog backlog
                                        :element-type '(unsigned-byte 8))))))))

(defun listen-for (server)
  "Opens and returns the listener of SERVER."
  (fill-standard-descriptors)
  (let* ((arguments (server-place server))
         (listener (setf (server-listener server) (open-clack-listener arguments))))
    (setf (values (slot-value server 'address) (slot-value server 'port)) (local-name listener)
          (server-sole-name server) (sole-name listener))
    (unless (or (getf arguments :listen) (getf arguments :fd))
      (defer-accepts listener (or (getf arguments :defer-accept 1) 0)))
    listener))

(defun stop-listening (server)
  "Closes the listener of SERVER."
  (let ((listener (with-lock-briefly ((server-lock server))
                    (shiftf (server-listener server) nil))))
    (when listener (close-listener listener))))

;;; The engine

(defun make-engine-for (server)
  (let ((threads (server-threads server)))
    (funcall (if (and (getf (server-place server) :parking t)
                      (readiness-supported-p))
                 #'make-ready-engine
                 #'make-blocking-engine)
             server (server-listener server)
             :standby (getf threads :least)
             :thread-limit (getf threads :most)
             :accept-limit (getf threads :accept)
             :waiting-limit (getf threads :waiting)
             :idle-seconds (seconds-for server :idle))))

(defun start-server (server)
  "Starts SERVER, and returns when it accepts connections.  Signals an error where it cannot."
  (listen-for server)
  (start-journal (server-journal server))
  (dolist (name (unknown-options (server-place server)))
    (tell server :warning "The argument ~S is unknown, and has no effect." name))
  (setf (application-engine server) (make-engine-for server))
  (start-engine (application-engine server))
  (tell server :info "Listening on ~A." (place-of server)))

(defun stop-server (server soft-p seconds delay)
  "Stops SERVER, gently if SOFT-P, after DELAY seconds then, within SECONDS, and frees its port.  It
takes a little longer when the log stream blocks.  Returns the value of STOP-ENGINE: the threads and
connections left behind."
  (prog1 (and (application-engine server)
              (stop-engine (application-engine server) :soft soft-p :timeout seconds
                                                        :delay delay))
    (stop-listening server)
    (end-journal (server-journal server))
    (with-lock-briefly ((server-lock server))
      (setf (server-stopped-p server) t)
      (bt:condition-notify (server-stopped server)))))

(defun await-stop (server)
  "Waits until another thread has stopped SERVER."
  (wait-until (lambda () (server-stopped-p server))
              (server-stopped server) (server-lock server) nil nil))

;;; The entry points of Clack

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
  :MAX-WAITING-COUNT  how many threads may wait for clients at a time, an integer, or NIL for no
                      limit; default half of :MAX-THREAD-COUNT
  :READ-TIMEOUT       how many seconds a client may send nothing, a real, or NIL; default 20
  :WRITE-TIMEOUT      how many seconds a client may take nothing, a real, or NIL; default 20
  :REPLY-TIMEOUT      how many seconds after APP has returned its responder may be called, a real;
                      then the server sends 504.  A writer that only APP's function has used stays
                      open as long.  Default 60; NIL for no limit
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
  :PRECOMPRESSED-FILES
                      true: in place of a file, the server sends its sibling whose name has .br or
                      .gz at its end, if the client accepts that coding, and the sibling is no older
                      than the file.  A response with Content-Encoding or ETag has the file itself.
                      Default NIL
  :FILE-CACHE-CONTROL the Cache-Control of files for which APP gives none, a string; a function, or
                      the name of one, of the file's pathname, which returns that or NIL; or NIL,
                      the default, for none
  :MESSAGE-LOG-FORMAT the format of messages on *ERROR-OUTPUT*: :TEXT, the default, or :JSON, an
                      object in a line, with the REQUEST-ID of the request, if any
  :ON-START           a function, called with the server when it accepts connections
  :SSL                true: the server speaks TLS; by default when there is one of the files below
  :SSL-CERT-FILE, :SSL-KEY-FILE, :SSL-KEY-PASSWORD
                      certificate and key, PEM files, and the password of the key
  :SSL-CERTIFICATES, :SSL-MINIMUM-PROTOCOL, :SSL-CIPHERS, :SSL-CLIENT-CA-FILE, :SSL-VERIFY-CLIENT,
  :SSL-TICKET-KEY-FILE
                      as for HUNCHENTOOT-RECYCLING-TASKMASTER:PARALLEL-SSL-ACCEPTOR
  :MAX-BODY-OCTETS, :MAX-REQUEST-LINE-OCTETS, :MAX-HEADER-OCTETS, :MAX-HEADER-COUNT,
  :MIN-CONTENT-RATE, :CONTENT-TIMEOUT, :MIN-REPLY-RATE, :HANDLER-TIMEOUT,
  :QUEUE-TIMEOUT, :HANDSHAKE-TIMEOUT, :HEAD-TIMEOUT, :IDLE-TIMEOUT, :MAX-CONNECTION-REQUESTS,
  :MAX-ADDRESS-CONNECTIONS
                      as for HUNCHENTOOT-RECYCLING-TASKMASTER:PARALLEL-ACCEPTOR

Signals UNFIT-ARGUMENT for an argument that makes no sense, and LISTEN-FAILED where it cannot
listen."
  (declare (ignore debug address port))
  (join-clack-socket)
  (let ((server (make-clack-server app arguments)))
    (unwind-protect-whole
        (progn (start-server server)
               (when on-start (funcall on-start server))
               (await-stop server)
               server)
      ;; Or a thread that is destroyed twice would never free the port.
      (uninterruptibly (stop server)))))

(defun stop (server &key soft (timeout (if soft nil 1)) (delay 0))
  "Stops SERVER, a CLACK-SERVER, and frees its port.  Running requests have TIMEOUT seconds to end,
a real, or NIL for no limit; delayed responses are given up.  When SOFT, the server first serves all
requests that have come and waits for delayed responses, within TIMEOUT, which then is NIL by
default; before that, it serves for DELAY seconds, a real, as before, but closes each connection
after the next response, and is not ready for balancers.  Returns SERVER and a list of plists, one
for each thread that has not ended and, when SOFT, one for each connection whose client has not got
all of its response.  Does nothing when SERVER was stopped before."
  (values server
          (unless (server-stopped-p server)
            (stop-server server soft timeout delay))))
