(in-package #:recycling-benchmark)

;;;; A server: what it can do, how its process is started and ended.  servers.lisp lists them.

(defstruct server
  "A server that can be measured.

NAME     what it is called on the command line
LABEL    what it is called in reports
COLOR    its colour in charts, #rrggbb
SERVES   what it can do: some of the workloads' needs
NOTE     what a reader of its figures has to know, or NIL
PREPARE  a function that finds or makes what it needs; UNAVAILABLE where that cannot be had
COMMAND  a function of a port and a list of certificate and key, or NIL for no TLS, that returns the
         words of a command.  This serves in the foreground on that port of 127.0.0.1
VERSION  a function that returns the version, a string"
  name label color serves note (prepare (constantly t)) command version)

(defvar *servers* '()
  "All servers, in the order of tables and charts.")

(defvar *sockets* nil
  "The folder of PostgreSQL's socket while that runs, else NIL.")

(defun find-server (name)
  "The server NAME, or NIL."
  (find name *servers* :key #'server-name :test #'string=))

;;; Lisp

(defun known-system-p (name)
  "True if ASDF finds the system NAME."
  (and (asdf:find-system name nil) t))

(defparameter *json-system* "yason"
  "The system by which Lisp servers write JSON.")

(defparameter *database-systems* '("postmodern" "cl-who")
  "The systems by which Lisp servers ask the database and write HTML.")

(defun lisp-command (systems files form &key (root *root*))
  "The command of a Lisp that loads SYSTEMS, from the checkout ROOT where they are ours, and FILES
of servers/, and evaluates FORM, a string."
  (let ((database-p (and *sockets* (every #'known-system-p *database-systems*))))
    (flet ((evaluate (control &rest arguments)
             (list "--eval" (apply #'format nil control arguments))))
      `(,sb-ext:*runtime-pathname* "--dynamic-space-size" 4000 "--noinform" "--non-interactive"
        ,@(evaluate "(require :asdf)")
        ,@(evaluate "(push ~s asdf:*central-registry*)" (uiop:native-namestring root))
        ,@(loop for system in (append systems (list *json-system*)
                                      (and database-p *database-systems*))
                append (evaluate "(asdf:load-system ~s)" system))
        ,@(loop for file in (append '("work") (and database-p '("database")) files)
                append (list "--load" (source-file (format nil "servers/~a.lisp" file))))
        ,@(evaluate "(work:prepare ~s)" (uiop:native-namestring (built-file "data/")))
        ,@(and database-p (evaluate "(work:use-database ~s)" (uiop:native-namestring *sockets*)))
        ;; An orderly exit would wait for hundreds of threads; garbage of loading would be
        ;; collected while it is measured.
        ,@(evaluate "(sb-sys:enable-interrupt sb-unix:sigterm :default)")
        ,@(evaluate "(sb-ext:gc :full t)")
        ,@(evaluate "~a" form)))))

(defun lisp-server (name label color serves
                    &key system files arguments tls-arguments note (root *root*))
  "A server in a Lisp of its own, by SYSTEM and FILES of servers/.  Port, certificate and key, and
behind them ARGUMENTS, a string, are the arguments of SERVE; over TLS TLS-ARGUMENTS, if there are
any."
  (make-server
   :name name :label label :color color :serves serves :note note
   :prepare (lambda ()
              (dolist (each (list *json-system* system))
                (unless (known-system-p each)
                  (unavailable "ASDF does not find the system ~a" each))))
   :command (lambda (port certificate)
              (lisp-command (list system) files
                            (format nil "(work:serve ~d ~:[nil nil~;~:*~{~s ~s~}~] ~a)"
                                    port (strings certificate)
                                    (or (and certificate tls-arguments) arguments))
                            :root root))
   :version (lambda ()
              (or (asdf:component-version (asdf:find-system system)) "unknown"))))

;;; A server that runs

(defstruct running
  "SERVER as CHILD on PORT, over TLS if TLS-P."
  server child port tls-p)

(defun free-port ()
  "A port of 127.0.0.1 on which nobody listens."
  (let ((socket (usocket:socket-listen "127.0.0.1" 0 :reuse-address t)))
    (unwind-protect (usocket:get-local-port socket)
      (usocket:socket-close socket))))

(defun connects-p (port)
  "True if somebody listens on PORT of 127.0.0.1."
  (handler-case (progn (usocket:socket-close (usocket:socket-connect "127.0.0.1" port)) t)
    (usocket:socket-error () nil)))

(defun start (server &key tls log (wrap #'identity))
  "Starts SERVER, over TLS if TLS, and returns it RUNNING once it listens.  What it prints goes to
the file LOG.  WRAP, a function, may change the words of its command.  UNAVAILABLE if it does not
start."
  (let* ((port (free-port))
         (child (launch (funcall wrap (funcall (server-command server) port
                                               (and tls (certificate))))
                        :output log))
         (running (make-running :server server :child child :port port :tls-p tls)))
    ;; A Lisp may have to be compiled first.
    (wait-until (lambda () (or (connects-p port) (not (alive-p child)))) 300)
    (unless (and (alive-p child) (connects-p port))
      (end-child child)
      (unavailable "it did not start, and is left out from now on; ~a has what it printed"
                   (uiop:native-namestring log)))
    running))

(defun stop (running)
  "Ends RUNNING."
  (end-child (running-child running)))

(defparameter *line-end* (coerce '(#\Return #\Newline) 'string)
  "What ends a line of HTTP.")

(defun ask (port path &key content fields)
  "The answer to a GET of PATH, or a POST of CONTENT, a string, with more FIELDS, strings, from
whoever listens on PORT: all of it, a string; or NIL."
  (handler-case
      (usocket:with-client-socket (socket stream "127.0.0.1" port :timeout 5
                                                                  :element-type '(unsigned-byte 8))
        (let ((lines `(,(format nil "~:[GET~;POST~] ~a HTTP/1.1" content path)
                       "Host: localhost" "Connection: close" ,@fields
                       ,@(and content (list (format nil "Content-Length: ~d" (length content))))
                       "" ,(or content ""))))
          (write-sequence (map '(vector (unsigned-byte 8)) #'char-code
                               (format nil "~{~a~^~a~}" (loop for line in lines
                                                              collect line collect *line-end*)))
                          stream)
          (finish-output stream)
          (with-output-to-string (answer)
            (loop while (usocket:wait-for-input socket :timeout 5 :ready-only t)
                  for octet = (read-byte stream nil)
                  while octet do (write-char (code-char octet) answer)))))
    ((or usocket:socket-error stream-error) () nil)))
