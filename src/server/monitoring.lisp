(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; Pages for those that watch servers: Prometheus, load balancers, people.  Each page is a
;;;; function of a list of servers.  It returns a status, an integer, a media type, a string,
;;;; octets, and perhaps a plist of further headers.

(defgeneric place-of (server)
  (:documentation "The place where SERVER, an acceptor of Hunchentoot's or a CLACK-SERVER, listens:
a string for people, as \"127.0.0.1:4242\", or \"unix:\" and a path."))

(defun place-text (address port)
  "The place, a string as PLACE-OF returns, with PORT and ADDRESS: a string, NIL for all, or what
else usocket takes."
  (if (and (stringp address) (uiop:string-prefix-p "unix:" address))
      address                           ; its port is 0
      (format nil "~A:~A" (or address "*") port)))

(defun workers-of (server)
  "The workers of SERVER as LIST-WORKERS returns them; () where it has none of ours."
  (let ((engine (server-engine server)))
    (and engine (list-workers engine))))

(defun being-served-p (worker)
  "True if WORKER, a plist of LIST-WORKERS, is at a request."
  (typep (getf worker :task) 'exchange))

(defun stats (server)
  "The statistics of SERVER, an acceptor or a CLACK-SERVER: a plist for people and
for monitors.  Counts begin at the last start.

Threads:
  :THREADS             how many there are
  :STANDBY             those that wait for something to do
  :SUSPENDED           those on standby that sleep until they are needed
  :BUSY                those that have a connection or run a timer
  :KEEP-ALIVE-WAITING  busy ones that wait for the next request of their connection
  :MADE, :ENDED        how many were made, and have ended

Connections:
  :ACCEPTED            how many were accepted
  :OPEN                how many are open
  :PARKED              open ones that wait for a request without a thread
  :DEFERRED            open ones that wait for a reply that comes later
  :WRITING             open ones without a thread whose clients are slow to take the reply
  :QUEUED              open ones that have a request and wait for a thread
  :REFUSED             those that were refused
  :REFUSED-BY          the same by reason, a plist: :THREADS, all of which served; :ADDRESS, which
                       had as many connections as it may
  :EXPIRED             those that were ended because they took too long or held up others
  :EXPIRED-BY          the same by kind, a plist: :HANDSHAKE of TLS, rest of a :HEAD, :IDLE
                       before a request, :WRITE, of a reply that the client did not take, :LINGER,
                       of the client's close after the last reply, :EVICTED, idle while others
                       waited, and further kinds

  :TIMERS              timers of RUN-AFTER, a plist: how many are :PENDING, and how many were :RUN,
                       and have :FAILED by an error or the end of their thread

Requests:
  :SERVED              how many were served
  :DURATIONS           how long they took, from the whole head until the system had the whole reply,
                       or had taken what it could at once: a histogram.  It is a plist of their
                       :COUNT, their :SUM in seconds, and :BUCKETS, a list in which each bound, in
                       seconds, is followed by the number of those that took no longer
  :IN-PROGRESS         those that a thread serves, with that for this page, and those whose reply
                       comes later, with WebSockets
  :REPLIES             the same as :SERVED by class of status, a plist: :1XX to :5XX, and :NONE
                       where no reply began
  :ERRORS              those answered with 500 and above
  :OCTETS-SENT         how many octets the system has taken of replies and messages, before TLS
  :REJECTED            those that the server itself answered with an error: no HTTP, beyond a limit,
                       or too slow.  Connections that were :REFUSED do not count
  :REJECTED-BY-STATUS  the same, a plist of statuses and numbers
  :FAILED              errors outside of handlers

  :HANDSHAKES-FAILED   TLS handshakes that failed, without those that :EXPIRED
  :HANDSHAKES-FAILED-BY
                       the same by kind, a plist: :PLAIN-HTTP in place of TLS, no common :PROTOCOL,
                       no common :CIPHER, the server's :CERTIFICATE not trusted by the client, the
                       :CLIENT-CERTIFICATE missing or not trusted, no common :APPLICATION-PROTOCOL,
                       the client :GONE, and :OTHER
  :MEMORY              how many octets are reserved for what clients make this process keep, of all
                       its servers: unfinished requests, content, messages, replies not taken
  :MEMORY-LIMIT        how many may be; NIL where the size of the heap is not known
  :UPTIME              seconds since the start
  :LOG-DROPPED         lines of both logs, over all starts, that their destinations did not take.
                       Lines that were pending at the last stop count until the next start writes
                       them"
  (let* ((engine (server-engine server))
         (application (and engine (engine-service engine)))
         (known (engine-statistics engine))
         (replies (loop for class in '(:none :1xx :2xx :3xx :4xx :5xx)
                        for count across (getf known :replies)
                        collect class collect count)))
    (setf (getf known :replies) replies)
    (flet ((counted (statuses-p all by-key)
             (loop for (key . counter) in (if application
                                              (application-counts application)
                                              (make-counts))
                   for count = (counter-count counter)
                   when (eq statuses-p (integerp key))
                     sum count into sum
                     and collect key into counts
                     and collect count into counts
                   finally (return (list all sum by-key counts)))))
      (append known
              (list :errors (getf replies :5xx)
                    :in-progress (+ (getf known :deferred)
                                    (count-if #'being-served-p (workers-of server))))
              (counted t :rejected :rejected-by-status)
              (counted nil :handshakes-failed :handshakes-failed-by)
              (list :log-dropped (reduce #'+ (and application (application-journals application))
                                         :key #'journal-unwritten))))))

(defun list-connections (server)
  "A list of plists, one for each open connection of SERVER, an acceptor or a
CLACK-SERVER.  It is empty where SERVER is not started.

  :PEER     the client's address and port, a string
  :STATE    :NEW before the first request; :ACTIVE while one is served; between two, :PARKED without
            a thread or :IDLE with one; :DEFERRED while the reply is to come later; :WRITING
            while the client is slow to take the reply; :QUEUED while a request waits for a thread;
            :DRAINING after the last reply
  :AGE      seconds since it was accepted
  :SERVED   how many requests were served
  :WORKER   the number of its thread, or NIL
  :SECONDS  for how many seconds that thread has been serving the request, or NIL"
  (let ((engine (server-engine server)))
    (and engine (list-engine-connections engine))))

(defun ready-p (server)
  "True while SERVER, an acceptor or a CLACK-SERVER, takes new requests.  NIL before its start, and
as soon as a stop of it begins, soft or not."
  (let ((engine (server-engine server)))
    (and engine (welcoming-p engine))))

;;; Statistics as text for Prometheus: version 0.0.4 of its exposition format.  The names follow
;;; Prometheus' conventions: base units, and _total for what only grows.

(defparameter *metrics*
  '((:durations :histogram "request_duration_seconds" "From the head to the end of the reply.")
    (:served :counter "requests_total" "Requests served.")
    (:replies :counter "replies_total" "Requests by class of status." "status")
    (:in-progress :gauge "requests_in_progress" "Requests whose reply is not over.")
    (:octets-sent :counter "sent_bytes_total" "Octets sent to clients, before TLS.")
    (:rejected-by-status :counter "requests_rejected_total" "Requests not let in." "status")
    (:failed :counter "failures_total" "Errors outside of request handlers.")
    (:threads :gauge "threads" "Threads that serve or wait to.")
    (:busy :gauge "threads_busy" "Threads that have a connection or run a timer.")
    (:standby :gauge "threads_standby" "Threads that wait for something to do.")
    (:suspended :gauge "threads_suspended" "Threads on standby that sleep until they are needed.")
    (:keep-alive-waiting :gauge "threads_keep_alive" "Threads that wait for a next request.")
    (:made :counter "threads_made_total" "Threads made.")
    (:ended :counter "threads_ended_total" "Threads ended.")
    (:accepted :counter "connections_accepted_total" "Connections accepted.")
    (:open :gauge "connections_open" "Open connections.")
    (:parked :gauge "connections_parked" "Connections that wait for a request without a thread.")
    (:deferred :gauge "connections_deferred" "Connections whose reply comes later.")
    (:writing :gauge "connections_writing" "Connections whose client takes the reply slowly.")
    (:queued :gauge "connections_queued" "Connections that wait for a thread.")
    (:refused-by :counter "connections_refused_total" "Connections refused at once." "reason")
    (:expired-by :counter "connections_expired_total" "Connections that were given up." "kind")
    (:handshakes-failed-by :counter "tls_handshakes_failed_total" "Failed handshakes." "kind")
    ((:timers :pending) :gauge "timers_pending" "Timers that wait for their time.")
    ((:timers :run) :counter "timers_run_total" "Timers that ran.")
    ((:timers :failed) :counter "timers_failed_total" "Timers ended by an error.")
    (:memory :gauge "client_memory_bytes" "Memory that the process reserves for clients.")
    (:memory-limit :gauge "client_memory_limit_bytes" "How much may be reserved.")
    (:uptime :gauge "uptime_seconds" "Time since the start.")
    (:log-dropped :counter "log_lines_dropped_total" "Lines of logs that were lost."))
  "For each metric, its statistic, a keyword of STATS or a list of one and of a keyword in its
plist; its type; its name without the prefix; a sentence; and where the statistic is a plist, the
name of the label for the keywords of that.")

(defun write-metric (out name label-names labels value)
  "Writes to OUT the samples of the metric NAME with LABELS, a plist of strings, for VALUE: a real;
a histogram, a plist as in STATS; or a plist of such values, or of further plists, whose keywords
are the values of the labels in LABEL-NAMES."
  (flet ((write-sample (suffix labels value)
           (format out "~A~A~@[{~{~A=~S~^,~}}~] ~A~%" name suffix labels (decimal-text value))))
    (cond (label-names
           (loop for (kind part) on value by #'cddr
                 do (write-metric out name (rest label-names)
                                  (append labels (list (first label-names)
                                                       (format nil "~(~A~)" kind)))
                                  part)))
          ((listp value)
           (destructuring-bind (&key count sum buckets) value
             (loop for (bound count) on buckets by #'cddr
                   do (write-sample "_bucket" (append labels (list "le" (decimal-text bound)))
                                    count))
             (write-sample "_bucket" (append labels '("le" "+Inf")) count)
             (write-sample "_sum" labels sum)
             (write-sample "_count" labels count)))
          (t (write-sample "" labels value)))))

;;; The pages

(defun encoded (function)
  "The octets that FUNCTION appends to the OUTPUT that it gets."
  (let ((output (make-output)))
    (funcall function output)
    (subseq (output-octets output) 0 (output-fill output))))

(defun text-page (status type text)
  "A page with STATUS, TYPE and TEXT, a string."
  (values status type (encoded (lambda (output) (encode-string output text :utf-8)))))

(defun metrics-page (servers)
  "The page, three values, with the STATS of SERVERS, a list, as text for Prometheus.  What is not
known, NIL, is left out."
  (let ((all (loop for server in servers collect (cons (place-of server) (stats server))))
        (out (make-string-output-stream)))
    (loop for (statistic type suffix help . label-names) in *metrics*
          for name = (format nil "http_server_~A" suffix)
          for samples = (loop for (place . stats) in all
                              for value = (reduce #'getf (uiop:ensure-list statistic)
                                                  :initial-value stats)
                              when value collect (list place value))
          when samples
            do (format out "# HELP ~A ~A~%# TYPE ~A ~(~A~)~%" name help name type)
               (loop for (place value) in samples
                     do (write-metric out name label-names (list "server" place) value)))
    (text-page 200 "text/plain; version=0.0.4; charset=utf-8" (get-output-stream-string out))))

(defun health-page (healthy-p word)
  "A page that says whether what WORD names is so."
  (text-page (if healthy-p 200 503) "text/plain; charset=utf-8"
             (format nil "~:[not ~;~]~A~%" healthy-p word)))

(defun readiness-page (servers)
  "The page, three values, that tells whether all of SERVERS, a list, take new requests."
  (health-page (every #'ready-p servers) "ready"))

(defun liveness-page (servers)
  "The page, three values, of every server that answers.  SERVERS, a list, makes no difference."
  (declare (ignore servers))
  (health-page t "alive"))

;;; Clients that may see them

(defparameter *loopback* '("127.0.0.0/8" "::1" :unix)
  "The clients that may see the pages by default: those on this machine.")

(defun sites-name-p (host)
  "True if HOST, the text of Host or NIL, may be the name of any site: it has a dot, is no address,
and does not end in .localhost (RFC 6761, section 6.3)."
  (let ((name (host-and-port (or host "") nil)))
    (not (or (null (find #\. name))
             (char= #\[ (char name 0))
             (parse-ip-address name)
             (uiop:string-suffix-p (string-downcase name) ".localhost")))))

(defun make-page-test (path allow &key (methods '(:get :head)) any-host-p)
  "A function of an exchange.  It is true if the request gets the page at PATH, a string, of which
ALLOW is the argument, for which it has one of METHODS, a list.  With ANY-HOST-P the page tells so
little that a browser which another site has led here may have it, and load balancers can ask with
the names of their sites.  Signals UNFIT-ARGUMENT."
  (unless (stringp path)
    (unfit :path " must be a string, not ~S" path))
  (unless (or (listp allow) (functionp allow) (and (symbolp allow) (fboundp allow)))
    (unfit :allow " must be a list or a function, not ~S" allow))
  (let ((networks (and (listp allow)
                       (loop for name in allow
                             collect (or (network-named name)
                                         (unfit :allow " has ~S, which names no network" name)))))
        (loopback (mapcar #'parse-network '("127.0.0.0/8" "::1"))))
    (lambda (exchange)
      (let* ((head (exchange-head exchange))
             (http (exchange-http exchange))
             (origin (http-origin http))
             (address (http-address http)))
        (multiple-value-bind (start end) (uri-path (head-uri head))
          (and (string= path (head-uri head) :start2 start :end2 end)
               (member (head-method head) methods)
               (if (not (listp allow))
                   (funcall allow address)
                   (and (peer-in-p networks address)
                        ;; Behind a proxy on this machine every client seems to be on this machine,
                        ;; unless a trusted one names it.
                        (or (notany (lambda (name) (head-header head name))
                                    '("X-Forwarded-For" "Forwarded"))
                            (and origin (origin-address origin)))
                        ;; A browser on this machine, which another site has led to an address of
                        ;; this machine under that site's name, would let its scripts read the
                        ;; response (DNS rebinding).  They can claim to be a trusted proxy, but
                        ;; cannot change the Host with which the browser itself has asked.
                        (or any-host-p
                            (not (peer-in-p loopback address))
                            (notany #'sites-name-p
                                    (list (head-header head :host)
                                          (and origin (origin-asked-host origin)))))))))))))

(defun make-page (page path servers allow &key any-host-p)
  "A function of an exchange.  It returns NIL, or a function that makes PAGE, of SERVERS, or for ()
of the one that serves it, if the request gets that at PATH, as MAKE-PAGE-TEST tells with ALLOW and
ANY-HOST-P."
  (let ((test (make-page-test path allow :any-host-p any-host-p)))
    (lambda (exchange)
      (and (funcall test exchange)
           (lambda ()
             (funcall page (or servers (list (exchange-application exchange)))))))))
