(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; The main function of a program: it serves until a signal ends it.
;;;;
;;;;   signal             errand    the main thread
;;;;   SIGTERM, SIGINT    :STOP     has a thread drain the server; at a second one, stops it at once
;;;;   SIGHUP             :RENEW    has a thread open the logs and read the certificates anew
;;;;   SIGQUIT            :REPORT   writes the statistics to the message log
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
;;;   READY=1                         the server accepts connections, and a reload is over
;;;   RELOADING=1 MONOTONIC_USEC=...  a reload begins
;;;   STOPPING=1                      a stop begins
;;;   STATUS=...                      in each period
;;;   WATCHDOG=1                      in each period, if the pool has served what it was asked to
;;;
;;; The main thread sends the others than WATCHDOG=1, so they come in order.

(defstruct (errands (:include opaque))
  "What signals ask the main thread to do, and the service manager that it tells."
  (lock (bt:make-lock "errands") :read-only t)
  (changed (bt:make-condition-variable) :read-only t)
  (waiting '() :type list)              ; each kind once, so that many signals fill no memory
  (socket nil :type (or null string))   ; of the manager; NIL for none
  (watchdog-seconds nil :type (or null real)) ; the manager restarts what is silent for longer
  (due 0 :type integer)                 ; the moment of the next period
  (asked nil)                           ; the engine whose pool was asked to serve, and has not yet
  (unheard-p nil))                      ; that the manager hears nothing was told

(defun leave-errand (errands kind)
  "Asks the main thread for one of ERRANDS, of KIND, a keyword."
  (with-lock-briefly ((errands-lock errands))
    (pushnew kind (errands-waiting errands))
    (bt:condition-notify (errands-changed errands))))

(defun find-manager (errands)
  "Has ERRANDS tell the manager that the environment names, if any.  Removes its variables: programs
that this one starts must not speak in its name."
  (let ((socket (take-variable "NOTIFY_SOCKET"))
        (microseconds (take-number "WATCHDOG_USEC"))
        (process (take-number "WATCHDOG_PID")))
    (setf (errands-socket errands) socket
          (errands-watchdog-seconds errands) (and microseconds
                                                  (member process (list nil (process-number)))
                                                  (/ microseconds 1000000)))))

(defun tell-operator (server level text)
  "Writes TEXT, a sentence without its full stop, to the message log of SERVER, which was started,
at LEVEL, a keyword, however many messages came before."
  (tell (engine-service (server-engine server)) level *rare-control* text nil))

(defun notify (errands server control &rest arguments)
  "Sends the manager, if there is one, the text of CONTROL and ARGUMENTS about SERVER.  Tells the
operator the first time that this fails."
  (when (errands-socket errands)
    (let ((reason (send-notification (errands-socket errands)
                                     (apply #'format nil control arguments)
                                     2))) ; how many seconds it waits for room
      (when (and reason (not (shiftf (errands-unheard-p errands) t)))
        (tell-operator server :warning
                       (format nil "The service manager hears nothing: NOTIFY_SOCKET is ~S: ~A"
                               (errands-socket errands) reason))))))

(defun report-to-manager (errands server stopping-p)
  "Tells the manager about SERVER when a period is over, and asks the pool of SERVER to serve, for
the watchdog, which ends when the server begins to stop: STOPPING-P."
  (when (<= (errands-due errands) (milliseconds))
    (let ((seconds (errands-watchdog-seconds errands))
          (engine (server-engine server)))
      (setf (errands-due errands)
            ;; The watchdog wants to be fed within half of its time.
            (+ (milliseconds) (max 10 (min 10000 (if seconds (floor (* 1000 seconds) 3) 10000)))))
      (destructuring-bind (&key open busy served &allow-other-keys) (stats server)
        (notify errands server "STATUS=~D connection~:P, ~D busy thread~:P, ~D request~:P served"
                open busy served))
      ;; One question at a time, or a pool that hangs would collect them.
      (unless (or (null seconds) (null engine) stopping-p (eq engine (errands-asked errands)))
        (setf (errands-asked errands) engine)
        ;; Where connections are parked, a request comes to the same workers from the same poller.
        (schedule engine 0 (lambda ()
                             (setf (errands-asked errands) nil)
                             (notify errands server "WATCHDOG=1")))))))

;;; Errands

(defun begin-aside (name function)
  "Has a new thread called NAME call FUNCTION, and returns it.  Where no thread can be made, the
current one does that, and NIL is returned."
  (handler-case (call-making-thread (lambda () (bt:make-thread function :name name)))
    (error ()
      (funcall function)
      nil)))

(defun call-telling (server control function)
  "Calls FUNCTION and returns its value.  Tells the operator of SERVER about an error, with CONTROL,
for FORMAT, and returns NIL then."
  (handler-case (funcall function)
    (error (condition)
      (tell-operator server :error
                     (string-right-trim "." (message-text control (list condition))))
      nil)))

(defun note-cut (exchange)
  "Notes the request of EXCHANGE, which gets no further, as answered by 503, if its server stops and
its reply has not begun."
  (unless (or (exchange-status exchange) (running-p (exchange-engine exchange)))
    (setf (exchange-status exchange) 503)
    (note-rejected (exchange-application exchange) (exchange-http exchange)
                   (make-refusal :handler-timeout) (exchange-head exchange))))

(defun end-and-tell (server soft-p seconds &optional (delay 0))
  "Stops SERVER like END-SERVING, whose value it returns, and tells the operator about an error.
Notes the requests whose handlers still run, and get no further."
  (call-telling server "The server could not stop in order: ~A"
                (lambda ()
                  (prog1 (end-serving server soft-p seconds delay)
                    (dolist (worker (workers-of server))
                      (when (being-served-p worker)
                        (ignore-errors  ; its thread may go on meanwhile
                          (note-cut (getf worker :task)))))))))

(defun do-errands (server errands drain-seconds drain-delay)
  "Does ERRANDS, and returns when SERVER was stopped, which may take DRAIN-SECONDS, or NIL for no
limit, after DRAIN-DELAY seconds."
  (let ((drainer nil) (stopping-since nil))
    (flet ((renew ()
             (call-telling server "SIGHUP: the logs or certificates could not be renewed: ~A"
                           (lambda ()
                             (renew-files server)
                             (tell-operator server :info
                                            "SIGHUP: the logs and any certificates were renewed"))))
           (drain ()
             (let ((unfinished (end-and-tell server t drain-seconds drain-delay)))
               (leave-errand errands :leave)
               (when unfinished
                 (tell-operator server :warning
                                (format nil "~D request~:P or connection~:P did not finish in time"
                                        (length unfinished)))))))
      (loop
        (when (errands-socket errands)
          (report-to-manager errands server stopping-since))
        (ecase (wait-until (lambda () (pop (errands-waiting errands)))
                           (errands-changed errands) (errands-lock errands)
                           (and (errands-socket errands)
                                (/ (milliseconds-left (errands-due errands)) 1000))
                           ;; A signal may come just before the wait, in the thread that waits.
                           1)
          ((nil))
          (:renew
           (unless stopping-since
             (notify errands server "RELOADING=1~%MONOTONIC_USEC=~D" (microseconds))
             (let ((thread (begin-aside "renew" #'renew)))
               (when thread
                 (join-thread thread 5))) ; a log whose reader has stopped takes no lines
             (notify errands server "READY=1")))
          (:report (tell-operator server :info
                                  (let ((*print-pretty* nil)) ; on one line
                                    (format nil "Statistics: ~(~{~A ~A~^, ~}~)" (stats server)))))
          (:leave (return))
          (:stop
           (cond ((null stopping-since)
                  (notify errands server "STOPPING=1")
                  (tell-operator server :info
                                 (format nil "Stopping~@[ in ~D second~:P~]: what runs has ~
                                              ~:[no limit of time~;~:*up to ~D second~:P~]"
                                         (and (plusp drain-delay) drain-delay) drain-seconds))
                  (setf stopping-since (milliseconds)
                        drainer (begin-aside "drain" #'drain)))
                 ;; Earlier, it is the same: a signal to the group of processes, as from a
                 ;; terminal, may reach the server once more through its parent, such as make.
                 ((< 500 (- (milliseconds) stopping-since))
                  (end-and-tell server nil 0)
                  (return)))))))
    (when drainer
      (join-thread drainer 1))))        ; until it has written the last message

;;; From the start to the exit

(defun serve-and-exit (make drain-timeout drain-delay on-start)
  "Serves with the server that MAKE, a function, returns, until signals end that, and exits: with 1
when the start has failed, which is printed in one sentence, else with 0.  DRAIN-TIMEOUT, a real or
NIL, DRAIN-DELAY, a real, and ON-START, a function or NIL, are as for
HUNCHENTOOT-RECYCLING-TASKMASTER:SERVE-UNTIL-SIGNALLED.  Never returns."
  (let ((errands (make-errands))
        (server nil)
        (started-p nil))
    ;; First, or SIGTERM would still be the Lisp's.
    (loop for (signal kind) in '((:terminate :stop) (:interrupt :stop)
                                 (:hangup :renew) (:report :report))
          do (let ((kind kind))
               (call-on-signal signal (lambda () (leave-errand errands kind)))))
    (find-manager errands)
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
      (notify errands server "READY=1")
      (do-errands server errands drain-timeout drain-delay))
    (exit-process (if started-p 0 1) 1)))
