(in-package #:clack.handler.recycling)

;;;; The environment of a request, a fresh plist, straight from the head that was read.

(defun header-table (head)
  "The header fields of HEAD in a hash table, by their names in lower case."
  (let* ((headers (head-headers head))
         (table (make-hash-table :test 'equal :size (length headers))))
    (loop for (name . value) in headers
          do (setf (gethash (field-spelling name) table) value))
    table))

;;; Whom the request is for

(defun same-host-p (host other)
  "True when HOST and OTHER are the same text.  Most clients of a server name the same."
  (declare (type text host other))
  (and (= (length host) (length other))
       (loop for index of-type index below (length host)
             always (char= (schar host index) (schar other index)))))

(defun server-name-and-port (server head http)
  "The host and the port that the request HEAD, which came over HTTP, is for."
  (let ((host (head-host head))
        (known (server-known-host server)))
    (cond ((or (null host) (string= "" host)) ; of HTTP/1.0
           (values-list (http-local http)))
          ((same-host-p host (first known))
           (values (second known) (third known)))
          (t
           (setf known (cons host (multiple-value-list
                             (host-and-port host (default-port (encrypted-p server))))))
           (set-published (server-known-host server) known)
           (values (second known) (third known))))))

;;; The whole

(defun content-length-of (head)
  "The length of the content of HEAD, an integer, or NIL where none was said."
  (let ((framing (head-framing head)))
    (cond ((integerp framing) framing)
          ((and (eq :none framing) (head-header head :content-length)) 0))))

(defun environment (exchange body)
  "The environment of the request of EXCHANGE, with BODY, a stream."
  (let* ((server (exchange-application exchange))
         (http (exchange-http exchange))
         (head (exchange-head exchange))
         (uri (head-uri head)))
    (multiple-value-bind (path-start path-end) (uri-path uri)
      (multiple-value-bind (name port) (server-name-and-port server head http)
        (list :request-method (head-method head)
              :script-name ""
              :path-info (if (= path-start path-end)
                             "/"        ; of a target in absolute form
                             (percent-decoded uri path-start path-end))
              :query-string (and (< path-end (length uri))
                                 (text-part uri (1+ path-end) (length uri)))
              :server-name name
              :server-port port
              :server-protocol (head-protocol head)
              :request-uri uri
              :url-scheme (if (encrypted-p server) "https" "http")
              :remote-addr (first (http-remote http))
              :remote-port (second (http-remote http))
              :headers (header-table head)
              :content-type (head-header head :content-type)
              :content-length (content-length-of head)
              :raw-body body
              :clack.streaming t
              :clack.io exchange)))))   ; see socket.lisp
