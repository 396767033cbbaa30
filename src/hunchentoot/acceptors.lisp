(in-package #:hunchentoot-recycling-taskmaster)

;;;; Acceptors: their arguments, the places where they listen, start and stop.

(defclass parallel-acceptor (hunchentoot:acceptor)
  (;; Arguments
   (listen-path :initarg :listen-path :initform nil)
   (listen-mode :initarg :listen-mode :initform nil)
   (listen-fd :initarg :listen-fd :initform nil)
   (reuse-port :initarg :reuse-port :initform nil)
   (defer-accept :initarg :defer-accept)
   (trusted-proxies :initarg :trusted-proxies :accessor acceptor-trusted-proxies
                    :documentation "Once it is initialised, the result of NETWORKS-NAMED.")
   (proxy-protocol :initarg :proxy-protocol)
   (http2 :initarg :http2)
   (http2-streams :initarg :http2-streams)
   (access-log-format :initarg :access-log-format :reader access-log-format)
   (message-log-format :initarg :message-log-format :reader message-log-format)
   (precompressed-files-p :initarg :precompressed-files :reader precompressed-files-p)
   (compression :initarg :compression)
   (compression-least-octets :initarg :compression-least-octets)
   (compression-types :initarg :compression-types)
   (compression-in-use :initform nil :documentation "The COMPRESSION for these; NIL for none.")
   (session-cookie-attributes :initarg :session-cookie-attributes
                              :reader session-cookie-attributes)
   (limits :initform (make-limits) :documentation "The limits on one request.")
   #.`(given-limits :documentation "Nothing: the slot is here for its initargs."
                    ,@(loop for (name) in *limit-arguments* append (list :initarg name)))
   ;; What a start finds
   (server-name :initform nil :documentation "Hunchentoot's name for the header Server.")
   (reads-first-p :initform nil
                  :documentation "True if the program has methods of PROCESS-CONNECTION before
ours, which may read connections first.")
   (engine :initform nil
           :documentation "The engine of the last start, or NIL.  The acceptor has it because its
taskmaster may be replaced, or serve another acceptor later."))
  (:default-initargs
   ;; Connections wait for a worker in the kernel, which reduces this to its own maximum.
   :listen-backlog 1024
   ;; A worker can do nothing for a connection without input.
   :defer-accept 1
   :trusted-proxies '()
   :proxy-protocol nil
   :http2 nil
   :http2-streams 100
   :access-log-format :combined
   :message-log-format :text
   :precompressed-files nil
   :compression nil
   :compression-least-octets 1024
   :compression-types *compressible-types*
   :session-cookie-attributes nil
   :taskmaster (make-instance 'recycling-taskmaster))
  (:documentation "HUNCHENTOOT:ACCEPTOR on recycled threads, with the same initargs and handlers.
Its :TASKMASTER is a RECYCLING-TASKMASTER, a new one by default or where Hunchentoot's own is given,
with the same numbers.  It takes the :PARKING of that, too.

The place to listen is :ADDRESS and :PORT, as with Hunchentoot, or, on SBCL under Linux:

  :LISTEN-PATH  the path of a Unix-domain socket, a string or pathname.  START makes the file, and
                replaces one on which no process listens; STOP removes it
  :LISTEN-MODE  the mode of that file, an integer such as #o660; NIL, the default, for the mode that
                the process's umask gives
  :LISTEN-FD    the descriptor number of an inherited socket, TCP or Unix-domain, that listens
                already; or :SYSTEMD, for the first that the service manager hands over, or a list
                of :SYSTEMD and a name, a string, for the first of that name, see sd_listen_fds(3).
                The acceptor uses a duplicate; STOP closes that, and the socket stays open and
                listening, for other processes and the next start.  Do not mix in a class that uses
                this initarg for something else
  :REUSE-PORT   true: other processes of the same user may listen on the same port, if they ask for
                that, too; the kernel spreads connections over them (SO_REUSEPORT)

  :DEFER-ACCEPT after about how many seconds the server accepts a connection without input, an
                integer from 1 to 255; default 1.  Until then only the kernel knows the connection
                (TCP_DEFER_ACCEPT, see tcp(7)), so that most connections come together with their
                first request.  NIL: the server accepts each at once.  Has no effect with
                :LISTEN-PATH and :LISTEN-FD, and on other platforms than SBCL under Linux

After the start, HUNCHENTOOT:ACCEPTOR-ADDRESS and HUNCHENTOOT:ACCEPTOR-PORT are those of an
inherited socket; for a Unix-domain socket, they are \"unix:\" followed by its path, and 0.  In its
requests, HUNCHENTOOT:REMOTE-ADDR is \"unix:\" and HUNCHENTOOT:REMOTE-PORT 0.

Behind proxies:

  :TRUSTED-PROXIES  a list of strings, addresses or networks in CIDR notation such as
                    \"10.0.0.0/8\" and \"fd00::/8\", and :UNIX for the peers of Unix-domain sockets.
                    Only these are believed when they tell of their clients by X-Forwarded-For,
                    X-Forwarded-Proto, X-Forwarded-Host and X-Forwarded-Port.  Then the functions of
                    a request's address, scheme and host, the access log, and the check of a
                    WebSocket's origin know the client.  If the list is not empty,
                    HUNCHENTOOT:REAL-REMOTE-ADDR (on SBCL) returns HUNCHENTOOT:REMOTE-ADDR.  Default
                    (): nobody is believed
  :PROXY-PROTOCOL   true: each connection comes from one of them, and begins with a header of the
                    PROXY protocol, version 1 or 2, before TLS.  The server closes others, and
                    counts them as rejected with status 400.  Default NIL

HTTP/2, with the system hunchentoot-recycling-taskmaster/http2, on SBCL under Linux:

  :HTTP2          T: clients of a PARALLEL-SSL-ACCEPTOR may choose HTTP/2 in the handshake;
                  :CLEARTEXT: clients may begin with it on a port without TLS; NIL, the default
  :HTTP2-STREAMS  how many requests a client may have at a time over HTTP/2; default 100

The logs:

  :ACCESS-LOG-FORMAT  the format of a line of the access log: :COMBINED, the default, is
                      Hunchentoot's; :JSON is an object in a line (RFC 8259); a function takes a
                      plist of the members of :JSON, and returns a string, or NIL for no line.
                      Requests that were rejected before there was a request object, and refused
                      connections, have a line too, with a dash or NIL for unknown facts
  :MESSAGE-LOG-FORMAT the format of a message: :TEXT, the default, is Hunchentoot's; :JSON is an
                      object in a line, which has the same REQUEST-ID as that of the access log

Sessions:

  :SESSION-COOKIE-ATTRIBUTES  what stands at the end of the session's cookie, a string such as
                              \"; Secure; SameSite=Strict\", which may be empty; or NIL, the
                              default, for SameSite=Lax and, under https, Secure

Files, of HUNCHENTOOT:HANDLE-STATIC-FILE, folder dispatchers and :DOCUMENT-ROOT, on SBCL under
Linux:

  :PRECOMPRESSED-FILES  true: in place of a file, the server sends its sibling whose name has .br,
                        .zst or .gz at its end, if the client accepts that coding, and the sibling
                        is no older than the file.  A reply whose handler has set Content-Encoding
                        or ETag has the file itself.  Default NIL

The compression of replies (RFC 9110, section 8.4.1):

  :COMPRESSION               a list of :ZSTD and :GZIP, the best first; T for both; or NIL, the
                             default.  The client's preference comes first.  Needs libzstd and libz
  :COMPRESSION-LEAST-OCTETS  shorter replies are sent as they are; default 1024
  :COMPRESSION-TYPES         the media types that are compressed, a list of strings, which * may
                             begin or end; by default text, JSON, XML, JavaScript and WebAssembly.
                             Events are compressed only where \"text/event-stream\" itself is one

Replies with Content-Encoding, with no-transform in Cache-Control, or with a Content-Length that the
handler has set before it writes them, are sent as they are, and so are files of more than 1 MiB.  A
strong entity tag gets a mark, which the program does not see in later requests.

Limits on one request, in octets except for counts; the server answers a request beyond a limit with
the status in parentheses, and closes the connection:

  :MAX-BODY-OCTETS             content, or NIL, the default, for no limit (413)
  :MAX-REQUEST-LINE-OCTETS     the request line; default 16 KiB (414; 501 for a method beyond it)
  :MAX-HEADER-OCTETS           the whole head: request line and header lines; default 32 KiB
                               (431)
  :MAX-HEADER-COUNT            the number of header lines; default 128 (431)
  :MAX-RAW-OCTETS              content that HUNCHENTOOT:RAW-POST-DATA returns whole; default 64
                               MiB, NIL for no limit (413)
  :MAX-FORM-OCTETS             a form, without the files in it; default 2 MiB, NIL for no limit
                               (413)
  :MAX-FIELD-COUNT             the number of fields of a form, files among them; default 10,000,
                               NIL for no limit (413)
  :MAX-FILE-COUNT              the number of files in a form; default 100, NIL for no limit (413)

Reception of content, which comes before the request is served:

  :MIN-CONTENT-RATE   how many octets a second a client has to send on average; default 1024, NIL
                      for no limit (408).  Does not hold on other platforms than SBCL under Linux

Time, in seconds, a real, NIL for no limit, or :READ-TIMEOUT, the default, for as long as
Hunchentoot's :READ-TIMEOUT says.  Without parking, no single wait is longer than that:

  :HANDSHAKE-TIMEOUT  the whole TLS handshake
  :HEAD-TIMEOUT       the whole head of a request (408)
  :IDLE-TIMEOUT       the wait for the first request of a connection, and for the next one; a change
                      holds from the next start

Connections:

  :MAX-CONNECTION-REQUESTS  how many requests a connection serves before it is closed; default NIL,
                            for no limit
  :MAX-ADDRESS-CONNECTIONS  how many connections one address may have open, an integer; one more is
                            answered 503; default NIL, for no limit

Replies:

  :REPLY-TIMEOUT   how many seconds a deferred reply may take, unless DEFER-REPLY says otherwise, a
                   real; default 60, NIL for no limit (504)
  :HANDLER-TIMEOUT  how many seconds a handler may run before the server answers 503 in its place, a
                   real; default NIL, for no limit.  See REQUEST-TIMED-OUT-P
  :MIN-REPLY-RATE  how many octets a second of a reply a client has to take on average while the
                   server waits for it; default 1024, NIL for no limit

On SBCL under Linux, the content of all requests together may take a quarter of the heap.  A request
beyond that is answered 503.

These limits also hold over TLS, and where connections are not parked (:MAX-RAW-OCTETS only on SBCL
under Linux).  REINITIALIZE-INSTANCE can change them; requests that have begun keep the old ones.

:LISTEN-BACKLOG, how many connections may wait in the kernel, is 1024 by default; the kernel reduces
it to its own maximum, on Linux net.core.somaxconn.

Signals HUNCHENTOOT:PARAMETER-ERROR when an argument, also one of Hunchentoot's, makes no sense, or
contradicts another."))

(defclass parallel-easy-acceptor (parallel-acceptor hunchentoot:easy-acceptor)
  ()
  (:documentation "HUNCHENTOOT:EASY-ACCEPTOR on recycled threads, with the same initargs and
handlers; see PARALLEL-ACCEPTOR for further ones.  Its default :TASKMASTER is a
RECYCLING-TASKMASTER."))

;;; Arguments.  Hunchentoot takes any value, and fails when it uses a wrong one: at START, or at the
;;; first request.  Values that work there are allowed here.

(defmethod shared-initialize :before
    ((acceptor parallel-acceptor) slot-names &rest initargs)
  "Checks the arguments before any slot changes, so that a mistake leaves ACCEPTOR as it was."
  (declare (ignore slot-names))
  (flet ((value (name slot)
           (getf initargs name (and (slot-boundp acceptor slot) (slot-value acceptor slot)))))
    (with-parameter-errors
      (check-arguments initargs
                       (list* '(:taskmaster recycling-taskmaster
                                "an instance of RECYCLING-TASKMASTER")
                              (arguments-of :common :acceptor)))
      (check-proxy-protocol (value :proxy-protocol 'proxy-protocol)
                            (value :trusted-proxies 'trusted-proxies)))))

(defmethod shared-initialize :after
    ((acceptor parallel-acceptor) slot-names &rest initargs
     &key (trusted-proxies nil trusted-p))
  (declare (ignore slot-names))
  (with-slots (limits compression compression-least-octets compression-types compression-in-use)
      acceptor
    (with-parameter-errors
      (setf limits (changed-limits limits initargs)
            compression-in-use (compression-of compression compression-least-octets
                                               compression-types))))
  (when trusted-p
    (setf (acceptor-trusted-proxies acceptor) (mapcar #'network-named trusted-proxies))))

(defmethod initialize-instance :around
    ((acceptor parallel-acceptor) &rest initargs &key taskmaster)
  "Takes the place of one of Hunchentoot's own taskmasters by one of ours, since programs pass them
for their numbers."
  (apply #'call-next-method acceptor
         :taskmaster (case (class-name (class-of taskmaster))
                       (hunchentoot:one-thread-per-connection-taskmaster
                        (make-instance
                         'recycling-taskmaster
                         :max-thread-count (hunchentoot:taskmaster-max-thread-count taskmaster)
                         :max-accept-count (hunchentoot:taskmaster-max-accept-count taskmaster)))
                       (hunchentoot:single-threaded-taskmaster
                        (make-instance 'recycling-taskmaster :max-thread-count 1))
                       (t taskmaster))
         initargs))

(defmethod initialize-instance :after
    ((acceptor parallel-acceptor) &key (parking nil parking-p))
  "Takes :PARKING for the taskmaster, so that a program need not make one for that."
  (with-slots (listen-path listen-mode listen-fd reuse-port) acceptor
    (cond ((not (or listen-path listen-mode listen-fd reuse-port)))
          ((not (readiness-supported-p))
           (hunchentoot:parameter-error
            "LISTEN-PATH, LISTEN-MODE, LISTEN-FD and REUSE-PORT need SBCL under Linux."))
          ((and listen-path listen-fd)
           (hunchentoot:parameter-error "LISTEN-PATH and LISTEN-FD exclude each other."))
          ((or listen-path listen-fd)
           (set-acceptor-name acceptor nil 0))))
  (when parking-p
    (setf (taskmaster-parking-p (acceptor-taskmaster acceptor)) parking)))

;;; Listening

(defmethod hunchentoot:start-listening ((acceptor parallel-acceptor))
  (with-slots (listen-path listen-mode listen-fd reuse-port defer-accept) acceptor
    (let* ((address (hunchentoot:acceptor-address acceptor))
           (listener (open-listener address (hunchentoot:acceptor-port acceptor)
                                    (hunchentoot:acceptor-listen-backlog acceptor)
                                    :path listen-path :mode listen-mode :descriptor listen-fd
                                    :reuse-port reuse-port :defer-accept defer-accept)))
      (setf (acceptor-listener acceptor) listener)
      (multiple-value-bind (name port) (local-name listener)
        (set-acceptor-name acceptor (if (or listen-path listen-fd) name address) port))
      (values))))

(defmethod hunchentoot:accept-connections ((acceptor parallel-acceptor))
  "Does the work of the current worker."
  (funcall *work*))

;;; Start and stop

(defmethod server-engine ((server parallel-acceptor))
  (slot-value server 'engine))

(defmethod place-of ((acceptor hunchentoot:acceptor))
  (place-text (hunchentoot:acceptor-address acceptor) (hunchentoot:acceptor-port acceptor)))

(defmethod place-of ((taskmaster recycling-taskmaster))
  (place-of (hunchentoot:taskmaster-acceptor taskmaster)))

(defun program-comes-first-p (acceptor)
  "True if a program has methods of PROCESS-CONNECTION for the class of ACCEPTOR that come before
Hunchentoot's and ours."
  (flet ((methods-for (acceptor)
           (compute-applicable-methods
            #'hunchentoot:process-connection
            (list acceptor (make-instance 'usocket:stream-usocket :socket nil :stream nil)))))
    (and (find '(:after) (set-difference (methods-for acceptor)
                                         (methods-for (allocate-instance
                                                       (find-class 'parallel-acceptor))))
               :key #'method-qualifiers :test-not #'equal)
         t)))

(defmethod hunchentoot:start ((acceptor parallel-acceptor))
  "Starts ACCEPTOR, and returns it once it accepts connections.  When that fails, signals the reason
and leaves it stopped."
  (when (hunchentoot:started-p acceptor)
    (hunchentoot:parameter-error "~A is already listening." acceptor))
  (prepare-process)
  (with-slots (engine server-name reads-first-p) acceptor
    (unless (boundp 'hunchentoot:*session-secret*)
      (make-secret))                    ; Hunchentoot would do it later, and warn
    (setf engine nil
          server-name (coerce (acceptor-server-name acceptor) 'text) ; as each reply needs it
          reads-first-p (program-comes-first-p acceptor))
    (unless-returned (progn (call-next-method)
                            (settle-acceptor-logs acceptor))
      (when engine                      ; it may have started before the failure
        (stop-engine engine :timeout 0))
      (stop-listening acceptor (acceptor-listener acceptor))
      (settle-acceptor-logs acceptor))
    acceptor))

(defmethod hunchentoot:stop ((acceptor parallel-acceptor)
                             &key soft (timeout (if soft nil 1)) (delay 0))
  "Stops ACCEPTOR and frees its port.  Waits for running requests up to TIMEOUT seconds, a real, or
NIL for no limit; when SOFT, also serves the requests that have come.  Connections without a request
end at once.  That, and writing the last lines of the logs, may take up to five seconds each.

When SOFT, ACCEPTOR first serves for DELAY seconds, a real, as before, but closes each connection
after the next reply, and is not ready, as MAKE-READINESS-DISPATCHER tells: balancers have that time
to ask other servers.

Returns ACCEPTOR and a list of plists: one for each thread that still runs its request, and, when
SOFT, one for each connection without a thread whose client has not got all of its reply, as in
LIST-CONNECTIONS.  Does nothing when ACCEPTOR is not started.  Signals STOP-FROM-WORKER in a request
handler of ACCEPTOR."
  (let ((engine (server-engine acceptor)) ; a later start may make another one
        (left '()))
    (when (hunchentoot:started-p acceptor)
      (setf left (stop-engine engine :soft soft :timeout timeout :delay delay))
      (stop-listening acceptor (engine-listener engine))
      (settle-acceptor-logs acceptor))
    (values acceptor left)))

;;; What programs ask while a request is served

(defmethod hunchentoot:acceptor-persistent-connections-p :around ((acceptor parallel-acceptor))
  "False when the connection of the current request should not be kept.  Hunchentoot asks when it
writes the head of a reply."
  (and (call-next-method)
       (or (null *exchange*)
           (and (exchange-kept-p *exchange*)
                (not (last-of-connection-p *exchange*))))))

(defun told-scheme (request)
  "The scheme of the client of REQUEST, :HTTP or :HTTPS, as a trusted proxy has told it; NIL where
none has."
  (hunchentoot:aux-request-value 'scheme request))

(defmethod hunchentoot:acceptor-ssl-p :around ((acceptor parallel-acceptor))
  "While a request is processed whose scheme a trusted proxy has told, true when that is https.
HUNCHENTOOT:SSL-P and HUNCHENTOOT:REDIRECT ask."
  (let ((request (current-request)))
    (if (and request
             (eq acceptor (hunchentoot:request-acceptor request))
             (told-scheme request))
        (eq :https (told-scheme request))
        (call-next-method))))

(defun behind-proxies-p (acceptor)
  "True when ACCEPTOR, of any class, believes some proxies, and nobody else."
  (and (typep acceptor 'parallel-acceptor)
       (acceptor-trusted-proxies acceptor)
       t))
