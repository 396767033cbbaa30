(in-package #:hunchentoot-recycling-taskmaster)

;;;; Dispatchers with pages for those that watch servers.

(defun send-page (page servers)
  "Answers the current request with PAGE, a function as METRICS-PAGE, of SERVERS."
  (multiple-value-bind (status type octets) (funcall page servers)
    (setf (hunchentoot:return-code*) status
          (hunchentoot:content-type*) type
          (hunchentoot:header-out :cache-control) "no-store")
    octets))

(defun make-page-dispatcher (page path servers allow)
  "A dispatcher with PAGE at PATH, as MAKE-METRICS-DISPATCHER tells."
  (let ((wanted-p (with-parameter-errors (make-page-test path allow))))
    (lambda (request)
      (when (funcall wanted-p
                     (hunchentoot:request-method request) (hunchentoot:script-name request)
                     (hunchentoot:remote-addr request)
                     (passed-on-p *exchange*
                                  (hunchentoot:header-in :x-forwarded-for request)
                                  (hunchentoot:header-in :forwarded request)))
        (lambda ()
          (send-page page (or servers (list hunchentoot:*acceptor*))))))))

(defun make-metrics-dispatcher (path &key servers (allow *loopback*))
  "A dispatcher for HUNCHENTOOT:*DISPATCH-TABLE* that answers GET and HEAD of PATH, a string, with
the STATS of SERVERS as metrics for Prometheus: version 0.0.4 of its text format.

  SERVERS  a list of acceptors, and of servers of Clack applications; by default the acceptor that
           serves the request
  ALLOW    the clients that get the page, a list: addresses and networks, strings as \"192.0.2.1\"
           and \"10.0.0.0/8\", and :UNIX for those of Unix-domain sockets.  By default those on this
           machine.  Others, and requests with X-Forwarded-For or Forwarded that come from none
           of :TRUSTED-PROXIES, get what the rest of the dispatch table has for them.  Or a function
           of the address, a string, that alone decides

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
as one of them is being stopped, and before it is started.  Signals HUNCHENTOOT:PARAMETER-ERROR."
  (make-page-dispatcher #'readiness-page path servers allow))

(defun make-liveness-dispatcher (path &key (allow *loopback*))
  "As MAKE-METRICS-DISPATCHER with PATH and ALLOW, but the page is always 200: it tells that a
thread serves.  Signals HUNCHENTOOT:PARAMETER-ERROR."
  (make-page-dispatcher #'liveness-page path '() allow))
