(in-package #:hunchentoot-recycling-taskmaster)

;;;; Dispatchers with pages for those that watch servers.

(defun send-page (page servers)
  "Answers the current request with PAGE, a function as METRICS-PAGE, of SERVERS.  Its fourth value
is a plist of further headers."
  (multiple-value-bind (status type octets headers) (funcall page servers)
    (setf (hunchentoot:return-code*) status
          (hunchentoot:content-type*) type
          (hunchentoot:header-out :cache-control) "no-store")
    (loop for (name value) on headers by #'cddr
          do (setf (hunchentoot:header-out name) value))
    octets))

(defun call-page-test (test request)
  "The value of TEST, a result of MAKE-PAGE-TEST or MAKE-LIVE-TEST, for REQUEST."
  (funcall test
           (hunchentoot:request-method request) (hunchentoot:script-name request)
           (hunchentoot:remote-addr request)
           (passed-on-p *exchange*
                        (hunchentoot:header-in :x-forwarded-for request)
                        (hunchentoot:header-in :forwarded request))
           (hosts-asked-for *exchange* (hunchentoot:header-in :host request))))

(defun servers-watched (servers)
  "SERVERS, a list; if that is empty, the acceptor that serves the current request."
  (or servers (list hunchentoot:*acceptor*)))

(defun make-page-dispatcher (page path servers allow &key any-host-p)
  "A dispatcher with PAGE at PATH, as MAKE-METRICS-DISPATCHER tells; with ANY-HOST-P for any Host."
  (let ((test (with-parameter-errors (make-page-test path allow :any-host-p any-host-p))))
    (lambda (request)
      (when (call-page-test test request)
        (lambda ()
          (send-page page (servers-watched servers)))))))

(defun make-metrics-dispatcher (path &key servers (allow *loopback*))
  "A dispatcher for HUNCHENTOOT:*DISPATCH-TABLE* that answers GET and HEAD of PATH, a string, with
the STATS of SERVERS as metrics for Prometheus: version 0.0.4 of its text format.

  SERVERS  a list of acceptors, and of servers of Clack applications; by default the acceptor that
           serves the request
  ALLOW    the clients that get the page, a list: addresses and networks, strings as \"192.0.2.1\"
           and \"10.0.0.0/8\", and :UNIX for those of Unix-domain sockets.  By default those on this
           machine.  Others get what the rest of the dispatch table has for them.  So do requests
           with X-Forwarded-For or Forwarded that come from none of :TRUSTED-PROXIES, and those on
           this machine whose Host may be the name of another site.  Or a function of the address, a
           string, that alone decides

Signals HUNCHENTOOT:PARAMETER-ERROR where PATH or ALLOW makes no sense."
  (make-page-dispatcher #'metrics-page path servers allow))

(defun make-stats-dispatcher (path &key servers (allow *loopback*))
  "As MAKE-METRICS-DISPATCHER with PATH, SERVERS and ALLOW, but the page has the STATS of SERVERS as
JSON (RFC 8259): an array with an object for each server.  NIL is null.  Signals
HUNCHENTOOT:PARAMETER-ERROR."
  (make-page-dispatcher #'stats-page path servers allow))

(defun make-connections-dispatcher (path &key servers (allow *loopback*))
  "As MAKE-METRICS-DISPATCHER with PATH, SERVERS and ALLOW, but the page has what LIST-CONNECTIONS
tells of SERVERS as JSON (RFC 8259): an array with an object for each connection.  Signals
HUNCHENTOOT:PARAMETER-ERROR."
  (make-page-dispatcher #'connections-page path servers allow))

(defun make-readiness-dispatcher (path &key servers (allow *loopback*))
  "As MAKE-METRICS-DISPATCHER with PATH, SERVERS and ALLOW, but the page tells a load balancer
whether all of SERVERS take new requests: with status 200, or 503 (RFC 9110, section 15.6.4) as soon
as one of them is being stopped, and before it is started.  Host may be any name.  Signals
HUNCHENTOOT:PARAMETER-ERROR."
  (make-page-dispatcher #'readiness-page path servers allow :any-host-p t))

(defun make-liveness-dispatcher (path &key (allow *loopback*))
  "As MAKE-METRICS-DISPATCHER with PATH and ALLOW, but the page is always 200: it tells that a
thread serves.  Host may be any name.  Signals HUNCHENTOOT:PARAMETER-ERROR."
  (make-page-dispatcher #'liveness-page path '() allow :any-host-p t))

;;; The live page

(defun begin-live-events (feeds servers)
  "Answers the current request with snapshots of SERVERS, a list, by one of FEEDS."
  (defer-reply (reply :timeout nil)
    (let ((stream (start-event-stream reply :heartbeat nil)))
      (when stream
        (add-viewer feeds servers stream (outgoing-stream-framing stream))))))

(defun answer-about-worker-of (servers)
  "The answer to the current request, which asks where a worker of SERVERS, a list, is."
  (let ((name (hunchentoot:query-string*))
        (asked-by (hunchentoot:header-in* :live-page)))
    (send-page (lambda (servers) (answer-about-worker servers name asked-by)) servers)))

(defun make-live-page-dispatcher (path &key servers (allow *loopback*))
  "As MAKE-METRICS-DISPATCHER with PATH, SERVERS and ALLOW, but with a page for people, which shows
SERVERS at work: workers, connections, rates, latency, collections of garbage and memory.  It gets
its figures each second, by server-sent events of PATH/events.  A click on a worker that serves a
request POSTs to PATH/worker, which interrupts the worker for a moment to learn in which functions
it is, where the Lisp can tell.  From the first request on, a snapshot is taken each second, and
kept for two minutes.  The acceptor that serves the page must be one of ours.  Signals
HUNCHENTOOT:PARAMETER-ERROR."
  (let ((test (with-parameter-errors (make-live-test path allow)))
        (feeds (make-live-feeds)))
    (lambda (request)
      (when *exchange*
        (watch-servers feeds (exchange-engine *exchange*) (servers-watched servers)))
      (let ((part (call-page-test test request)))
        (and part
             (lambda ()
               (let ((servers (servers-watched servers)))
                 (ecase part
                   (:page (send-page #'live-page servers))
                   (:events (begin-live-events feeds servers))
                   (:worker (answer-about-worker-of servers))))))))))
