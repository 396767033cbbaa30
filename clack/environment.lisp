(in-package #:clack.handler.recycling)

;;;; The environment of a request, a fresh plist, made directly from the parsed head.

(defun header-table (head)
  "A hash table of the header fields of HEAD, from names in lower case to values."
  (let* ((headers (head-headers head))
         (table (make-hash-table :test 'equal :size (length headers))))
    (loop for (name . value) in headers
          do (setf (gethash (field-spelling name) table) value))
    table))

;;; The host that the request is for

(defun same-host-p (host other)
  "True when HOST and OTHER are the same text.  Most clients of a server name the same host."
  (declare (type text host other))
  (and (= (length host) (length other))
       (loop for index of-type index below (length host)
             always (char= (schar host index) (schar other index)))))

(defun server-name-and-port (server head http)
  "The host and the port that the request HEAD is for.  HTTP, an HTTP-CONNECTION, tells them where
the request does not."
  (let ((host (head-host head))
        (known (server-known-host server)))
    (cond ((or (null host) (string= "" host)) ; of HTTP/1.0
           (values-list (http-local http)))
          ((http-client http)           ; whose scheme decides about the default port
           (host-and-port host (default-port (request-encrypted-p server http))))
          ((same-host-p host (first known))
           (values (second known) (third known)))
          (t
           (setf known (cons host (multiple-value-list
                             (host-and-port host (default-port (encrypted-p server))))))
           (set-published (server-known-host server) known)
           (values (second known) (third known))))))

;;; The environment

(defun content-length-of (head)
  "The length of the request's content as HEAD tells it: an integer, or NIL where it does not."
  (let ((framing (head-framing head)))
    (cond ((integerp framing) framing)
          ((and (eq :none framing) (head-header head :content-length)) 0))))

(defun environment (exchange)
  "The environment of the request of EXCHANGE, a plist."
  (let* ((server (exchange-application exchange))
         (http (exchange-http exchange))
         (head (exchange-head exchange))
         (uri (head-uri head)))
    (setf (exchange-request-id exchange) (told-request-id http (head-headers head)))
    (multiple-value-bind (path-start path-end) (uri-path uri)
      (multiple-value-bind (name port) (server-name-and-port server head http)
        (list :request-method (head-method head)
              :script-name ""
              :path-info (if (= path-start path-end)
                             "/"        ; a target in absolute form may have no path
                             (percent-decoded uri path-start path-end))
              :query-string (and (< path-end (length uri))
                                 (text-part uri (1+ path-end) (length uri)))
              :server-name name
              :server-port port
              :server-protocol (head-protocol head)
              :request-uri uri
              :url-scheme (if (request-encrypted-p server http) "https" "http")
              :remote-addr (first (request-remote http))
              :remote-port (second (request-remote http))
              :headers (header-table head)
              :content-type (head-header head :content-type)
              :content-length (content-length-of head)
              :raw-body (current-content exchange)
              :clack.streaming t
              :clack.io exchange))))) ; see socket.lisp

(defmethod identifier-of ((environment cons))
  (keep-request-id (exchange-request-id (getf environment :clack.io))))

(defmethod watch-of ((environment cons))
  (exchange-watch (getf environment :clack.io)))
