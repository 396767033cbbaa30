(in-package #:hunchentoot-recycling-taskmaster)

;;;; The main function of a program, which serves until signals end it.

(defmethod begin-serving ((acceptor parallel-acceptor))
  (hunchentoot:start acceptor)
  (complain acceptor :info "Listening on ~A." (place-of acceptor)))

(defmethod end-serving ((acceptor parallel-acceptor) soft-p seconds &optional (delay 0))
  (nth-value 1 (hunchentoot:stop acceptor :soft soft-p :timeout seconds :delay delay)))

(defmethod renew-files ((acceptor parallel-acceptor))
  (reopen-logs acceptor))

(defmethod tell-operator ((acceptor parallel-acceptor) level text)
  (complain acceptor level *rare-control* text nil))

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
  SIGQUIT          write STATS to the message log; on other Lisps than SBCL, SIGUSR1 does

On SBCL under Linux, if the environment variable NOTIFY_SOCKET is set, the service manager is told
by the protocol of sd_notify(3): READY=1 when ON-START has returned, RELOADING=1 and READY=1 around
what SIGHUP does, STOPPING=1, STATUS with figures, and WATCHDOG=1 while the pool serves, if
WATCHDOG_USEC is set.  The variables are removed from the environment.

ON-START, a function or NIL, is called with the acceptor once that accepts connections.  If the
start or ON-START signals an error, the process prints it as one sentence to *ERROR-OUTPUT*, and
exits with 1.  The last lines of the logs may take five seconds more than DRAIN-TIMEOUT, and so may
exit hooks of the program.  Signals an error on a Lisp other than SBCL, ECL and ABCL."
  (serve-and-exit (lambda ()
                    (if (typep acceptor 'hunchentoot:acceptor)
                        acceptor
                        (funcall acceptor)))
                  drain-timeout drain-delay on-start))
