(in-package #:hunchentoot-recycling-taskmaster-benchmark)

;;;; The run.  Servers with the same delay run side by side and are measured in
;;;; turn, A B C A B C, so that a change of the machine's mood meets all of them.

(defparameter *pause* 0.3
  "Seconds between two measurements, for the last one's connections to go away.")

(defstruct run
  "A run under way: what it does, where it is kept, how far it is, which of the load
tools it can use, its running SERVERS, and the rivals that FAILED to start."
  settings result progress speed-p fair-p idle-p servers failed)

(defun note (run server workload control &rest arguments)
  "RECORD-NOTE in the result of RUN; SERVER is one, or a rival, or NIL, and WORKLOAD
one or NIL."
  (apply #'record-note (run-result run)
         (typecase server (server (server-name server)) (rival (rival-name server)))
         (and workload (workload-name workload))
         control arguments))

;;; What can be done here

(defun usable-p (run tool thunk)
  "Call THUNK; is it without complaint?  If something is UNAVAILABLE, note for RUN
that the figures of TOOL are left out."
  (with-unavailable-noted ((lambda (reason) (note run nil nil "~a left out: ~a" tool reason)))
    (funcall thunk)
    t))

(defun check-tools (run)
  "Find out which load tools RUN can use."
  (setf (run-speed-p run)
        (usable-p run "speed" (lambda () (find-program "wrk")))
        (run-fair-p run)
        (usable-p run "fairness" (lambda () (c-program "fair" "fair.c" "client.c")))
        (run-idle-p run)
        (usable-p run "idle workloads" (lambda () (c-program "idle" "idle.c" "client.c")))))

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

(defun contenders (run delay-ms)
  "The rivals of RUN that can take part with handlers that wait DELAY-MS."
  (remove-if-not (lambda (rival) (or (zerop delay-ms) (rival-delays-p rival)))
                 (settings-rivals (run-settings run))))

(defun workloads-with-delay (run delay-ms)
  "The workloads of RUN whose handlers wait DELAY-MS."
  (remove-if-not (lambda (workload)
                   (and (= delay-ms (workload-delay-ms workload))
                        (or (run-idle-p run) (not (eq (workload-kind workload) :idle)))))
                 (settings-workloads (run-settings run))))

(defun delays (run)
  "The delays, in ms, among the workloads of RUN."
  (sort (remove-duplicates (mapcar #'workload-delay-ms (settings-workloads (run-settings run))))
        #'<))

;;; The plan

(defun start-seconds (rival)
  "How long it takes to start RIVAL and to warm it up, about."
  (if (typep rival 'lisp-rival) 4 2))

(defun last-round-p (run round)
  "Is ROUND the last of RUN?  Fairness is counted then."
  (= round (settings-rounds (run-settings run))))

(defun round-seconds (run workload round)
  "How long RUN will take for ROUND of a server under WORKLOAD, about."
  (let ((settings (run-settings run)))
    (+ *pause* 0.3 (settings-seconds settings)
       (if (last-round-p run round) (/ (settings-fair-ms settings) 1000) 0)
       (if (eq (workload-kind workload) :idle) 10 0))))

(defun cell-seconds (run workload)
  "How long RUN will take for all rounds of a server under WORKLOAD, about."
  (loop for round from 1 to (settings-rounds (run-settings run))
        sum (round-seconds run workload round)))

(defun run-seconds (run)
  "How long RUN will take, about."
  (loop for delay-ms in (delays run)
        for rivals = (contenders run delay-ms)
        sum (reduce #'+ rivals :key #'start-seconds)
        sum (* (length rivals)
               (loop for workload in (workloads-with-delay run delay-ms)
                     sum (cell-seconds run workload)))))

;;; Measuring

(defun measure-cell (run server workload round)
  "The figures of one ROUND of SERVER under WORKLOAD."
  (let* ((settings (run-settings run))
         (port (server-port server))
         (name (format nil "~a-~a-~d" (workload-name workload) (server-name server) round)))
    (flet ((log-of (tool) (log-file (run-result run) "~a-~a" tool name)))
      (append (when (run-speed-p run)
                (measure-speed (server-process server) port workload
                               (settings-seconds settings) (log-of "wrk")))
              (when (and (run-fair-p run) (last-round-p run round))
                (measure-fairness port workload (settings-fair-ms settings) (log-of "fair")))))))

(defun measure-cell-with-idle (run server workload round)
  "MEASURE-CELL, beside idle connections where WORKLOAD wants them."
  (if (eq (workload-kind workload) :idle)
      (call-with-idle-connections
       (server-port server) (settings-idle (run-settings run))
       (log-file (run-result run) "idle-~a-~a-~d" (workload-name workload)
                 (server-name server) round)
       (lambda () (measure-cell run server workload round)))
      (measure-cell run server workload round)))

(defun keep-figures (run server workload round figures)
  "Record FIGURES of a ROUND of SERVER under WORKLOAD, and end the line of progress."
  (record-sample (run-result run)
                 (make-sample (server-name server) (workload-name workload) round figures))
  (format t "~@[~12@a requests/s~]" (and (getf figures :rate) (grouped (getf figures :rate)))))

(defun measure-round (run server workload round)
  "Measure SERVER under WORKLOAD and keep the figures, unless it dies; is it alive?"
  (sleep *pause*)
  (multiple-value-bind (figures failure)
      (ignore-errors (measure-cell-with-idle run server workload round))
    (cond ((not (alive-p server))
           (note run server workload "died in round ~d; what it printed is in logs/~a"
                 round (file-namestring (server-log server)))
           nil)
          (failure (note run server workload "round ~d not measured: ~a" round failure)
                   t)
          (t (keep-figures run server workload round figures)
             t))))

(defun measure-workload (run servers workload)
  "Measure SERVERS under WORKLOAD, round by round; who dies is out until the next."
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
        (when (run-speed-p run)
          (warm-up (server-port server) (log-of "warm-up")))
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
