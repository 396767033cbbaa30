(in-package #:hunchentoot-recycling-taskmaster-benchmark)

;;;; Connections that last: requests that are answered late, streams of events, WebSockets.  Each has
;;;; a load program of ours, which first tells how many connections it holds, and at the end figures
;;;; with the names that wrk.lua has, and more.

(defparameter *later-ms* 5000
  "After how many milliseconds the late answers come.")

(defparameter *later-seconds* 3
  "In how many seconds the clients come who ask for late answers and connect one by one.")

(defparameter *patience-to-hold* 40
  "Seconds that a load program has to open its connections; it gives up before that itself.")

(defun later-program ()
  "Our program that asks for late answers."
  (c-program "deferred" "deferred.c" "client.c" "delays.c"))

(defun events-program ()
  "Our program that subscribes to events."
  (c-program "events" "events.c" "client.c" "delays.c"))

(defun websocket-program ()
  "Our program that opens WebSockets."
  (c-program "websocket" "websocket.c" "websocket-client.c" "client.c" "delays.c"))

(defun later-words (port &rest words)
  "The words that let our program ask the server on PORT for late answers, as WORDS say."
  (append (list (later-program) port)
          words
          (list (format nil "/later?ms=~d" *later-ms*))))

(defun websocket-words (port &rest words)
  "The words that let our program open WebSockets on the server on PORT, as WORDS say."
  (list* (websocket-program) port words))

(defun lasting-seconds (workload seconds)
  "How long the load of WORKLOAD lasts, once its connections are open, if SECONDS were asked for."
  (case (kind-loader (kind-of workload))
    (:deferred (/ *later-ms* 1000))
    (:events (1+ seconds))              ; its first event is not looked at
    (t seconds)))

(defun lasting-words (port workload seconds)
  "The words that load the server on PORT with WORKLOAD, one of this file's, for SECONDS if that is
not its own affair."
  (let ((connections (workload-connections workload)))
    (ecase (workload-kind workload)
      (:later (later-words port (ceiling connections *later-seconds*) *later-seconds*))
      ((:later-open :later-many) (later-words port connections "open"))
      (:events (list (events-program) port connections (lasting-seconds workload seconds) "/events"))
      (:echo (websocket-words port connections seconds))
      (:echo16 (websocket-words port connections seconds 32 "/echo" 16))
      (:silent (websocket-words port connections "idle")))))

(defun lasting-figures (figures)
  "What the FIGURES of one of our programs amount to, as a property list of *MEASURES*."
  (flet ((value (name)
           (figure name figures)))
    (append (wrk-figures figures)
            (list :wrong (loop for name in '("wrong" "extra" "malformed" "missing" "disordered")
                               sum (or (value name) 0)))
            (when (value "in_flight")
              (list :in-flight (value "in_flight")))
            (when (value "served")
              (list :unserved (value "unserved") :evenness (evenness figures)))
            (when (value "all_us")
              (list :all (/ (value "all_us") 1000))))))

(defun wait-for-figure (name process log seconds)
  "Wait until PROCESS, a load program, has told the figure NAME in the file LOG, or has ended, for at
most SECONDS.  An error if it has not."
  (or (wait-until (lambda () (or (figure name (ruler-figures log)) (not (running-p process))))
                  seconds)
      (error "no ~a within ~d s" name seconds))
  (let ((figures (final-figures log)))
    (or (figure name figures)
        (error "it ended without ~a" name))
    figures))

(defun measure-held (process workload seconds log load)
  "The figures of PROCESS, a server, under WORKLOAD, by LOAD, the program that loads it and writes to
the file LOG.  What the opening of the connections cost is not in them, unless it belongs to the
load."
  (wait-for-figure "held" load log *patience-to-hold*)
  (let ((before (session-usage process))
        (seconds (lasting-seconds workload seconds)))
    (sleep (* 4/5 seconds))
    (let* ((during (session-usage process))
           (figures (wait-for-figure "requests" load log (+ seconds 20)))
           ;; The program closes nothing before it has been quiet for a moment.
           (after (session-usage process))
           (measures (lasting-figures figures)))
      (wait-for-end load 10)
      (append measures
              (usage-figures before during after
                             (or (figure "deliveries" figures) (getf measures :requests)))))))

(defun measure-silent (process port workload log)
  "Hold the connections of WORKLOAD to PROCESS, the server on PORT, which say nothing; what is to be
told of it goes to the file LOG.  A property list of *MEASURES*."
  (let ((before (session-usage process)))
    (with-process (load (load-command port workload nil) :log log :input :stream)
      (let ((held (figure "held" (wait-for-figure "held" load log *patience-to-hold*)))
            (during (session-usage process)))
        (close (uiop:process-info-input (process-info load)))
        (let ((alive (figure "alive" (wait-for-figure "alive" load log *patience-to-hold*))))
          (wait-for-end load 10)
          (list* :held held
                 :alive alive
                 :unserved (- (workload-connections workload) alive)
                 :each (/ (- (usage-bytes during) (usage-bytes before)) 1024 (max 1 held))
                 (usage-figures before during during 0)))))))

(defun measure-lasting (process port workload seconds log)
  "Load PROCESS, the server on PORT, with WORKLOAD, one of this file's, for SECONDS; what is to be told
of it goes to the file LOG.  A property list of *MEASURES*."
  (if (eq (workload-kind workload) :silent)
      (measure-silent process port workload log)
      (with-process (load (load-command port workload seconds) :log log)
        (measure-held process workload seconds log load))))
