(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; The main function of a program: it serves until a signal ends it.
;;;;
;;;;   signal             errand    the main thread
;;;;   SIGTERM, SIGINT    :STOP     has a thread drain the server; at a second one, stops it at once
;;;;   SIGHUP             :RENEW    has a thread open the logs and read the certificates anew
;;;;   -                  :LEAVE    exits, since the server was drained
;;;;
;;;; The handler of a signal may run at any moment, in any thread.  So it only leaves an errand to
;;;; the main thread.  That waits for no disk, client or handler, so that it always heeds a signal:
;;;; at most two seconds late for each message that a service manager does not take.

;;; What differs between kinds of servers

(defgeneric begin-serving (server)
  (:documentation "Starts SERVER.  Signals an error where it cannot."))

(defgeneric end-serving (server soft-p seconds &optional delay)
  (:documentation "Stops SERVER, which may have been stopped before: gently if SOFT-P, after DELAY
seconds in which it serves, a real, then, and within SECONDS, a real, or NIL for no limit.  Returns
a list with one element for each thread and connection that did not finish."))

(defgeneric renew-files (server)
  (:documentation "Has SERVER open its logs anew, and read its certificates anew if it has any.
Signals an error where it cannot, and goes on with the old ones then."))

;;; The service manager
;;;
;;; What a program tells the service manager that has started it, systemd, say: see sd_notify(3).
;;;
;;;   message                         when
;;;   READY=1                         the server accepts connections
;;;   STOPPING=1                      a stop begins
;;;   WATCHDOG=1                      in each period, by the pool, while that serves

(defstruct (errands (:include opaque))
  "What signals ask the main thread to do, and the service manager that it tells."
  (lock (bt:make-lock "errands") :read-only t)
  (changed (bt:make-condition-variable) :read-only t)
  (waiting '() :type list)              ; each kind once, so that many signals fill no memory
  (manager nil :type (or null string))) ; its socket; NIL for none

(defun leave-errand (errands kind)
  "Asks the main thread for one of ERRANDS, of KIND, a keyword."
  (with-lock-briefly ((errands-lock errands))
    (pushnew kind (errands-waiting errands))
    (bt:condition-notify (errands-changed errands))))

(defun tell-operator (server level text)
  "Writes TEXT, a sentence without its full stop, to the message log of SERVER, which was started,
at LEVEL, a keyword, however many messages came before."
  (tell (engine-service (server-engine server)) level *rare-control* text nil))

(defun notify (errands text)
  "Sends the manager, if there is one, TEXT.  Waits two seconds for room."
  (when (errands-manager errands)
    (send-notification (errands-manager errands) text 2)))

(defun feed-watchdog (errands engine seconds)
  "Has the pool of ENGINE feed the watchdog of the manager, which waits for SECONDS, until ENGINE
stops: a request comes to the same workers, from the same poller, as a timer."
  (schedule engine (/ seconds 3)
            (lambda ()
              (feed-watchdog errands engine seconds)
              (notify errands "WATCHDOG=1"))))

;;; Errands

(defun begin-aside (name function)
  "Has a new thread called NAME call FUNCTION, and returns it.  Where no thread can be made, the
current one does that, and NIL is returned."
  (handler-case (call-making-thread (lambda () (bt:make-thread function :name name)))
    (error ()
      (funcall function)
      nil)))

(defun note-cut (exchange)
  "Notes the request of EXCHANGE, which gets no further, as answered by 503, if its server stops and
its reply has not begun."
  (unless (or (exchange-status exchange) (running-p (exchange-engine exchange)))
    (setf (exchange-status exchange) 503)
    (note-rejected (exchange-application exchange) (exchange-http exchange)
                   (make-refusal :handler-timeout) (exchange-head exchange))))

(defun do-errands (server errands drain-seconds drain-delay)
  "Does ERRANDS, and returns when SERVER was stopped, which may take DRAIN-SECONDS, or NIL for no
limit, after DRAIN-DELAY seconds."
  (let ((drainer nil) (stopping-since nil))
    (labels ((telling (control function)
               (handler-case (funcall function)
                 (error (condition)
                   (tell-operator server :error
                                  (string-right-trim "." (message-text control (list condition))))
                   nil)))
             (stop (soft-p seconds delay)
               (telling "The server could not stop in order: ~A"
                        (lambda ()
                          (prog1 (end-serving server soft-p seconds delay)
                            (dolist (worker (workers-of server))
                              (when (being-served-p worker)
                                (ignore-errors ; its thread may go on meanwhile
                                  (note-cut (getf worker :task)))))))))
             (renew ()
               (telling "SIGHUP: the logs or certificates could not be renewed: ~A"
                        (lambda ()
                          (renew-files server)
                          (tell-operator server :info
                                         "SIGHUP: the logs and any certificates were renewed"))))
             (drain ()
               (let ((unfinished (stop t drain-seconds drain-delay)))
                 (leave-errand errands :leave)
                 (when unfinished
                   (tell-operator
                    server :warning
                    (format nil "~D request~:P or connection~:P did not finish in time"
                            (length unfinished)))))))
      (loop
        (ecase (wait-until (lambda () (pop (errands-waiting errands)))
                           (errands-changed errands) (errands-lock errands)
                           nil
                           ;; A signal may come just before the wait, in the thread that waits.
                           1)
          (:renew (begin-aside "renew" #'renew))
          (:leave (return))
          (:stop
           (cond ((null stopping-since)
                  (notify errands "STOPPING=1")
                  (tell-operator server :info
                                 (format nil "Stopping~@[ in ~D second~:P~]"
                                         (and (plusp drain-delay) drain-delay)))
                  (setf stopping-since (milliseconds)
                        drainer (begin-aside "drain" #'drain)))
                 ;; Earlier, it is the same: a signal to the group of processes, as from a
                 ;; terminal, may reach the server once more through its parent, such as make.
                 ((< 500 (- (milliseconds) stopping-since))
                  (stop nil 0 0)
                  (return)))))))
    (when drainer
      (join-thread drainer 1))))        ; until it has written the last message

;;; From the start to the exit

(defun serve-and-exit (make drain-timeout drain-delay on-start)
  "Serves with the server that MAKE, a function, returns, until signals end that, and exits: with 1
when the start has failed, which is printed in one sentence, else with 0.  DRAIN-TIMEOUT, a real or
NIL, DRAIN-DELAY, a real, and ON-START, a function or NIL, are as for
HUNCHENTOOT-RECYCLING-TASKMASTER:SERVE-UNTIL-SIGNALLED.  Never returns."
  ;; Programs that this one starts must not speak in its name.
  (let ((errands (make-errands :manager (take-variable "NOTIFY_SOCKET")))
        (watchdog (take-number "WATCHDOG_USEC"))
        (process (take-number "WATCHDOG_PID"))
        (server nil)
        (started-p nil))
    ;; First, or SIGTERM would still be the Lisp's.
    (loop for (signal kind) in '((:terminate :stop) (:interrupt :stop) (:hangup :renew))
          do (let ((kind kind))
               (call-on-signal signal (lambda () (leave-errand errands kind)))))
    (handler-case
        (progn
          (check-arguments (list :drain-timeout drain-timeout :drain-delay drain-delay)
                           (arguments-of :run))
          (setf server (funcall make))
          (begin-serving server)
          (when on-start
            (funcall on-start server))
          (setf started-p t))
      (error (condition)
        (format *error-output* "~&The server cannot start: ~A~%"
                (substitute #\Space #\Newline (message-text "~A" (list condition))))
        (finish-output *error-output*)
        (when server
          (ignore-errors (end-serving server nil 0)))))
    (when started-p
      (notify errands "READY=1")
      (when (and watchdog (member process (list nil (process-number))))
        (feed-watchdog errands (server-engine server) (/ watchdog 1000000)))
      (do-errands server errands drain-timeout drain-delay))
    (exit-process (if started-p 0 1) 1)))
