(in-package #:recycling-benchmark)

;;;; The servers, in the order of tables and charts.

(defmacro define-servers (&body forms)
  "Sets *SERVERS* to the values of FORMS but for those that are NIL."
  `(setf *servers* (remove nil (list ,@forms))))

(defparameter *application* '(:hello :wait :file :mix :json :upload :database :tls)
  "What each application serves.")

(defparameter *woo-note*
  "Woo runs handlers in its event loops: while one waits, its worker serves nobody else.")

(defun ours (name label color root)
  "Our server of the checkout ROOT, by Hunchentoot's side."
  (lisp-server name label color (list* :later :events :websocket *application*)
               :system "hunchentoot-recycling-taskmaster" :files '("hunchentoot" "later")
               :arguments "'hunchentoot-recycling-taskmaster:parallel-easy-acceptor"
               :tls-arguments "'hunchentoot-recycling-taskmaster:parallel-easy-ssl-acceptor"
               :root root))

(defun woo (name label color workers)
  "Woo with WORKERS, its event loops."
  (lisp-server name label color *application* :system "woo" :files '("clack") :note *woo-note*
               :arguments (format nil "'woo:run :worker-num ~d :backlog 128" workers)))

(defun fill-in (file replacements)
  "The text of FILE, a template, with the second of each of REPLACEMENTS for the first."
  (reduce (lambda (text replacement)
            (uiop:frob-substrings text (list (first replacement)) (second replacement)))
          replacements :initial-value (uiop:read-file-string file)))

(defun nginx-command (port certificate)
  "The command of nginx on PORT, over TLS with CERTIFICATE unless that is NIL."
  (let ((folder (built-file (format nil "nginx-~d/" port))))
    (with-open-file (stream (merge-pathnames "nginx.conf" folder)
                            :direction :output :if-exists :supersede)
      (write-string (fill-in (source-file "servers/nginx.conf")
                             `(("@PORT@" ,(princ-to-string port))
                               ("@USER@" ,(user))
                               ("@FILE@" ,(uiop:native-namestring (built-file "data/file.bin")))
                               ("@TLS@" ,(if certificate "ssl" ""))
                               ("@CERTIFICATE@"
                                ,(format nil "~@[ssl_certificate ~a; ssl_certificate_key ~a; ~
                                              ssl_protocols TLSv1.3;~]"
                                         (first (strings certificate))
                                         (second (strings certificate))))))
                    stream))
    (list (find-program "nginx" "nginx-light") "-p" folder
          "-c" (merge-pathnames "nginx.conf" folder))))

(defun node-module-p (name)
  "True if Node finds the module NAME."
  (zerop (length (output-of "env" "NODE_PATH=/usr/share/nodejs" "node" "-e"
                            (format nil "require('~a')" name)))))

(define-servers
  (ours "ours" "ours" "#d32f2f" *root*)
  ;; Another checkout, to compare with: make bench BEFORE=folder
  (let ((before (uiop:getenvp "BENCH_BEFORE")))
    (and before
         (ours "before" "before" "#f48fb1" (truename (uiop:ensure-directory-pathname before)))))
  (lisp-server "ours-clack" "ours, Clack" "#ff7043" (list* :later *application*)
               :system "clack-handler-recycling" :files '("clack")
               :arguments "'clack.handler.recycling:run
                           :run-after 'clack.handler.recycling:run-after")
  (lisp-server "hunchentoot" "Hunchentoot" "#1565c0" *application*
               :system "hunchentoot" :files '("hunchentoot")
               :arguments "'hunchentoot:easy-acceptor"
               :tls-arguments "'hunchentoot:easy-ssl-acceptor")
  (lisp-server "clack-hunchentoot" "Clack's Hunchentoot" "#64b5f6" *application*
               :system "clack-handler-hunchentoot" :files '("clack")
               :arguments "'clack.handler.hunchentoot:run")
  (woo "woo" "Woo, 1 per core" "#fb8c00" (processors))
  (woo "woo-100" "Woo, 100 workers" "#bf360c" 100)
  (make-server :name "go" :label "Go net/http" :color "#00acc1"
               :serves (list* :later :events :websocket *application*)
               :prepare #'go-server
               :command (lambda (port certificate)
                          (list* (go-server) port (built-file "data/") (or *sockets* "")
                                 certificate))
               :version (lambda () (output-of "go" "version")))
  (make-server :name "node" :label "Node" :color "#9ccc65"
               :serves (append '(:later :events) (and (node-module-p "ws") '(:websocket))
                               (set-difference *application* '(:database :tls)))
               :note "A cluster of one process for each processor."
               :prepare (lambda () (find-program "node" "nodejs"))
               :command (lambda (port certificate)
                          (declare (ignore certificate))
                          (list "env" "NODE_PATH=/usr/share/nodejs" "node"
                                (source-file "servers/server.js") port (built-file "data/")
                                (processors)))
               :version (lambda () (output-of "node" "--version")))
  (make-server :name "nginx" :label "nginx" :color "#2e7d32" :serves '(:tls :hello :file)
               :prepare (lambda () (find-program "nginx" "nginx-light"))
               :command #'nginx-command
               :version (lambda () (output-of (find-program "nginx") "-v")))
  (make-server :name "limit" :label "limit (C)" :color "#9e9e9e" :serves '(:hello :wait :file)
               :note "A program in C with fixed answers: what the machine and wrk give."
               :prepare (lambda () (c-program "limit" "servers"))
               :command (lambda (port certificate)
                          (declare (ignore certificate))
                          (list (c-program "limit" "servers") port (processors)))
               :version (lambda () (output-of "cc" "--version"))))
