(in-package #:hunchentoot-recycling-taskmaster-benchmark)

;;;; The run.  Servers with the same setup run side by side and are measured in
;;;; turn, each once in a round, so that a change of the machine's mood meets all of them.

(defparameter *pause* 0.3
  "Seconds between two measurements, for the last one's connections to go away.")

(defstruct run
  "A run under way: what it does, where it is kept, how far it is, which of the load
TOOLS it can use, keys of *LOAD-TOOLS*, its running SERVERS, the rivals
that FAILED to start, and the directory of the CERTIFICATE that all servers have, once there is
one."
  settings result progress tools servers failed certificate)

(defun note (run server workload control &rest arguments)
  "RECORD-NOTE in the result of RUN; SERVER is one, or a rival, or NIL, and WORKLOAD
one or NIL."
  (apply #'record-note (run-result run)
         (typecase server (server (server-name server)) (rival (rival-name server)))
         (and workload (workload-name workload))
         control arguments))

;;; What can be done here

(defparameter *load-tools*
  (flet ((helper (name source)
           (lambda () (c-program name source "client.c"))))
    (list (list :wrk "speed" (lambda () (find-program "wrk")))
          (list :fair "fairness" (helper "fair" "fair.c"))
          (list :idle "workloads with idle connections" (helper "idle" "idle.c"))
          (list :burst "workloads all at once" (helper "burst" "burst.c"))
          (list :tls "new connections and fairness over TLS" #'tls-program)
          (list :certificate "workloads over TLS" (lambda () (find-program "openssl")))
          (list :deferred "late answers" #'later-program)
          (list :events "server-sent events" #'events-program)
          (list :websocket "WebSockets" #'websocket-program)))
  "The load tools: key, what is left out without it, and a function that finds or builds it.")

(defun check-tools (run)
  "Find out which load tools RUN can use, and note what is left out for want of the others."
  (setf (run-tools run)
        (loop for (tool figures find) in *load-tools*
              when (with-unavailable-noted
                       ((lambda (reason) (note run nil nil "~a left out: ~a" figures reason)))
                     (funcall find))
                collect tool)))

(defun usable-p (run tool)
  "Can RUN use TOOL?"
  (member tool (run-tools run)))

(defun check-rivals (run)
  "Leave out the rivals of RUN that can't be had here, and note why."
  (let ((settings (run-settings run)))
    (setf (settings-rivals settings)
          (remove-if-not (lambda (rival)
                           (with-unavailable-noted
                               ((lambda (reason) (note run rival nil "left out: ~a" reason)))
                             (prepare rival)
                             t))
                         (settings-rivals settings)))))

(defun workloads-of-setup (run setup)
  "The workloads of RUN that need SETUP, as far as there are tools for them."
  (remove-if-not (lambda (workload)
                   (and (equalp setup (setup-of workload))
                        (subsetp (kind-tools (kind-of workload)) (run-tools run))))
                 (settings-workloads (run-settings run))))

(defun asked-for-p (settings rival workload)
  "Is RIVAL to be measured under WORKLOAD, by SETTINGS?  In the standard run some are under a few
workloads only."
  (let ((names (rival-standard-workloads rival)))
    (or (null names)
        (not (eq :standard (settings-set settings)))
        (member (workload-name workload) names :test #'string=))))

(defun entrant-p (run rival workload)
  "Is RIVAL to be measured for RUN under WORKLOAD, and lacks nothing for that?"
  (and (asked-for-p (run-settings run) rival workload)
       (not (obstacle rival workload))))

(defun entrants (run workload)
  "The rivals of RUN that are to be measured under WORKLOAD."
  (remove-if-not (lambda (rival) (entrant-p run rival workload))
                 (settings-rivals (run-settings run))))

(defun contenders (run setup)
  "The rivals of RUN that can take part in some workload that needs SETUP."
  (remove-if-not (lambda (rival)
                   (some (lambda (workload) (member rival (entrants run workload)))
                         (workloads-of-setup run setup)))
                 (settings-rivals (run-settings run))))

(defun note-obstacles (run setup)
  "Note who of RUN is left out of which workloads that need SETUP, and why."
  (let ((contenders (contenders run setup)))
    (dolist (rival (settings-rivals (run-settings run)))
      (dolist (workload (workloads-of-setup run setup))
        (let ((reason (and (asked-for-p (run-settings run) rival workload)
                           (obstacle rival workload))))
          (cond ((null reason))
                ((member rival contenders) (note run rival workload "left out: ~a" reason))
                (t (note run rival nil "no cells with ~a: ~a" (setup-title setup) reason)
                   (return))))))))

;;; The certificate of all servers

(defun ensure-certificate (run setup)
  "The directory of the certificate of RUN if SETUP needs one, made now if there is none; else NIL.
UNAVAILABLE if it can't be made."
  (and (setup-tls-p setup)
       (or (run-certificate run)
           (setf (run-certificate run) (make-certificate)))))

(defun discard-certificate (run)
  "Remove the certificate of RUN, if there is one."
  (when (run-certificate run)
    (remove-directory (shiftf (run-certificate run) nil))))

;;; Measuring

(defun measure-load (server workload seconds log)
  "The figures of SERVER under SECONDS of the load of WORKLOAD, of which what is printed goes to the
file LOG."
  (let ((process (server-process server))
        (port (server-port server)))
    (ecase (kind-loader (kind-of workload))
      (:burst (measure-burst process port (workload-connections workload) log))
      ((:deferred :events :websocket) (measure-lasting process port workload seconds log))
      ((:wrk :tls) (measure-speed process (load-command port workload seconds) seconds log
                                  :silent-close-p (and (eq (workload-kind workload) :close)
                                                       (silent-close-p server)))))))

(defun load-usable-p (run workload)
  "Has RUN the tool that loads servers as WORKLOAD says?"
  (usable-p run (kind-loader (kind-of workload))))

(defun call-beside (run server workload seconds log function)
  "Call FUNCTION, of no arguments, which takes SECONDS, beside the clients that WORKLOAD wants
besides those that are measured; what is printed of them goes to the file LOG.  Return the figures
that it returned, and theirs."
  (let ((port (server-port server)))
    (case (workload-kind workload)
      (:idle (call-with-idle-connections port (settings-idle (run-settings run)) log function))
      (:mixed (call-with-slow-clients port (slow-clients workload) (1+ (ceiling seconds))
                                      log function))
      (t (funcall function)))))

(defun log-of (run server workload what)
  "A new log of RUN for WHAT is done with SERVER under WORKLOAD."
  (log-file (run-result run) "~a-~a-~a" what (workload-name workload) (server-name server)))

(defun measure-cell (run server workload)
  "The figures of one round of SERVER under WORKLOAD."
  (let* ((settings (run-settings run))
         (seconds (settings-seconds settings))
         (fair-ms (settings-fair-ms settings)))
    (when (eq (workload-kind workload) :burst)
      (await-rest server))
    (call-beside
     run server workload (+ seconds (/ fair-ms 1000)) (log-of run server workload "beside")
     (lambda ()
       (append (when (load-usable-p run workload)
                 (measure-load server workload seconds (log-of run server workload "load")))
               (when (counted-p run workload)
                 (measure-fairness (server-port server) workload fair-ms
                                   (log-of run server workload "fair"))))))))

(defun keep-figures (run server workload round figures)
  "Record FIGURES of a ROUND of SERVER under WORKLOAD, and end the line of progress."
  (record-sample (run-result run)
                 (make-sample (server-name server) (workload-name workload) round figures))
  (loop for key in '(:rate :all :each)
        when (getf figures key)
          do (format t "~12@a ~a" (significant (getf figures key))
                     (measure-unit (find-measure key)))))

(defun attempt (run server workload what measure &optional (keep #'identity))
  "Call MEASURE for SERVER under WORKLOAD and then KEEP with the figures; if that fails, or SERVER
dies, note it, and that it was in WHAT.  Is SERVER alive then?"
  (sleep *pause*)
  (multiple-value-bind (figures failure) (ignore-errors (funcall measure))
    (leave-alone server)
    (cond ((not (alive-p server))
           (note run server workload "died in ~a; what it printed is in logs/~a"
                 what (file-namestring (server-log server)))
           nil)
          (failure (note run server workload "~a not measured: ~a" what failure)
                   t)
          (t (funcall keep figures)
             t))))

(defun warm-up (run server workload)
  "Load SERVER as WORKLOAD does, of which nothing is recorded: what is made or compiled on first
requests is there before the first round.  Is SERVER alive then?  Not where its memory is measured:
what was freed would be used again."
  (let ((seconds (settings-warm-seconds (run-settings run))))
    (flet ((warm ()
             (call-beside
              run server workload seconds (log-of run server workload "warm-up-beside")
              (lambda ()
                (measure-load server workload seconds (log-of run server workload "warm-up"))))))
      (or (not (load-usable-p run workload))
          (eq (workload-kind workload) :silent)
          (with-step ((run-progress run) (warm-up-seconds run workload) "~a, warm-up: ~22a"
                      (workload-name workload) (server-name server))
            (attempt run server workload "the warm-up" #'warm))))))

(defun measure-round (run server workload round)
  "Measure SERVER under WORKLOAD and keep the figures, unless it dies; is it alive?"
  (with-step ((run-progress run) (round-seconds run workload) "~a, round ~d: ~22a"
              (workload-name workload) round (server-name server))
    (attempt run server workload (format nil "round ~d" round)
             (lambda () (measure-cell run server workload))
             (lambda (figures) (keep-figures run server workload round figures)))))

(defun serves-p (run server workload)
  "Does SERVER answer the requests of WORKLOAD as it should?  If not, note it for RUN."
  (with-unavailable-noted ((lambda (reason) (note run server workload "left out: ~a" reason)))
    (check-answer server workload)
    t))

(defun measure-in-turn (run servers workload round)
  "Measure SERVERS in ROUND under WORKLOAD; return those that are alive then, in their order."
  (let ((alive (loop for server in (turn-order servers round)
                     when (measure-round run server workload round)
                       collect server)))
    (remove-if-not (lambda (server) (member server alive)) servers)))

(defun measure-workload (run servers workload)
  "Measure those of SERVERS that can do it under WORKLOAD, round by round; who dies is out
until the next."
  (let ((servers (loop for server in servers
                       when (and (entrant-p run (server-rival server) workload)
                                 (serves-p run server workload)
                                 (warm-up run server workload))
                         collect server)))
    (loop for round from 1 to (settings-rounds (run-settings run))
          do (setf servers (measure-in-turn run servers workload round)))))

;;; Servers

(defun start-contender (run rival setup)
  "Start RIVAL as a server of RUN with SETUP.  UNAVAILABLE if it does not start."
  (with-step ((run-progress run) (start-seconds rival) "start ~a, ~a" (rival-name rival)
              (setup-title setup))
    (let ((server (start-server rival (setup-delay-ms setup)
                                (log-file (run-result run) "server-~a-~a" (rival-name rival)
                                          (setup-name setup))
                                :certificate (ensure-certificate run setup))))
      ;; From here on RUN is answerable for its end.
      (push server (run-servers run))
      (record-server (run-result run) server)
      server)))

(defun discard-server (run server)
  "End SERVER, which is one of RUN's no more."
  (setf (run-servers run) (remove server (run-servers run)))
  (stop-server server))

(defun ensure-server (run rival setup)
  "The running server of RIVAL with SETUP, started now if there is none or if it has died; NIL,
with a note, if it does not start.  It isn't tried again with this setup then."
  (let ((server (find rival (run-servers run) :key #'server-rival)))
    (cond ((member rival (run-failed run)) nil)
          ((and server (alive-p server)) server)
          (t (when server (discard-server run server))
             (with-unavailable-noted
                 ((lambda (reason)
                    (push rival (run-failed run))
                    (note run rival nil "no cells with ~a: ~a" (setup-title setup) reason)))
               (start-contender run rival setup))))))

(defun ensure-servers (run setup)
  "The running servers of all contenders of RUN with SETUP, as far as they start."
  (loop for rival in (contenders run setup)
        for server = (ensure-server run rival setup)
        when server collect server))

(defun measure-group (run setup)
  "Measure all of RUN that needs SETUP."
  (setf (run-failed run) '())
  (note-obstacles run setup)
  (unwind-protect
       (dolist (workload (workloads-of-setup run setup))
         (measure-workload run (ensure-servers run setup) workload))
    (dolist (server (run-servers run))
      (discard-server run server))))

(defun measure-all (run)
  "Measure all of RUN; true when that is done.  An interrupt from the keyboard ends it early, with
a note."
  (handler-case (dolist (setup (setups (settings-workloads (run-settings run))) t)
                  (measure-group run setup))
    (sb-sys:interactive-interrupt ()
      (note run nil nil "interrupted: some cells or rounds are missing")
      nil)))
