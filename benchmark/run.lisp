(in-package #:hunchentoot-recycling-taskmaster-benchmark)

;;;; The run.  Servers with the same delay run side by side and are measured in
;;;; turn, A B C A B C, so that a change of the machine's mood meets all of them.

(defparameter *pause* 0.3
  "Seconds between two measurements, for the last one's connections to go away.")

(defstruct run
  "A run under way: what it does, where it is kept, how far it is, which of the load
TOOLS it can use (:WRK, :FAIR, :IDLE, :BURST), its running SERVERS, and the rivals that FAILED
to start."
  settings result progress tools servers failed)

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
          (list :burst "workloads all at once" (helper "burst" "burst.c"))))
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

(defun workloads-with-delay (run delay-ms)
  "The workloads of RUN whose handlers wait DELAY-MS, as far as there are tools for them."
  (remove-if-not (lambda (workload)
                   (and (= delay-ms (workload-delay-ms workload))
                        (subsetp (kind-tools (kind-of workload)) (run-tools run))))
                 (settings-workloads (run-settings run))))

(defun entrants (run workload)
  "The rivals of RUN that lack nothing for WORKLOAD."
  (remove-if (lambda (rival) (obstacle rival workload))
             (settings-rivals (run-settings run))))

(defun contenders (run delay-ms)
  "The rivals of RUN that can take part in some workload whose handlers wait DELAY-MS."
  (remove-if-not (lambda (rival)
                   (some (lambda (workload) (member rival (entrants run workload)))
                         (workloads-with-delay run delay-ms)))
                 (settings-rivals (run-settings run))))

(defun note-obstacles (run delay-ms)
  "Note who of RUN is left out of which workloads whose handlers wait DELAY-MS, and why."
  (let ((contenders (contenders run delay-ms)))
    (dolist (rival (settings-rivals (run-settings run)))
      (dolist (workload (workloads-with-delay run delay-ms))
        (let ((reason (obstacle rival workload)))
          (cond ((null reason))
                ((member rival contenders) (note run rival workload "left out: ~a" reason))
                (t (note run rival nil "no cells with ~d ms: ~a" delay-ms reason)
                   (return))))))))

