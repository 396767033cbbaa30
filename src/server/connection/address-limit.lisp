(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; The limit on the connections of one address, :MAX-ADDRESS-CONNECTIONS.
;;;;
;;;;   the connection comes from     counts for
;;;;   an IPv4 address               that address, also where it is mapped to IPv6
;;;;   an IPv6 address               its first 64 bits: a subscriber has all the others, and could
;;;;                                 use each for one connection
;;;;   a trusted proxy               nothing; with the PROXY protocol, the client that its header
;;;;                                 tells, once that has come
;;;;   a Unix-domain socket          nothing
;;;;
;;;; The fields of requests, such as X-Forwarded-For, do not count: a proxy that speaks HTTP sends
;;;; the requests of many clients over one connection.

(defun client-address (connection)
  "The address, a string, of the client of CONNECTION, as far as is known before a request; NIL when
it is gone."
  (let ((http (connection-data connection)))
    (if http
        (first (http-remote http))
        (handler-case (values (connection-peer-name connection))
          (error () nil)))))

(defun counted-address (application text)
  "The integer that stands for the address TEXT, a string or NIL, where connections to APPLICATION
are counted; NIL where they are not."
  (let ((address (and text (parse-ip-address text))))
    (cond ((or (null address) (address-in-p (trusted-proxies application) address)) nil)
          ((ipv4-p address) address)
          (t (dpb 0 (byte 64 0) address)))))

(defmethod address-limit ((application http-service) connection)
  (let* ((limit (limits-address-connections (application-limits application)))
         (address (and limit (counted-address application (client-address connection)))))
    (and address (values limit address))))

(defun admit-proxied-client (connection)
  "Counts CONNECTION, whose header of the PROXY protocol has come, for the client that it tells.  If
that has too many, refuses it, and returns NIL."
  (let ((engine (current-engine)))      ; a worker reads the header
    (or (enter-address engine connection)
        (progn (refuse-with-notice engine connection :address)
               nil))))

(defun tell-of-crowded-address (application connection)
  "Logs that CONNECTION to APPLICATION was refused, since its client has as many as it may."
  (tell-seldom application :crowded-address :warning
               "A connection was refused" "connections were refused"
               (format nil "~A has ~A open, as many as one address may"
                       (client-address connection)
                       (limits-address-connections (application-limits application)))))
