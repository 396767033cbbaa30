(in-package #:clack.handler.recycling)

;;;; Start, stop, and the function that Clack calls.

;;; The listener

(defun open-clack-listener (arguments)
  "A listener where ARGUMENTS, a plist for RUN, say.  Signals usocket's conditions, and what the
platform does."
  (let ((address (getf arguments :address "127.0.0.1"))
        (port (getf arguments :port 5000))
        (backlog (getf arguments :backlog 1024)))
    (cond ((getf arguments :listen)
           (open-path-listener (getf arguments :listen) (getf arguments :listen-mode) backlog))
          ((getf arguments :fd)
           (let ((descriptor (getf arguments :fd)))
             (open-inherited-listener
              (if (eq :systemd descriptor) (systemd-descriptor) descriptor))))
          (t
           (handler-bind ((error (lambda (condition) (tell-where address port condition))))
             (if (getf arguments :reuse-port)
                 (open-shared-port-listener address port backlog)
                 (usocket:socket-listen (or address usocket:*wildcard-host*) port
                                        :reuse-address t :backlog backlog
                                        :element-type '(unsigned-byte 8))))))))

(defun listen-for (server)
  "Opens the listener of SERVER."
  (fill-standard-descriptors)
  (let* ((arguments (server-place server))
         (listener (uninterruptibly     ; or nobody would close it
                     (setf (server-listener server) (open-clack-listener arguments)))))
    (setf (values (%server-address server) (%server-port server)) (local-name listener)
          (server-sole-name server) (sole-name listener))
    (unless (or (getf arguments :listen) (getf arguments :fd))
      (defer-accepts listener (or (getf arguments :defer-accept 1) 0)))
    listener))

(defun stop-listening (server)
  "Frees the port of SERVER."
  (uninterruptibly                      ; a listener that was taken is nobody else's to close
    (let ((listener (with-lock-briefly ((server-lock server))
                      (shiftf (server-listener server) nil))))
      (when listener
        (close-listener listener)))))

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
             :idle-seconds (idle-seconds server)
             :batch-scheduling-p (server-batch-scheduling-p server))))

(defun start-server (server)
  "Starts SERVER: returns when it accepts connections.  Signals why it cannot."
  (listen-for server)
  (start-journal (server-journal server))
  (setf (application-engine server) (make-engine-for server))
  (start-engine (application-engine server)))

(defparameter *stop-seconds* 1
  "For how long, in seconds, the requests that run are waited for when a server is stopped.")

(defun stop-server (server soft-p seconds)
  "Stops SERVER, gently if SOFT-P, and frees its port, which takes up to SECONDS, and some more
where what it has told is not taken; returns what was left behind, as STOP-ENGINE does."
  (prog1 (and (application-engine server)
              (stop-engine (application-engine server) :soft soft-p :timeout seconds))
    (stop-listening server)
    (end-journal (server-journal server))
    (with-lock-briefly ((server-lock server))
      (setf (server-stopped-p server) t)
      (bt:condition-notify (server-stopped server)))))

(defun await-stop (server)
  "Returns when somebody else has stopped SERVER."
  (wait-until (lambda ()
                (heed-destruction)
                (server-stopped-p server))
              (server-stopped server) (server-lock server) nil *destruction-period*))

;;; What Clack calls

(defun run (app &rest arguments &key debug address port on-start &allow-other-keys)
  "Serves APP, a Clack application: a function, or the name of one, that is called with an
environment for each request and returns a response.  Returns the server, a CLACK-SERVER, after that
was stopped: by STOP in another thread, or because the current thread was destroyed, or left RUN
otherwise, which stops it in order and frees its port.  ARGUMENTS are keywords and values; unknown
ones are ignored.

  :DEBUG             true: errors of APP are taken to the debugger, in the thread that serves the request, while
                     others go on; NIL, the default: they are told on *ERROR-OUTPUT*, and answered 500
  :ADDRESS           where to listen, a string, or NIL for all addresses; default 127.0.0.1
  :PORT              an integer, 0 for any that is free; default 5000
  :LISTEN            a string or a pathname: on a Unix-domain socket with that file, in the place of :ADDRESS and
                     :PORT; :LISTEN-MODE, its mode
  :FD                the number of a descriptor: on a socket that listens already and was inherited; :SYSTEMD: on the
                     first that the service manager handed over
  :REUSE-PORT        true: on a port that other processes of the same user may have, too
  :BACKLOG           how many connections may wait in the kernel; default 1024
  :DEFER-ACCEPT      after how many seconds a connection on which nothing has come is accepted; default 1, NIL: at
                     once
  :WORKER-NUM        how many threads are made at start and stay, an integer; default 8
  :MAX-THREAD-COUNT  how many requests may be served at a time, an integer, or NIL for no limit; default 100
  :MAX-ACCEPT-COUNT  what happens to a connection when as many are: :UNLIMITED, the default: it waits; NIL: it is
                     answered 503; an integer: it waits, unless as many connections are served or wait
  :MAX-WAITING-COUNT how many threads may wait for clients at a time, an integer, or NIL for no limit; default half of
                     them
  :READ-TIMEOUT      for how many seconds nothing may come from a client, a real, or NIL; default 20
  :WRITE-TIMEOUT     for how many a client may take nothing; default 20
  :RESPONSE-TIMEOUT  for how many seconds a responder may wait to be called after APP has returned, until 504 is sent;
                     and for how many a writer stays open that only the function in its call has used; default
                     60; NIL for ever
  :PERSISTENT-CONNECTIONS-P  NIL: each connection is for one request; default true
  :PARKING           NIL: connections between two requests keep their threads; default true
  :BATCH-SCHEDULING  NIL: threads are scheduled as the process is; default true
  :ON-START          a function, called with the server once that accepts connections
  :SSL               true: the server speaks TLS, and so it does where this is not given, but a file below is
  :SSL-CERT-FILE, :SSL-KEY-FILE, :SSL-KEY-PASSWORD   certificate and key, PEM files, and the key's password
  :SSL-CERTIFICATES, :SSL-MINIMUM-PROTOCOL, :SSL-CIPHERS, :SSL-CLIENT-CA-FILE, :SSL-VERIFY-CLIENT,
  :SSL-KERNEL-TLS, :SSL-TICKET-KEY-FILES   as for HUNCHENTOOT-RECYCLING-TASKMASTER:PARALLEL-SSL-ACCEPTOR
  :MAX-BODY-OCTETS, :MAX-REQUEST-LINE-OCTETS, :MAX-HEADER-OCTETS, :MAX-HEADER-COUNT,
  :MAX-CHUNK-EXTENSION-OCTETS, :MAX-TRAILER-OCTETS, :MAX-EARLY-OCTETS, :MIN-CONTENT-RATE, :CONTENT-GRACE,
  :CONTENT-TIMEOUT, :MIN-REPLY-RATE, :REPLY-GRACE   as for HUNCHENTOOT-RECYCLING-TASKMASTER:PARALLEL-ACCEPTOR

Signals UNFIT-ARGUMENT for an argument that makes no sense, and usocket's errors where it cannot
listen."
  (declare (ignore debug address port))
  (join-clack-socket)
  (let ((server (make-clack-server app arguments)))
    (unwind-protect-whole
        (progn (start-server server)
               (when on-start
                 (funcall on-start server))
               (await-stop server))
      ;; Otherwise a thread that is destroyed twice would leave the port taken for good.
      (uninterruptibly
        (stop server)))
    server))

(defun stop (server &key soft (timeout (if soft nil *stop-seconds*)))
  "Stops SERVER, a CLACK-SERVER, and frees its port.  Requests that run have TIMEOUT seconds, a
real, or NIL for no limit, to end; responses that are to come later are given up.  When SOFT, all
requests that have come are served first, and such responses waited for, within TIMEOUT, which is
NIL then by default.  Returns SERVER; and what was left behind, a list of plists: of threads that
have not ended, and, when SOFT, of connections without a thread whose clients have not got all of a
response. Does nothing when it was stopped."
  (values server
          (unless (server-stopped-p server)
            (stop-server server soft timeout))))
