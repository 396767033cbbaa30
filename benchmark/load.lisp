(in-package #:hunchentoot-recycling-taskmaster-benchmark)

;;;; The load: wrk for speed; for what wrk doesn't tell or do, programs of ours.
;;;; They are C programs because they share the cores with the server: a client
;;;; in an interpreter, or in a Lisp that stops to collect garbage, would measure
;;;; itself.  All print a line of figures for us: ruler name=integer ...

(defun parse-ruler-lines (text)
  "The figures in the lines of TEXT that begin with ruler, as an association list
from names to integers."
  (loop for line in (uiop:split-string text :separator '(#\Newline))
        for words = (split line)
        when (equal (first words) "ruler")
          append (loop for word in (rest words)
                       for (name value) = (fields word #\=)
                       collect (cons name (parse-integer value)))))

(defun ruler-figures (log)
  "What PARSE-RULER-LINES finds in the file LOG."
  (parse-ruler-lines (uiop:read-file-string log)))

(defun final-figures (log)
  "The RULER-FIGURES of LOG, whose writer has ended; an error if there are none."
  (or (ruler-figures log)
      (error "no figures but: ~a" (first-line (uiop:read-file-string log)))))

(defun figure (name figures)
  "The figure NAME of FIGURES, as PARSE-RULER-LINES returns them, or NIL."
  (cdr (assoc name figures :test #'string=)))

(defun address (port path tls-p)
  "The address of PATH on the server on PORT, over TLS if TLS-P."
  (format nil "http~:[~;s~]://127.0.0.1:~d~a" tls-p port path))

(defun wait-for-end (process seconds)
  "Wait for the end of PROCESS, at most SECONDS."
  (wait-until (lambda () (not (running-p process))) seconds))

;;; Speed

(defun wrk-threads (connections)
  "The threads of wrk for CONNECTIONS: one per core, but each needs a connection."
  (min (cores) connections))

(defparameter *patience-with-uploads* 10
  "After how many seconds wrk calls an upload timed out; other requests, after its own 2.")

(defun wrk-words (port connections seconds &key (path "/yo") headers posted tls-p)
  "The words that let wrk load the server on PORT over CONNECTIONS for SECONDS, with requests
for PATH with HEADERS and, unless NIL, POSTED octets; over TLS if TLS-P."
  (let ((words `(,(find-program "wrk") "--latency" "-s" ,(benchmark-file "wrk.lua")
                 "-t" ,(wrk-threads connections) "-c" ,connections
                 "-d" ,(format nil "~ds" seconds)
                 ,@(when posted (list "--timeout" (format nil "~ds" *patience-with-uploads*)))
                 ,@(loop for header in headers append (list "-H" header))
                 ,(address port path tls-p)
                 ,@(when posted (list "--" posted)))))
    (if tls-p (with-one-cipher words) words)))

(defun tls-program ()
  "Our program that loads a server over TLS.  wrk resumes whenever it connects again, and tells
nothing of it."
  (handler-case (c-program "tls" "tls.c" "tls-client.c" "client.c" "delays.c" "-lssl" "-lcrypto")
    (unavailable (condition)
      (unavailable "~a (its headers are in Debian's package libssl-dev)"
                   (unavailable-reason condition)))))

(defun tls-words (port workload seconds mode &optional (path "/yo"))
  "The words that let our program load the server on PORT with the clients of WORKLOAD over TLS for
SECONDS, with requests for PATH; MODE is :FULL, :RESUMED or :KEEP-ALIVE."
  (let ((clients (measured-clients workload)))
    (list (tls-program) port clients (format nil "~,3f" seconds) (string-downcase mode)
          path (wrk-threads clients))))

(defun load-command (port workload seconds)
  "The words that load the server on PORT with WORKLOAD for SECONDS."
  (let ((kind (kind-of workload)))
    (ecase (kind-loader kind)
      (:tls (tls-words port workload seconds (kind-handshake kind) (kind-path kind)))
      (:wrk (wrk-words port (measured-clients workload) seconds
                       :path (kind-path kind) :headers (kind-headers kind)
                       :posted (kind-posted kind) :tls-p (kind-tls-p kind)))
      ((:deferred :events :websocket) (lasting-words port workload seconds)))))

(defun retries (figures)
  "How many of the read errors among the FIGURES of wrk, under a server that hangs up without saying
so, come from that: at most one for each answer."
  (min (figure "read_errors" figures) (figure "requests" figures)))

(defun evenness (figures)
  "How often he was served who was served least, per who was served most, by the FIGURES of a
program that tells one client from another."
  (/ (figure "least" figures) (max 1 (figure "most" figures))))

(defun handshake-figures (figures)
  "What the FIGURES of our TLS program amount to beyond those that wrk has, as a property list of
*MEASURES*; NIL if they are of wrk."
  (when (figure "handshakes" figures)
    (append (when (figure "declined" figures) ; else nothing was to be resumed
              (list :unresumed (+ (figure "declined" figures) (figure "ticketless" figures))))
            (list :unserved (figure "unserved" figures)
                  :evenness (evenness figures)))))

(defun wrk-figures (figures &key silent-close-p)
  "What the FIGURES of wrk, or of our TLS program, amount to, as a property list of *MEASURES*;
latencies are left out when nothing was answered.  SILENT-CLOSE-P: does the server hang up without
saying so?"
  (flet ((value (name) (figure name figures))
         (ms (name) (/ (figure name figures) 1000)))
    (let ((requests (value "requests"))
          (retries (if silent-close-p (retries figures) 0)))
      (append (list :requests requests
                    :rate (/ (* requests 1000000) (value "duration_us"))
                    :errors (- (+ (value "connect_errors") (value "read_errors")
                                  (value "write_errors") (value "timeouts"))
                               retries)
                    :non-2xx (value "non_2xx"))
              (when silent-close-p (list :retries retries))
              (handshake-figures figures)
              (when (plusp requests)
                (list :p50 (ms "p50_us") :p90 (ms "p90_us") :p99 (ms "p99_us")
                      :p999 (ms "p999_us") :max (ms "max_us")))))))

(defun usage-figures (before during after requests)
  "What a server used between the USAGEs BEFORE and AFTER, DURING which it answered
REQUESTS, as a property list of *MEASURES*."
  (let ((seconds (- (usage-seconds after) (usage-seconds before))))
    (append (list :threads (usage-threads during)
                  :memory (/ (usage-bytes during) (expt 2 20)))
            (when (plusp requests)
              (list :cpu (/ (* seconds 1000000) requests))))))

(defun measure-speed (process words seconds log &key silent-close-p)
  "Load PROCESS, a server, by the command WORDS, a load of SECONDS; what that printed is kept
in the file LOG.  The figures, as a property list of *MEASURES*; SILENT-CLOSE-P as in WRK-FIGURES."
  (let ((before (session-usage process)))
    (with-process (wrk words :log log)
      ;; Threads and memory are taken under load, late enough to be at their height.
      (sleep (* 4/5 seconds))
      (let ((during (session-usage process)))
        (wait-for-end wrk (+ seconds 10))
        (let* ((after (session-usage process))
               (figures (wrk-figures (final-figures log) :silent-close-p silent-close-p)))
          (append figures
                  (usage-figures before during after (getf figures :requests))))))))

;;; All at once

(defparameter *patience-with-a-burst* 10
  "Seconds that a server has to answer all requests of a burst.")

(defun measure-burst (process port connections log)
  "Let CONNECTIONS clients come to PROCESS, the server on PORT, at the same moment and ask once;
what is to be told of it goes to the file LOG.  A property list of *MEASURES*."
  (with-process (burst (list (c-program "burst" "burst.c" "client.c")
                             port connections *patience-with-a-burst*)
                       :log log)
    (wait-for-end burst (+ 5 *patience-with-a-burst*))
    (let ((figures (final-figures log)))
      (append (usage-figures (make-usage) (session-usage process) (make-usage) 0)
              (list :unserved (figure "unserved" figures))
              (when (zerop (figure "unserved" figures))
                (list :all (/ (figure "all_us" figures) 1000)))))))

;;; Fairness

(defun counting-tool (workload)
  "The key of the load tool that counts who is served under WORKLOAD."
  (if (kind-tls-p (kind-of workload)) :tls :fair))

(defun counting-command (port workload milliseconds)
  "The words that count for MILLISECONDS how often each client of WORKLOAD is served."
  (if (kind-tls-p (kind-of workload))
      (tls-words port workload (/ milliseconds 1000) :keep-alive)
      (list (c-program "fair" "fair.c" "client.c") port (measured-clients workload) milliseconds
            (if (eq (workload-kind workload) :close) "close" "keep-alive"))))

(defun refusals (figures)
  "How many requests were refused or cut off, by the FIGURES of a program that counts who is
served."
  (or (figure "errors" figures)
      (loop for name in '("connect_errors" "read_errors" "write_errors" "timeouts" "non_2xx")
            sum (figure name figures))))

(defun measure-fairness (port workload milliseconds log)
  "Count for MILLISECONDS how often each client of WORKLOAD is served by the server
on PORT.  A property list of *MEASURES*."
  (with-process (fair (counting-command port workload milliseconds) :log log)
    (wait-for-end fair (+ 10 (/ milliseconds 1000)))
    (let ((figures (final-figures log)))
      (list :counted (figure "served" figures)
            :refused (refusals figures)
            :unserved (figure "unserved" figures)
            :evenness (evenness figures)))))

;;; Idle connections

(defparameter *patience-with-idle* 15
  "Seconds in which the idle connections must be open, and again be found alive.")

(defun call-with-idle-connections (port count log function)
  "Call FUNCTION, of no arguments, while COUNT idle connections to the server on
PORT are held, or as many as it takes.  Return the property list that FUNCTION
returned, and what became of the idle ones."
  (with-process (idle (list (c-program "idle" "idle.c" "client.c") port count *patience-with-idle*)
                      :log log :input :stream)
    (wait-until (lambda () (or (figure "held" (ruler-figures log)) (not (running-p idle))))
                (* 2 *patience-with-idle*) 0.1)
    (let ((figures (funcall function)))
      (close (uiop:process-info-input (process-info idle)))
      (wait-for-end idle (* 2 *patience-with-idle*))
      (let ((idle-figures (ruler-figures log)))
        (list* :held (figure "held" idle-figures)
               :alive (figure "alive" idle-figures)
               figures)))))

;;; Slow handlers beside fast ones

(defun call-with-slow-clients (port count seconds log function)
  "Call FUNCTION, of no arguments, while COUNT more clients ask the slow handler of the server
on PORT, from a second before and for SECONDS more, which must suffice for FUNCTION; what wrk
prints of them goes to the file LOG.  Return the property list that FUNCTION returned, and how
the slow ones fared; errors are added up."
  (let ((seconds (1+ seconds)))
    (with-process (wrk (wrk-words port count seconds :path "/slow") :log log)
      (sleep 1)
      (let ((figures (funcall function)))
        (wait-for-end wrk (+ seconds 10))
        (add-slow-figures figures (wrk-figures (final-figures log)))))))

(defun add-slow-figures (figures slow-figures)
  "FIGURES and, under names of their own, SLOW-FIGURES; errors are added up."
  (flet ((sum (key) (+ (getf figures key 0) (getf slow-figures key))))
    (list* :errors (sum :errors)
           :non-2xx (sum :non-2xx)
           :slow-rate (getf slow-figures :rate)
           :slow-p99 (getf slow-figures :p99)
           figures)))
