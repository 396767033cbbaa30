(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* real-proxies :in acceptors
  :description "nginx and HAProxy, with the configurations that docs/guide/proxies.md shows.")

(defun configuration (name)
  "The text of the configuration NAME in deploy/."
  (uiop:read-file-string (merge-pathnames (format nil "deploy/~A" name) (source-root))))

(defun substituted (text old new)
  "TEXT with NEW in the place of each OLD, which must be in it."
  (assert (search old text))
  (replace-all text old new))

(defun localized-configuration (name directory &rest changes)
  "The configuration NAME, with DIRECTORY in the place of /srv/shop/, and with CHANGES, a plist of
texts."
  (let ((text (configuration name)))
    (when (search *example-folder* text)
      (setf text (substituted text *example-folder* (uiop:native-namestring directory))))
    (loop for (old new) on changes by #'cddr
          do (setf text (substituted text old (princ-to-string new))))
    text))

(defun call-with-proxy (function port &rest command)
  "Calls FUNCTION while the program that COMMAND starts listens on PORT."
  (call-with-command (lambda (program)
                       (eventually ("the proxy to listen")
                         (or (listening-p port) (not (program-runs-p program))))
                       (is-true (program-runs-p program) "The proxy has ended.")
                       (funcall function))
                     (constantly command)))

