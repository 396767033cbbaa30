(in-package #:clack.handler.recycling)

;;;; The main function of a program, which serves until signals end it.

(defmethod begin-serving ((server clack-server))
  (start-server server))

(defmethod end-serving ((server clack-server) soft-p seconds &optional (delay 0))
  (nth-value 1 (stop server :soft soft-p :timeout seconds :delay delay)))

(defmethod renew-files ((server clack-server))
  (flush-journal (server-journal server)))

(defmethod tell-operator ((server clack-server) level text)
  (tell server level *rare-control* text nil))

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
  SIGQUIT          write STATS to *ERROR-OUTPUT*

The service manager is told as there.

ON-START, a function or NIL, is called with the server once that accepts connections.  If the start
or ON-START signals an error, the process prints it as one sentence to *ERROR-OUTPUT*, and exits
with 1.  Signals an error on a Lisp other than SBCL, ECL and ABCL."
  (serve-and-exit (lambda ()
                    (join-clack-socket)
                    (make-clack-server app arguments))
                  drain-timeout drain-delay on-start))