(defun delays (run)
  "The delays, in ms, among the workloads of RUN."
  (sort (remove-duplicates (mapcar #'workload-delay-ms (settings-workloads (run-settings run))))
        #'<))

;;; The plan

(defun start-seconds (rival)
  "How long it takes to start RIVAL and to warm it up, about."
  (if (typep rival 'lisp-rival) 4 2))

(defun counted-p (run workload round)
  "Is it counted in ROUND, which must be the last of RUN, who is served under WORKLOAD?"
  (and (usable-p run :fair)
       (kind-counted-p (kind-of workload))
       (= round (settings-rounds (run-settings run)))))

(defun round-seconds (run workload round)
  "How long RUN will take for ROUND of a server under WORKLOAD, about."
  (let ((settings (run-settings run)))
    (+ *pause* 0.3 (settings-seconds settings)
       (if (counted-p run workload round) (/ (settings-fair-ms settings) 1000) 0)
       (kind-extra-seconds (kind-of workload)))))

(defun cell-seconds (run workload)
  "How long RUN will take for all rounds of a server under WORKLOAD, about."
  (loop for round from 1 to (settings-rounds (run-settings run))
        sum (round-seconds run workload round)))

(defun run-seconds (run)
  "How long RUN will take, about."
  (loop for delay-ms in (delays run)
        sum (reduce #'+ (contenders run delay-ms) :key #'start-seconds)
        sum (loop for workload in (workloads-with-delay run delay-ms)
                  sum (* (length (entrants run workload)) (cell-seconds run workload)))))

;;; Measuring

(defun measure-load (run server workload log)
  "The figures of SERVER under the load of WORKLOAD, of which what is printed goes to the file
LOG.  RUN says how long."
  (let ((process (server-process server))
        (port (server-port server))
        (seconds (settings-seconds (run-settings run))))
    (cond ((eq (workload-kind workload) :burst)
           (await-rest server)
           (measure-burst process port (workload-connections workload) log))
          ((usable-p run :wrk)
           (measure-speed process (wrk-command port workload seconds) seconds log)))))

(defun call-beside (run server workload log function)
  "Call FUNCTION, of no arguments, beside the clients that WORKLOAD wants besides those that are
measured; what is printed of them goes to the file LOG.  Return the figures that it returned,
and theirs."
  (let ((settings (run-settings run))
        (port (server-port server)))
    (case (workload-kind workload)
      (:idle (call-with-idle-connections port (settings-idle settings) log function))
      (:mixed (call-with-slow-clients port (slow-clients workload)
                                      (+ 1 (settings-seconds settings)
                                         (ceiling (settings-fair-ms settings) 1000))
                                      log function))
      (t (funcall function)))))

(defun measure-cell (run server workload round)
  "The figures of one ROUND of SERVER under WORKLOAD."
  (flet ((log-of (what)
           (log-file (run-result run) "~a-~a-~a-~d" what (workload-name workload)
                     (server-name server) round)))
    (call-beside
     run server workload (log-of "beside")
     (lambda ()
       (append (measure-load run server workload (log-of "load"))
               (when (counted-p run workload round)
                 (measure-fairness (server-port server) workload
                                   (settings-fair-ms (run-settings run)) (log-of "fair"))))))))

(defun keep-figures (run server workload round figures)
  "Record FIGURES of a ROUND of SERVER under WORKLOAD, and end the line of progress."
  (record-sample (run-result run)
                 (make-sample (server-name server) (workload-name workload) round figures))
  (loop for key in '(:rate :all)
        when (getf figures key)
          do (format t "~12@a ~a" (significant (getf figures key))
                     (measure-unit (find-measure key)))))

(defun measure-round (run server workload round)
  "Measure SERVER under WORKLOAD and keep the figures, unless it dies; is it alive?"
  (sleep *pause*)
  (multiple-value-bind (figures failure)
      (ignore-errors (measure-cell run server workload round))
    (leave-alone server)
    (cond ((not (alive-p server))
           (note run server workload "died in round ~d; what it printed is in logs/~a"
                 round (file-namestring (server-log server)))
           nil)
          (failure (note run server workload "round ~d not measured: ~a" round failure)
                   t)
          (t (keep-figures run server workload round figures)
             t))))

(defun serves-p (run server workload)
  "Does SERVER answer the requests of WORKLOAD as it should?  If not, note it for RUN."
  (with-unavailable-noted ((lambda (reason) (note run server workload "left out: ~a" reason)))
    (check-answer server workload)
    t))

(defun measure-workload (run servers workload)
  "Measure those of SERVERS that can do it under WORKLOAD, round by round; who dies is out
until the next."
  (setf servers (remove-if-not (lambda (server)
                                 (and (not (obstacle (server-rival server) workload))
                                      (serves-p run server workload)))
                               servers))
  (loop for round from 1 to (settings-rounds (run-settings run))
        do (setf servers
                 (loop for server in servers
                       when (with-step ((run-progress run) (round-seconds run workload round)
                                        "~a, round ~d: ~22a"
                                        (workload-name workload) round (server-name server))
                              (measure-round run server workload round))
                         collect server))))

;;; Servers

(defun start-contender (run rival delay-ms)
  "Start RIVAL as a server of RUN and warm it up.  UNAVAILABLE if it does not start."
  (flet ((log-of (what)
           (log-file (run-result run) "~a-~a-~dms" what (rival-name rival) delay-ms)))
    (with-step ((run-progress run) (start-seconds rival) "start ~a, ~d ms"
                (rival-name rival) delay-ms)
      (let ((server (start-server rival delay-ms (log-of "server"))))
        ;; From here on RUN is answerable for its end.
        (push server (run-servers run))
        (record-server (run-result run) server)
        (when (usable-p run :wrk)
          (warm-up (server-port server) (log-of "warm-up"))
          (leave-alone server))
        server))))

(defun discard-server (run server)
  "End SERVER, which is one of RUN's no more."
  (setf (run-servers run) (remove server (run-servers run)))
  (stop-server server))

(defun ensure-server (run rival delay-ms)
  "The running server of RIVAL, started now if there is none or if it has died; NIL,
with a note, if it does not start.  It isn't tried again with this delay then."
  (let ((server (find rival (run-servers run) :key #'server-rival)))
    (cond ((member rival (run-failed run)) nil)
          ((and server (alive-p server)) server)
          (t (when server (discard-server run server))
             (with-unavailable-noted
                 ((lambda (reason)
                    (push rival (run-failed run))
                    (note run rival nil "no cells with ~d ms: ~a" delay-ms reason)))
               (start-contender run rival delay-ms))))))

(defun ensure-servers (run delay-ms)
  "The running servers of all contenders of RUN with DELAY-MS, as far as they start."
  (loop for rival in (contenders run delay-ms)
        for server = (ensure-server run rival delay-ms)
        when server collect server))

(defun measure-group (run delay-ms)
  "Measure all of RUN that has handlers of DELAY-MS."
  (setf (run-failed run) '())
  (note-obstacles run delay-ms)
  (unwind-protect
       (dolist (workload (workloads-with-delay run delay-ms))
         (measure-workload run (ensure-servers run delay-ms) workload))
    (dolist (server (run-servers run))
      (discard-server run server))))

(defun measure-all (run)
  "Measure all of RUN.  An interrupt from the keyboard ends it early, with a note."
  (handler-case (dolist (delay-ms (delays run))
                  (measure-group run delay-ms))
    (sb-sys:interactive-interrupt ()
      (note run nil nil "interrupted: some cells or rounds are missing"))))
