(in-package #:clack.handler.recycling)

;;;; Middlewares with pages for those that watch servers.

(defun page-middleware (make &rest arguments)
  "A middleware with the page that MAKE, MAKE-PAGE or MAKE-LIVE-PAGE, makes of ARGUMENTS."
  (let ((page (apply make arguments)))
    (lambda (app)
      (lambda (environment)
        (let* ((exchange (getf environment :clack.io))
               (answer (and (typep exchange 'exchange) (funcall page exchange))))
          (cond ((null answer) (funcall app environment))
                ((functionp answer)
                 (multiple-value-bind (status type octets headers) (funcall answer)
                   (list status (list* :content-type type :cache-control "no-store" headers)
                         octets)))
                (t
                 (lambda (responder)
                   (let ((deferred-response (exchange-deferred-response exchange)))
                     (setf (deferred-response-endless-p deferred-response) t)
                     (funcall responder (list 200 (list :content-type "text/event-stream"
                                                        :cache-control "no-cache"
                                                        :x-accel-buffering "no")))
                     (let ((written (deferred-response-shared-queue deferred-response)))
                       (when written    ; or the client has left
                         (send-snapshots answer written))))))))))))

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

A server of ours must serve the application; the requests of others all go to the application.

Signals UNFIT-ARGUMENT where PATH or ALLOW makes no sense."
  (page-middleware #'make-page #'metrics-page path servers allow))

(defun make-readiness-middleware (path &key servers (allow *loopback*))
  "As MAKE-METRICS-MIDDLEWARE with PATH, SERVERS and ALLOW, but the page tells a load balancer
whether all of SERVERS take new requests: with status 200, or 503 (RFC 9110, section 15.6.4) as soon
as one of them is being stopped, and before it is started.  Host may be any name.  Signals
UNFIT-ARGUMENT."
  (page-middleware #'make-page #'readiness-page path servers allow :any-host-p t))

(defun make-liveness-middleware (path &key (allow *loopback*))
  "As MAKE-METRICS-MIDDLEWARE with PATH and ALLOW, but the page is always 200: it tells that a
thread serves.  Host may be any name.  Signals UNFIT-ARGUMENT."
  (page-middleware #'make-page #'liveness-page path '() allow :any-host-p t))

(defun make-live-page-middleware (path &key servers (allow *loopback*))
  "As MAKE-METRICS-MIDDLEWARE with PATH, SERVERS and ALLOW, but with a page for people, which shows
SERVERS at work: workers, connections, rates, latency, collections of garbage and memory.  It gets
its figures each second, by server-sent events of PATH/events.  A click on a worker that serves a
request POSTs to PATH/worker, which interrupts the worker for a moment to learn in which functions
it is, where the Lisp can tell.  Signals UNFIT-ARGUMENT."
  (page-middleware #'make-live-page path servers allow))
