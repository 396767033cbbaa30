(in-package #:hunchentoot-recycling-taskmaster)

;;;; For people who run servers: statistics, pages, the last resort, and the main function.

(define-condition recycling-taskmaster-corrupted-error (recycling-error)
  ((acceptor :initarg :acceptor :reader corrupted-acceptor)
   (problems :initarg :problems :reader corruption-problems))
  (:report (lambda (condition stream)
             (format stream "~A has threads that were destroyed, and did not end:~{~%  ~S~}"
                     (corrupted-acceptor condition) (corruption-problems condition))))
  (:documentation "Signalled by ABANDON-ACCEPTOR when threads have survived their destruction.  The
restart RETRY destroys the threads once more, and IGNORE goes on."))

(defun abandon-acceptor (acceptor)
  "The last resort when STOP does not help, for the REPL: destroys every thread of ACCEPTOR in the
middle of its work, frees the port, and returns ACCEPTOR, which can be started again.

Signals RECYCLING-TASKMASTER-CORRUPTED-ERROR, with restarts RETRY and IGNORE, when threads survive.
Signals STOP-FROM-WORKER in a request handler of ACCEPTOR."
  (let ((engine (server-engine acceptor)))
    (loop
      (let ((survivors (and engine (stop-engine engine :timeout 5 :destroy-p t))))
        (stop-listening acceptor (and engine (engine-listener engine)))
        (settle-acceptor-logs acceptor)
        (unless survivors
          (return acceptor))
        (restart-case (error 'recycling-taskmaster-corrupted-error
                             :acceptor acceptor :problems survivors)
          (retry ()
            :report "Destroy the threads once more.")
          (ignore ()
            :report "Go on without them."
            (return acceptor)))))))

;;; The main function of a program, which serves until signals end it

(defmethod begin-serving ((acceptor parallel-acceptor))
  (hunchentoot:start acceptor)
  (tell (acceptor-taskmaster acceptor) :info "Listening on ~A." (place-of acceptor)))

(defmethod end-serving ((acceptor parallel-acceptor) soft-p seconds &optional (delay 0))
  (nth-value 1 (hunchentoot:stop acceptor :soft soft-p :timeout seconds :delay delay)))

(defmethod renew-files ((acceptor parallel-acceptor))
  (reopen-logs acceptor))

(defun serve-until-signalled (acceptor &key (drain-timeout 30) (drain-delay 0) on-start)
  "The main function of a program: starts ACCEPTOR, serves until a signal ends that, and exits.
Never returns.  ACCEPTOR is a PARALLEL-ACCEPTOR, or a function without arguments that makes one; an
error of that function counts as a failed start.  Call it in the main thread.

  SIGTERM, SIGINT  stop softly, and exit with 0: every request that has come is answered, event
                   streams end, and WebSockets get a close frame with code 1001.  What lasts longer
                   than DRAIN-TIMEOUT seconds, a real, or NIL for no limit, is cut short.  A second
                   such signal, at least half a second later, cuts short all that still runs
                   For DRAIN-DELAY seconds before that, a real, it serves, but is not ready, and
                   closes each connection after the next reply, so that balancers in front of it
                   ask other servers
  SIGHUP           REOPEN-LOGS and, with TLS, RELOAD-CERTIFICATES

On SBCL under Linux, if the environment variable NOTIFY_SOCKET is set, the service manager is told
by the protocol of sd_notify(3): READY=1 when ON-START has returned, STOPPING=1, and WATCHDOG=1
while the pool serves, if WATCHDOG_USEC is set.  The variables are removed from the environment.

ON-START, a function or NIL, is called with the acceptor once that accepts connections.  If the
start or ON-START signals an error, the process prints it as one sentence to *ERROR-OUTPUT*, and
exits with 1.  The last lines of the logs may take five seconds more than DRAIN-TIMEOUT, and so may
exit hooks of the program.  Signals an error on a Lisp other than SBCL, ECL and ABCL."
  (serve-and-exit (lambda ()
                    (if (typep acceptor 'hunchentoot:acceptor)
                        acceptor
                        (funcall acceptor)))
                  drain-timeout drain-delay on-start))

;;; Dispatchers with pages for those that watch servers

(defun page-dispatcher (make &rest arguments)
  "A dispatcher with the page that MAKE, MAKE-PAGE or MAKE-LIVE-PAGE, makes of ARGUMENTS."
  (let ((page (with-parameter-errors (apply make arguments))))
    (lambda (request)
      (declare (ignore request))
      (let ((answer (and *exchange* (funcall page *exchange*))))
        (cond ((functionp answer)
               (lambda ()
                 (multiple-value-bind (status type octets headers) (funcall answer)
                   (setf (hunchentoot:return-code*) status
                         (hunchentoot:content-type*) type
                         (hunchentoot:header-out :cache-control) "no-store")
                   (loop for (name value) on headers by #'cddr
                         do (setf (hunchentoot:header-out name) value))
                   octets)))
              (answer
               (lambda ()
                 (defer-reply (reply :timeout nil)
                   (let ((stream (start-event-stream reply :heartbeat nil)))
                     (when stream
                       (send-snapshots answer stream)))))))))))

(defun make-metrics-dispatcher (path &key servers (allow *loopback*))
  "A dispatcher for HUNCHENTOOT:*DISPATCH-TABLE* that answers GET and HEAD of PATH, a string, with
the STATS of SERVERS as metrics for Prometheus: version 0.0.4 of its text format.

  SERVERS  a list of acceptors, and of servers of Clack applications; by default the acceptor that
           serves the request
  ALLOW    the clients that get the page, a list: addresses and networks, strings as \"192.0.2.1\"
           and \"10.0.0.0/8\", and :UNIX for those of Unix-domain sockets.  By default those on this
           machine.  Others get what the rest of the dispatch table has for them.  So do requests
           with X-Forwarded-For or Forwarded that come from none of :TRUSTED-PROXIES, and those on
           this machine whose Host may be the name of another site.  Or a function of the address, a
           string, that alone decides

The acceptor that serves the page must be one of ours.

Signals HUNCHENTOOT:PARAMETER-ERROR where PATH or ALLOW makes no sense."
  (page-dispatcher #'make-page #'metrics-page path servers allow))

(defun make-readiness-dispatcher (path &key servers (allow *loopback*))
  "As MAKE-METRICS-DISPATCHER with PATH, SERVERS and ALLOW, but the page tells a load balancer
whether all of SERVERS take new requests: with status 200, or 503 (RFC 9110, section 15.6.4) as soon
as one of them is being stopped, and before it is started.  Host may be any name.  Signals
HUNCHENTOOT:PARAMETER-ERROR."
  (page-dispatcher #'make-page #'readiness-page path servers allow :any-host-p t))

(defun make-liveness-dispatcher (path &key (allow *loopback*))
  "As MAKE-METRICS-DISPATCHER with PATH and ALLOW, but the page is always 200: it tells that a
thread serves.  Host may be any name.  Signals HUNCHENTOOT:PARAMETER-ERROR."
  (page-dispatcher #'make-page #'liveness-page path '() allow :any-host-p t))

(defun make-live-page-dispatcher (path &key servers (allow *loopback*))
  "As MAKE-METRICS-DISPATCHER with PATH, SERVERS and ALLOW, but with a page for people, which shows
SERVERS at work: workers, connections, rates, latency, collections of garbage and memory.  It gets
its figures each second, by server-sent events of PATH/events.  A click on a worker that serves a
request POSTs to PATH/worker, which interrupts the worker for a moment to learn in which functions
it is, where the Lisp can tell.  Signals HUNCHENTOOT:PARAMETER-ERROR."
  (page-dispatcher #'make-live-page path servers allow))