(defun connect-from-elsewhere (port)
  "A connection to PORT of this machine from another address of it than the usual one."
  (funcall *make-connection*
           (usocket:socket-connect "127.0.0.1" port :local-host "127.0.0.2" :local-port 0
                                                    :element-type '(unsigned-byte 8))))

(defun ask-from-elsewhere (port target &rest keys)
  "The text of the answer to a request for TARGET, made of KEYS, on PORT."
  (with-open-connection (connection (connect-from-elsewhere port))
    (apply #'exchange-text connection target keys)))

(defun check-client-behind-proxy (plain encrypted)
  "Checks what handlers know of clients of a proxy that listens on the ports PLAIN and, for TLS,
ENCRYPTED."
  (flet ((forged (scheme)
           `(("X-Forwarded-For" . "10.0.0.1") ("X-Forwarded-Proto" . ,scheme)
             ("X-Forwarded-Host" . "example.org") ("Forwarded" . "for=10.0.0.2;proto=https"))))
    (loop for (port scheme make) in `((,plain "http" %make-connection)
                                      (,encrypted "https" encrypted))
          do (let* ((*make-connection* make)
                    (host (format nil "localhost:~D" port))
                    (expected (format nil "127.0.0.2 0 localhost ~D ~A" port scheme)))
               (dolist (headers (list '() (forged "https") (forged "http")))
                 (is (equal expected
                            (ask-from-elsewhere port "/client" :host host :headers headers))))
               (with-open-connection (connection (connect-from-elsewhere port))
                 (send connection (handshake-octets
                                   :host host
                                   :headers `(("Origin" . ,(format nil "~A://~A" scheme host)))))
                 (is (= 101 (response-status (read-head connection)))))))))

(defmacro with-proxied-acceptor ((&rest initargs) &body body)
  "Evaluates BODY while an acceptor of INITARGS serves /client and the WebSocket /ws."
  `(serving ,initargs (("/client" (format nil "~{~A~^ ~}" (ends-as-told hunchentoot:*request*)))
                       ("/ws" (recycling:upgrade-to-websocket) nil))
     ,@body))

(defmacro with-proxy-files ((directory) &body body)
  "Evaluates BODY with DIRECTORY bound to a new one, with certificates in tls/."
  `(with-directory (,directory)
     (let ((tls (ensure-directories-exist (merge-pathnames "tls/" ,directory))))
       (funcall 'make-certificate tls)
       (uiop:copy-file (merge-pathnames "certificate.pem" tls)
                       (merge-pathnames "fullchain.pem" tls))
       (write-file tls "both.pem" (uiop:read-file-string (merge-pathnames "fullchain.pem" tls))
                   (uiop:read-file-string (merge-pathnames "key.pem" tls))))
     ,@body))

(defparameter *nginx-frame*
  "pid nginx.pid;
error_log stderr;
events {}
http {
    access_log off;
    client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi; scgi_temp_path scgi;
~A
}
"
  "An nginx.conf around the configuration of a site.")

(define-server-test (clients-are-known-behind-nginx :needs (:our-http :systemd :tls-client))
  (where-program (nginx "nginx")
    (with-proxy-files (directory)
      (let* ((plain (free-port)) (encrypted (free-port))
             (site (localized-configuration "nginx-site.conf" directory
                                            "listen 80" (format nil "listen 127.0.0.1:~D" plain)
                                            "listen 443"
                                            (format nil "listen 127.0.0.1:~D" encrypted)))
             (file (write-file directory "nginx.conf" (format nil *nginx-frame* site))))
        (with-proxied-acceptor (:address nil :listen-path (merge-pathnames "http.sock" directory)
                                :trusted-proxies '(:unix))
          (call-with-proxy (lambda () (check-client-behind-proxy plain encrypted))
                             plain nginx "-p" (uiop:native-namestring directory)
                             "-c" (uiop:native-namestring file)
                             "-g" "daemon off; master_process off;"))))))

(defparameter *check-timeout* "timeout connect 5s")

(defparameter *patient-check-timeout* (format nil "timeout connect 5s~%    timeout check 60s")
  "By default a check may take as long as the time to the next.")

(define-server-test (clients-are-known-behind-haproxy :needs (:our-http :tls-client))
  (where-program (haproxy "haproxy")
    (with-proxy-files (directory)
      (with-proxied-acceptor (:trusted-proxies '("127.0.0.1"))
        (let* ((plain (free-port)) (encrypted (free-port))
               (file (write-file directory "haproxy.cfg"
                                 (localized-configuration
                                  "haproxy.cfg" directory
                                  "bind :80" (format nil "bind 127.0.0.1:~D" plain)
                                  "bind :443" (format nil "bind 127.0.0.1:~D" encrypted)
                                  "check" "check inter 200" *check-timeout* *patient-check-timeout*
                                  "127.0.0.1:4242"
                                  (format nil "127.0.0.1:~D" (port-of *server*))))))
          (call-with-proxy (lambda ()
                               (eventually ("checks")
                                 (< 2 (figure :served)))
                               (check-client-behind-proxy plain encrypted)
                               (is (zerop (figure :rejected))))
                             plain haproxy "-db" "-f" (uiop:native-namestring file)))))))

(define-server-test
    (clients-are-known-by-the-proxy-protocol-of-haproxy :needs (:our-engine :tls-client))
  (where-program (haproxy "haproxy")
    (with-proxy-files (directory)
      (over-tls
        (serving (:trusted-proxies '("127.0.0.1") :proxy-protocol t)
            (("/ends" (format nil "~{~A~^ ~}" (ends-as-told hunchentoot:*request*))))
          (let ((port (free-port)))
            (loop for version in '("send-proxy-v2" "send-proxy")
                  do (let ((file (write-file directory "haproxy.cfg"
                                             (localized-configuration
                                              "haproxy-tcp.cfg" directory
                                              "bind :443" (format nil "bind 127.0.0.1:~D" port)
                                              "send-proxy-v2 check"
                                               (format nil "~A check inter 200" version)
                                              *check-timeout* *patient-check-timeout*
                                              "127.0.0.1:4443"
                                               (format nil "127.0.0.1:~D" (port-of *server*))))))
                       (call-with-proxy
                        (lambda ()
                          (with-open-connection (connection (connect-from-elsewhere port))
                            (dotimes (count 2)
                              (is (equal (format nil "127.0.0.2 ~D 127.0.0.1 ~D https"
                                                 (client-port connection) port)
                                         (exchange-text connection "/ends" :version "HTTP/1.0"
                                                        :host nil
                                                        :headers '(("Connection" .
                                                                    "keep-alive"))))))))
                        port haproxy "-db" "-f" (uiop:native-namestring file)))))
          (hunchentoot:stop *server*)
          (is (zerop (figure :rejected)) "Its checks are in order."))))))
