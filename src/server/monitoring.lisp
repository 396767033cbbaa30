(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; Pages for those that watch servers: Prometheus, load balancers, people.  Each page is a
;;;; function of a list of servers.  It returns a status, an integer, a media type, a string, and
;;;; octets.

(defgeneric place-of (server)
  (:documentation "The place where SERVER, an acceptor of Hunchentoot's or a CLACK-SERVER, listens:
a string for people, as \"127.0.0.1:4242\", or \"unix:\" and a path."))

(defun place-text (address port)
  "The place, a string as PLACE-OF returns, with PORT and ADDRESS: a string, NIL for all, or what
else usocket takes."
  (if (and (stringp address) (uiop:string-prefix-p "unix:" address))
      address                           ; its port is 0
      (format nil "~A:~A" (or address "*") port)))

(defgeneric ready-p (server)
  (:documentation "True while SERVER, an acceptor of Hunchentoot's or a CLACK-SERVER, takes new
requests.  NIL before its start, and as soon as a stop of it begins, soft or not."))

;;; What engines tell

(defun being-served-p (worker)
  "True if WORKER, a plist of LIST-WORKERS, is at a request."
  (let ((task (getf worker :task)))
    (and (typep task 'exchange)
         (exchange-head task)
         (not (exchange-counted-p task)))))

(defun engine-stats (engine)
  "The part of STATS that ENGINE, or NIL for none that runs, tells."
  (let* ((known (engine-statistics engine))
         (replies (replies-by-kind (getf known :replies))))
    (setf (getf known :replies) replies)
    (append known
            (list :errors (loop for (nil classes) on replies by #'cddr
                                sum (getf classes :5xx))
                  :in-progress (+ (getf known :deferred)
                                  (count-if #'being-served-p
                                            (and engine (list-workers engine))))))))

;;; Statistics as text for Prometheus: version 0.0.4 of its exposition format.  The names follow
;;; Prometheus' conventions: base units, and _total for what only grows.

(defparameter *metrics*
  '((:durations :histogram "request_duration_seconds" "From the head to the end of the reply.")
    (:served :counter "requests_total" "Requests served.")
    (:replies :counter "replies_total" "Requests by method and class of status." "method" "status")
    (:in-progress :gauge "requests_in_progress" "Requests whose reply is not over.")
    (:octets-sent :counter "sent_bytes_total" "Octets sent to clients, before TLS.")
    (:rejected-by-status :counter "requests_rejected_total"
     "Requests that the server itself answered with an error." "status")
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
    (:expired-by :counter "connections_expired_total"
     "Connections ended because they took too long or held up others." "kind")
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
name of the label for the keywords of that, and perhaps of those of the plists in it.")

(defparameter *metric-prefix* "http_server_")

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

(defun encoded-page (status type function)
  "A page with STATUS and TYPE, and with what FUNCTION appends to the OUTPUT that it gets."
  (let ((output (make-output)))
    (funcall function output)
    (values status type (subseq (output-octets output) 0 (output-fill output)))))

(defun text-page (status type text)
  "A page with STATUS, TYPE and TEXT, a string."
  (encoded-page status type (lambda (output) (encode-string output text :utf-8))))

(defun json-page (value)
  "A page with VALUE, as ENCODE-JSON takes it."
  (encoded-page 200 "application/json" (lambda (output) (encode-json output value))))

(defun metrics-page (servers)
  "The page, three values, with the STATS of SERVERS, a list, as text for Prometheus.  What is not
known, NIL, is left out."
  (let ((all (loop for server in servers collect (cons (place-of server) (stats server))))
        (out (make-string-output-stream)))
    (loop for (statistic type suffix help . label-names) in *metrics*
          for name = (format nil "~A~A" *metric-prefix* suffix)
          for samples = (loop for (place . stats) in all
                              for value = (reduce #'getf (uiop:ensure-list statistic)
                                                  :initial-value stats)
                              when value collect (list place value))
          when samples
            do (format out "# HELP ~A ~A~%# TYPE ~A ~(~A~)~%" name help name type)
               (loop for (place value) in samples
                     do (write-metric out name label-names (list "server" place) value)))
    (text-page 200 "text/plain; version=0.0.4; charset=utf-8" (get-output-stream-string out))))

(defun stats-page (servers)
  "The page, three values, with the STATS of SERVERS, a list, as JSON (RFC 8259)."
  (json-page (map 'vector (lambda (server) (list* :server (place-of server) (stats server)))
                  servers)))

(defun connections-page (servers)
  "The page, three values, with LIST-CONNECTIONS of SERVERS, a list, as JSON (RFC 8259)."
  (json-page (coerce (loop for server in servers
                           for place = (place-of server)
                           append (loop for connection in (list-connections server)
                                        collect (list* :server place connection)))
                     'vector)))

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
  (let ((name (string-right-trim "." (host-and-port (or host "") nil))))
    (not (or (null (find #\. name))
             (char= #\[ (char name 0))
             (parse-ip-address name)
             (uiop:string-suffix-p (string-downcase name) ".localhost")))))

(defun make-page-test (path allow &key (methods '(:get :head)) any-host-p)
  "A function of an exchange, or NIL where the server has not read its request; of the method of the
request, and its path, the address of its client and Host, strings; and of the values of
X-Forwarded-For and Forwarded, strings or NIL.  It is true if the request gets the page at PATH, a
string, of which ALLOW is the argument, for which it has one of METHODS, a list.  With ANY-HOST-P
the page tells so little that a browser which another site has led here may have it, and load
balancers can ask with the names of their sites.  Signals UNFIT-ARGUMENT."
  (unless (stringp path)
    (unfit :path " must be a string, not ~S" path))
  (unless (or (listp allow) (functionp allow) (and (symbolp allow) (fboundp allow)))
    (unfit :allow " must be a list or a function, not ~S" allow))
  (let ((networks (and (listp allow)
                       (loop for name in allow
                             collect (or (network-named name)
                                         (unfit :allow " has ~S, which names no network" name)))))
        (loopback (mapcar #'parse-network '("127.0.0.0/8" "::1"))))
    (lambda (exchange method request-path address host &rest forwarded)
      (and (string= path request-path)
           (member method methods)
           (if (not (listp allow))
               (funcall allow address)
               (let* ((http (and exchange (exchange-http exchange)))
                      (client (and http (http-client http))))
                 (and (peer-in-p networks address)
                      ;; Behind a proxy on this machine every client seems to be on this machine,
                      ;; unless a trusted one names it.
                      (or (every #'null forwarded)
                          (and client (client-named-p client)))
                      ;; A browser on this machine, which another site has led to an address of this
                      ;; machine under that site's name, would let its scripts read the response
                      ;; (DNS rebinding).  They can claim to be a trusted proxy, but cannot change
                      ;; the Host with which the browser itself has asked.
                      (or any-host-p
                          (not (peer-in-p loopback address))
                          (notany #'sites-name-p
                                  (list host (and client (client-asked-host client))))))))))))
