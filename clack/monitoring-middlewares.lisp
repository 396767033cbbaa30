(in-package #:clack.handler.recycling)

;;;; Middlewares with pages for those that watch servers.

(defun page-response (page &rest arguments)
  "The response with PAGE, a function as METRICS-PAGE, of ARGUMENTS.  Its fourth value is a plist of
further headers."
  (multiple-value-bind (status type octets headers) (apply page arguments)
    (list status (list* :content-type type :cache-control "no-store" headers) octets)))

(defun make-tested-middleware (test servers function)
  "A middleware that responds with what FUNCTION returns, unless that is NIL.  FUNCTION is called
with the value of TEST, a result of MAKE-PAGE-TEST or MAKE-LIVE-TEST, the servers, the environment,
and its exchange, which is NIL where another handler serves it."
  (lambda (app)
    (lambda (environment)
      (let* ((io (getf environment :clack.io))
             (exchange (and (typep io 'exchange) io))
             (servers (or servers (and exchange (list (exchange-application exchange)))))
             (headers (getf environment :headers)))
        (or (and servers
                 (funcall function
                          (funcall test exchange
                                   (getf environment :request-method) (getf environment :path-info)
                                   (getf environment :remote-addr) (gethash "host" headers)
                                   (gethash "x-forwarded-for" headers)
                                   (gethash "forwarded" headers))
                          servers environment exchange))
            (funcall app environment))))))

(defun make-page-middleware (page path servers allow &key any-host-p)
  "A middleware with PAGE at PATH, as MAKE-METRICS-MIDDLEWARE tells; with ANY-HOST-P for any Host."
  (make-tested-middleware (make-page-test path allow :any-host-p any-host-p) servers
                          (lambda (asked-p servers environment exchange)
                            (declare (ignore environment exchange))
                            (and asked-p (page-response page servers)))))

(defun make-metrics-middleware (path &key servers (allow *loopback*))
  "A middleware: a function of a Clack application that returns one.  The result answers GET and
HEAD of PATH, a string, with the STATS of SERVERS as metrics for Prometheus: version 0.0.4 of its
text format.  All else goes to the application.

  SERVERS  a list of servers of Clack applications, and of acceptors of Hunchentoot's; by default
           the server that serves the request
  ALLOW    the clients that get the page, a list: addresses and networks, strings as \"192.0.2.1\"
           and \"10.0.0.0/8\", and :UNIX for those of Unix-domain sockets.  By default those on this
           machine.  Requests of others go to the application.  So do those with X-Forwarded-For
           or Forwarded that come from none of :TRUSTED-PROXIES, and those on this machine whose
           Host may be the name of another site.  Or a function of the address, a string, that
           alone decides

Signals UNFIT-ARGUMENT where PATH or ALLOW makes no sense."
  (make-page-middleware #'metrics-page path servers allow))

(defun make-stats-middleware (path &key servers (allow *loopback*))
  "As MAKE-METRICS-MIDDLEWARE with PATH, SERVERS and ALLOW, but the page has the STATS of SERVERS as
JSON (RFC 8259): an array with an object for each server.  NIL is null.  Signals UNFIT-ARGUMENT."
  (make-page-middleware #'stats-page path servers allow))

(defun make-connections-middleware (path &key servers (allow *loopback*))
  "As MAKE-METRICS-MIDDLEWARE with PATH, SERVERS and ALLOW, but the page has what LIST-CONNECTIONS
tells of SERVERS as JSON (RFC 8259): an array with an object for each connection.  Signals
UNFIT-ARGUMENT."
  (make-page-middleware #'connections-page path servers allow))

(defun make-readiness-middleware (path &key servers (allow *loopback*))
  "As MAKE-METRICS-MIDDLEWARE with PATH, SERVERS and ALLOW, but the page tells a load balancer
whether all of SERVERS take new requests: with status 200, or 503 (RFC 9110, section 15.6.4) as soon
as one of them is being stopped, and before it is started.  Host may be any name.  Signals
UNFIT-ARGUMENT."
  (make-page-middleware #'readiness-page path servers allow :any-host-p t))

(defun make-liveness-middleware (path &key (allow *loopback*))
  "As MAKE-METRICS-MIDDLEWARE with PATH and ALLOW, but the page is always 200: it tells that a
thread serves.  Host may be any name.  Signals UNFIT-ARGUMENT."
  (make-page-middleware #'liveness-page path '() allow :any-host-p t))

;;; The live page

(defun live-events-response (servers exchange)
  "The response to EXCHANGE with snapshots of SERVERS, a list."
  (lambda (responder)
    (let ((deferred-response (exchange-deferred-response exchange)))
      (setf (deferred-response-endless-p deferred-response) t)
      (funcall responder (list 200 (list :content-type "text/event-stream"
                                         :cache-control "no-cache" :x-accel-buffering "no")))
      (let ((written (deferred-response-context deferred-response)))
        (when written                   ; or the client has left
          (add-viewer servers written (written-framing written)))))))

(defun make-live-page-middleware (path &key servers (allow *loopback*))
  "As MAKE-METRICS-MIDDLEWARE with PATH, SERVERS and ALLOW, but with a page for people, which shows
SERVERS at work: workers, connections, rates, latency, collections of garbage and memory.  It gets
its figures each second, by server-sent events of PATH/events.  A click on a worker that serves a
request POSTs to PATH/worker, which interrupts the worker for a moment to learn in which functions
it is, where the Lisp can tell.  From the first request on, a snapshot is taken each second, and
kept for two minutes.  A server of ours must serve the application; the requests of others all go to
the application.  Signals UNFIT-ARGUMENT."
  (make-tested-middleware
   (make-live-test path allow) servers
   (lambda (part servers environment exchange)
     (when exchange
       (watch-servers (exchange-engine exchange) servers)
       (ecase part
         ((nil) nil)
         (:page (page-response #'live-page servers))
         (:events (live-events-response servers exchange))
         (:worker (page-response #'answer-about-worker servers
                                 (getf environment :query-string)
                                 (gethash "live-page" (getf environment :headers)))))))))
