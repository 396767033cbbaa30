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

(defun engine-ready-p (engine)
  "True while ENGINE, or NIL for none, takes new requests."
  (and engine (welcoming-p engine)))

;;; What engines tell

(defun being-served-p (worker)
  "True if WORKER, a plist of LIST-WORKERS, is at a request."
  (let ((task (getf worker :task)))
    (and (typep task 'exchange)
         (exchange-head task)
         (not (exchange-counted-p task)))))

(defun engine-stats (engine)
  "The part of STATS that ENGINE, or NIL for none that runs, tells."
  (let* ((known (if engine (engine-statistics engine) (no-statistics)))
         (replies (replies-by-kind (getf known :replies))))
    (setf (getf known :replies) replies)
    (append known
            (list :errors (loop for (nil classes) on replies by #'cddr
                                sum (getf classes :5xx))
                  :in-progress (+ (getf known :deferred)
                                  (count-if #'being-served-p
                                            (and engine (list-workers engine))))))))

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
  "The page, three values, with the STATS of SERVERS, a list, and of the process, as text for
Prometheus."
  (text-page 200 "text/plain; version=0.0.4; charset=utf-8"
             (uiop:strcat (prometheus-text (loop for server in servers
                                                 collect (cons (place-of server) (stats server))))
                          (process-text))))

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

(defun client-test (allow)
  "A function of the address of a client, a string, that is true if ALLOW, the argument of a page,
allows that client.  Signals UNFIT-ARGUMENT."
  (if (listp allow)
      (let ((networks (loop for name in allow
                            collect (or (network-named name)
                                        (unfit :allow " has ~S, which names no network" name)))))
        (lambda (text)
          (peer-in-p networks text)))
      (if (or (functionp allow) (and (symbolp allow) (fboundp allow)))
          allow
          (unfit :allow " must be a list or a function, not ~S" allow))))

(defun passed-on-p (exchange &rest fields)
  "True if FIELDS, the values of X-Forwarded-For and Forwarded or NIL, show that an untrusted proxy
has passed on the request of EXCHANGE, or a trusted one that hides its client, so that this is not
known.  EXCHANGE is NIL where the server has not read the request."
  (and (some #'identity fields)
       (let* ((http (and exchange (exchange-http exchange)))
              (client (and http (http-client http))))
         (not (and client (client-named-p client))))))

(defun sites-name-p (host)
  "True if HOST, the text of Host or NIL, may be the name of any site: it has a dot, is no address,
and does not end in .localhost (RFC 6761, section 6.3)."
  (let ((name (string-right-trim "." (host-and-port (or host "") nil))))
    (not (or (null (find #\. name))
             (char= #\[ (char name 0))
             (parse-ip-address name)
             (uiop:string-suffix-p (string-downcase name) ".localhost")))))

(defun hosts-asked-for (exchange host)
  "The texts of Host, a list, that the request of EXCHANGE has: HOST, or NIL, as its handler sees
it; and where that is what a trusted proxy tells, the one with which the proxy itself has asked.  A
script can claim to be the proxy, but it cannot change its browser's Host.  EXCHANGE is NIL where
the server has not read the request."
  (let* ((http (and exchange (exchange-http exchange)))
         (client (and http (http-client http)))
         (asked-host (and client (client-asked-host client))))
    (if asked-host
        (list host asked-host)
        (list host))))

(defun led-here-p (address hosts)
  "True if the client with ADDRESS, a string, on this machine, that asks for HOSTS, as
HOSTS-ASKED-FOR returns them, may be a browser that another site has led here: to an address of this
machine under that site's name, so that its scripts may read the response (DNS rebinding)."
  (and (peer-in-p (load-time-value (mapcar #'parse-network '("127.0.0.0/8" "::1"))) address)
       (some #'sites-name-p hosts)))

(defun make-page-test (path allow &key (methods '(:get :head)) any-host-p)
  "A function of the method of a request, its path and the address of its client, strings, of the
values of PASSED-ON-P and HOSTS-ASKED-FOR.  It is true if the request gets the page at PATH, a
string, of which ALLOW is the argument, for which it has one of METHODS, a list.  With ANY-HOST-P
the page tells so little that a browser which another site has led here may have it, and load
balancers can ask with the names of their sites.  Signals UNFIT-ARGUMENT."
  (unless (stringp path)
    (unfit :path " must be a string, not ~S" path))
  (let ((allowed-p (client-test allow)))
    (lambda (method request-path address passed-on-p hosts)
      (and (string= path request-path)
           (member method methods)
           ;; Behind a proxy on this machine every client seems to be on this machine.
           (not (and (listp allow)
                     (or passed-on-p
                         (and (not any-host-p) (led-here-p address hosts)))))
           (funcall allowed-p address)))))
