(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite restarts :in acceptors
  :description "Processes are restarted, or die, under load: docs/guide/processes.md.")

(in-suite restarts)

(defparameter *restarts* (uiop:getenv "RESTARTS")
  "How often each of these tests restarts all processes, a string; NIL for once.")

;;; Clients that ask all the time, with and without pauses, and count

(defstruct traffic
  "What clients ask for until that is over."
  (answers (make-recorder))             ; microseconds
  (late (make-recorder))                ; requests of clients that were late, which ask again
  (failures (make-recorder))            ; strings
  (over-p nil))

(defun failures-of (traffic &optional (method ""))
  "The failures of TRAFFIC, all or those with METHOD, :GET or :POST."
  (remove-if-not (lambda (failure) (uiop:string-prefix-p (string method) failure))
                 (recorded (traffic-failures traffic))))

(defun send-by (method word connection)
  "Sends a request with METHOD on CONNECTION, whose answer is WORD."
  (if (eq :get method)
      (send-request connection (format nil "/echo?word=~A" word))
      (send-request connection "/echo" :method :post :content word)))

(defun answer-on (connection word)
  "The response on CONNECTION.  Signals an error unless its text is WORD."
  (let* ((response (read-response connection)) (text (response-text response)))
    (unless (equal word text)
      (error "status ~D, ~S" (response-status response) text))
    response))

(defparameter *keep-microseconds* 900000
  "For how long after a request a client without a proxy may send the next one: a server that is
about to end says so for a second, and then closes the connection.  A client that the machine lets
send later may find it closed.")

(defun ask-until-over (traffic port method pause)
  "Sends requests with METHOD to PORT until TRAFFIC is over, with pauses of up to PAUSE seconds."
  (let ((connection nil) (began 0) (late-p nil) (*random-state* (make-random-state t)))
    (labels ((look ()
               (setf late-p (< *keep-microseconds* (- (platform:microseconds) began))))
             (hang-up ()
               (when connection
                 (ignore-errors (disconnect (shiftf connection nil)))))
             (ask (word)
               (when (or (look) (null connection))
                 (hang-up)
                 (setf began (platform:microseconds)
                       connection (connect port)))
               (let ((now (platform:microseconds)))
                 (send-by method word connection)
                 (look)
                 (when (equal "close" (connection-header (answer-on connection word)))
                   (hang-up))
                 (setf began now)
                 (record (traffic-answers traffic) (- (platform:microseconds) now)))))
      (unwind-protect
           (loop until (traffic-over-p traffic)
                 do (handler-case (ask (format nil "word~D" (random 1000)))
                      (error (condition)
                        (hang-up)
                        (if late-p
                            (record (traffic-late traffic) condition)
                            (record (traffic-failures traffic)
                                    (format nil "~A: ~A" method condition)))))
                    (poll (constantly nil) (random (float pause))))
        (hang-up)))))

(defparameter *pauses* '(0.002 0.1 0.7)
  "The longest pauses of the clients of each method, in seconds.")

(defun call-under-load (port function)
  "Calls FUNCTION while clients ask PORT.  Returns the TRAFFIC, which is over."
  (let* ((traffic (make-traffic))
         (clients (loop for method in '(:get :post)
                        append (loop for pause in *pauses*
                                     collect (let ((method method) (pause pause))
                                               (in-background ("client")
                                                 (ask-until-over traffic port method pause)))))))
    (flet ((await-answers (count)
             (let ((answers (recorded-count (traffic-answers traffic))))
               (eventually ("answers" :patience (* 6 *patience*))
                 (< (+ answers count) (recorded-count (traffic-answers traffic)))))))
      (unwind-protect (progn (await-answers 50)
                             (funcall function)
                             (await-answers 50))
        (setf (traffic-over-p traffic) t)
        (dolist (client clients)
          (task-result client (* 6 *patience*)))))
    (format t "~&~D requests answered, ~D failed, ~D were late; the longest took ~D ms~%"
            (recorded-count (traffic-answers traffic)) (length (failures-of traffic))
            (recorded-count (traffic-late traffic))
            (ceiling (reduce #'max (recorded (traffic-answers traffic))) 1000))
    traffic))

;;; What stands in for systemd

(defstruct (unit (:include program) (:constructor make-unit (directory)))
  "A program that is started anew whenever it ends."
  (over-p nil)
  manager)

(defun unprivileged (command)
  "COMMAND without the privileges of root, as deploy/*.service has it: as another user, and without
capabilities."
  (if (and (zerop (parse-integer (uiop:run-program '("id" "-u") :output :string)))
           (program-named "setpriv"))
      (list* "setpriv" "--reuid=65534" "--regid=65534" "--clear-groups" "--no-new-privs"
             "--bounding-set=-all" "--inh-caps=-all" command)
      command))

(defun keep-running (unit command keys)
  "Has COMMAND, with KEYS for UIOP:LAUNCH-PROGRAM, run in the directory of UNIT, UNPRIVILEGED, again
and again until that is over."
  (loop until (unit-over-p unit)
        do (setf (unit-process unit)
                 (apply #'run-in (unit-directory unit) (unprivileged command) keys))
           (uiop:wait-process (unit-process unit))))

(defun end-unit (unit)
  (setf (unit-over-p unit) t)
  (eventually ("a unit to end")
    (send-signals unit "KILL")
    (task-done-p (unit-manager unit))))

(defun call-with-units (function directory commands &rest keys)
  "Calls FUNCTION with a list of units, once they serve.  COMMANDS has the name of each, which is
that of its directory in DIRECTORY, and then its command.  KEYS are for UIOP:LAUNCH-PROGRAM."
  (let ((units '()))
    (unwind-protect
         (progn
           (loop for (name . command) in commands
                 do (let ((command command)
                          (unit (make-unit (ensure-directories-exist
                                            (merge-pathnames (format nil "~A/" name) directory)))))
                      (setf (unit-manager unit) (in-background ("service manager")
                                                  (keep-running unit command keys)))
                      (push unit units)))
           (dolist (unit units)
             (eventually ("a unit to serve" :patience (patience-to-load))
               (search "serving " (program-text unit "output"))))
           (funcall function (reverse units)))
      (mapc #'end-unit units))))

(defparameter *systemctl-restart*
  "cd \"$(dirname \"$0\")/${1#*@}\"
old=$(cat number)
rm -f output
kill -TERM \"$old\"
until grep -qs '^serving ' output && [ \"$(cat number)\" != \"$old\" ]; do sleep 0.05; done
"
  "A script that does to a unit what the command of systemd does.")

(defparameter *number-of-process*
  "cat \"$(dirname \"$0\")/${1#*@}/number\""
  "A script that tells of a unit what the command of systemd tells.")

(defun script-command (directory name text)
  "The command of a script with TEXT, made as the file NAME in DIRECTORY."
  (format nil "sh ~A" (uiop:native-namestring (write-file directory name text))))

(defun install-rolling-restart (directory)
  "Puts a copy of deploy/rolling-restart into DIRECTORY, in place of one that is there; returns its
name."
  (let ((file (uiop:native-namestring (merge-pathnames "rolling-restart" directory))))
    (uiop:run-program (list "install" (project-file "deploy/rolling-restart") file))
    file))

(defun rolling-restart-command (directory url units
                                &key restart (process "echo") (settle 0) (patience *patience*)
                                  (wait 600))
  "The command of the script of that name in DIRECTORY, for UNITS and URL, with RESTART and PROCESS,
commands, and SETTLE, PATIENCE and WAIT, seconds."
  (list* "env" (format nil "RESTART=~A" restart) (format nil "PROCESS=~A" process)
         (format nil "SETTLE=~D" settle) (format nil "PATIENCE=~D" patience)
         (format nil "WAIT=~D" wait)
         (install-rolling-restart directory) url units))

(defun run-rolling-restart (&rest arguments)
  "Runs the ROLLING-RESTART-COMMAND of ARGUMENTS; returns the code of its exit, and what it said."
  (multiple-value-bind (output errors code)
      (uiop:run-program (apply #'rolling-restart-command arguments)
                        :error-output :string :ignore-error-status t)
    (declare (ignore output))
    (values code errors)))

(defun rolling-restart (directory url names)
  "Restarts the units NAMES in DIRECTORY, whose URL is given; returns the code of the exit."
  (values (run-rolling-restart
           directory url (loop for name in names collect (format nil "shop@~A" name))
           :restart (format nil "timeout ~D ~A" (patience-to-load)
                            (script-command directory "restart" *systemctl-restart*))
           :process (script-command directory "process" *number-of-process*)
           :settle 0.5)))

(defun expect-nothing-lost (directory port url names)
  "Checks that rolling restarts of the units NAMES in DIRECTORY lose no request to PORT."
  (let ((traffic (call-under-load
                  port
                  (lambda ()
                    (loop repeat (parse-integer (or *restarts* "1"))
                          do (is (eql 0 (rolling-restart directory url names))))))))
    (is (null (failures-of traffic)) "~{~A~%~}" (failures-of traffic))))

;;; Programs

(defun shop-pages ()
  "Forms for the pages that the clients ask for."
  (list (page-form "/hello" "\"hello\"")
        (page-form "/echo" "(or (hunchentoot:get-parameter \"word\")
                                (hunchentoot:raw-post-data :force-text t))")))

;;; Each waits for a second before it drains, so that clients without a proxy find no connection
;;; closed on which they send a request after a pause.

(defun program-of-processes ()
  "The forms of the program in docs/guide/processes.md, which waits for a second in place of six."
  (list (substituted (example-text (find "lisp" (examples "docs/guide/processes.md")
                                         :key #'example-language :test #'equal))
                     ":drain-delay 6"
                     (format nil ":drain-delay 1 ~A" *tell-that-it-serves*))
        "(shop:main)"))

(defun commands-of-processes (directory ports)
  "The commands of units that serve on PORTS, after which they are called, by the program in the
guide."
  (let ((command (command-for directory (append (shop-pages) (program-of-processes)))))
    (loop for port in ports
          collect (list* (princ-to-string port) "env" (format nil "PORT=~D" port) command))))

;;; Without a proxy

(defparameter *first-descriptor-form*
  "(setf hunchentoot-recycling-taskmaster.platform::*first-inherited-descriptor* ~D)"
  "What makes a program find a socket under another number than systemd hands over.")

(define-server-test (a-restart-with-socket-activation-loses-no-request :needs (:parking :systemd))
  (where-program (curl "curl")
    (with-directory (directory)
      (with-inherited (descriptor port)
        (call-with-units
         (lambda (units)
           (declare (ignore units))
           (expect-nothing-lost directory port
                                (format nil "http://127.0.0.1:~D/hello" port) '("1")))
         directory
         (list (list* "1" "sh" "-c" "LISTEN_PID=$$ LISTEN_FDS=1 exec \"$@\"" "sh"
                      (command-for directory
                                   (list* (format nil *first-descriptor-form* descriptor)
                                          (append (shop-pages)
                                                  (list (serving-form ":listen-fd :systemd"
                                                                      ":drain-delay 1")))))))
         :preserve-fds (list descriptor))))))

(define-server-test (a-rolling-restart-on-a-shared-port-loses-no-request :needs (:parking :systemd))
  (where-program (curl "curl")
    (with-directory (directory)
      (let* ((port (free-port))
             (form (serving-form (format nil ":address \"127.0.0.1\" :port ~D :reuse-port t" port)
                                 ":drain-delay 1"))
             (command (command-for directory (append (shop-pages) (list form)))))
        (call-with-units
         (lambda (units)
           (declare (ignore units))
           (expect-nothing-lost directory port (format nil "http://127.0.0.1:~D/hello" port)
                                '("1" "2")))
         directory
         (list (cons "1" command) (cons "2" command)))))))

;;; Behind proxies

(defparameter *ports-of-processes* '("127.0.0.1:4241" "127.0.0.1:4242" "127.0.0.1:4243")
  "The places of the processes in deploy/.")

(defun changes-of-places (ports)
  "The changes of a configuration, a plist, for processes on PORTS."
  (loop for place in *ports-of-processes*
        for port in ports
        collect place
        collect (format nil "127.0.0.1:~D" port)))

(defun haproxy-command (haproxy directory port ports)
  "The command of HAPROXY that listens on PORT, in front of processes on PORTS."
  (list haproxy "-db" "-f"
        (uiop:native-namestring
         (write-file directory "haproxy.cfg"
                     (apply #'localized-configuration "haproxy-processes.cfg" directory
                            "bind :80" (format nil "bind 127.0.0.1:~D" port)
                            "bind :443" (format nil "bind 127.0.0.1:~D" (free-port))
                            "inter 1s" "inter 200ms"
                            ;; It may take a slow machine long to answer.
                            "timeout check   5s" "timeout check   60s"
                            (changes-of-places ports))))))

(defun nginx-command (nginx directory port ports)
  "The command of NGINX that listens on PORT, in front of processes on PORTS."
  (list nginx "-p" (uiop:native-namestring directory)
        "-g" "daemon off; master_process off;"
        "-c" (uiop:native-namestring
              (write-file directory "nginx.conf"
                          (format nil *nginx-frame*
                                  (apply #'localized-configuration "nginx-processes.conf" directory
                                         "listen 80" (format nil "listen 127.0.0.1:~D" port)
                                         "listen 443" (format nil "listen 127.0.0.1:~D" (free-port))
                                         "keepalive_timeout 5s" "keepalive_timeout 500ms"
                                         (changes-of-places ports)))))))

(defun call-behind-proxy (function name make-command)
  "Calls FUNCTION with a directory, the port of the proxy NAME, whose command MAKE-COMMAND makes,
and with the ports and the units of three processes behind it."
  (where-program (proxy name)
    (where-program (curl "curl")
      (with-proxy-files (directory)
        (let ((port (free-port)) (ports (loop repeat 3 collect (free-port))))
          (call-with-units
           (lambda (units)
             (apply #'call-with-proxy (lambda () (funcall function directory port ports units))
                    port (funcall make-command proxy directory port ports)))
           directory (commands-of-processes directory ports)))))))

(defun restart-behind-proxy (directory port ports units)
  "Checks that rolling restarts of UNITS lose no request."
  (declare (ignore units))
  (expect-nothing-lost directory port "http://127.0.0.1:%/ready" (mapcar #'princ-to-string ports)))

(defun kill-behind-proxy (directory port ports units)
  "Checks that the death of one of UNITS loses no request that may be repeated, and others only if
they ran in it."
  (declare (ignore directory ports))
  (let ((traffic (call-under-load
                  port
                  (lambda ()
                    (let ((number (program-number (first units))))
                      (send-signals (first units) "KILL")
                      (eventually ("the unit to be started again" :patience (patience-to-load))
                        (string/= number (program-number (first units)))))))))
    (is (null (failures-of traffic :get)) "~{~A~%~}" (failures-of traffic :get))
    ;; Each client has one request at a time.
    (is (>= (length *pauses*) (length (failures-of traffic :post)))
        "~{~A~%~}" (failures-of traffic :post))))

(define-server-test (a-rolling-restart-behind-haproxy-loses-no-request
                     :needs (:parking :systemd :tls-client))
  (call-behind-proxy #'restart-behind-proxy "haproxy" #'haproxy-command))

(define-server-test (a-rolling-restart-behind-nginx-loses-no-request
                     :needs (:parking :systemd :tls-client))
  (call-behind-proxy #'restart-behind-proxy "nginx" #'nginx-command))

(define-server-test (a-process-that-dies-behind-haproxy-loses-only-what-must-not-be-repeated
                     :needs (:parking :systemd :tls-client))
  (call-behind-proxy #'kill-behind-proxy "haproxy" #'haproxy-command))

;;; The script

(defparameter *recording-restart*
  "echo \"$1\" >>\"$(dirname \"$0\")/restarted\"; [ \"$1\" != bad ]"
  "A script that records which unit it is to restart, and fails for the unit \"bad\".")

(defun restarted-units (directory)
  "The units that *RECORDING-RESTART* in DIRECTORY has recorded; they are forgotten."
  (let ((file (merge-pathnames "restarted" directory)))
    (when (probe-file file)
      (prog1 (uiop:read-file-lines file)
        (delete-file file)))))

(defmacro with-ready-server ((url) &body body)
  "Evaluates BODY with URL bound to the one of a page of a server that is ready."
  `(where-program (curl "curl")
     (serving () (("/ready" "ready"))
       (let ((,url (format nil "http://127.0.0.1:~D/ready" (port-of *server*))))
         ,@body))))

(define-server-test (a-rolling-restart-ends-with-the-first-process-that-is-not-ready
                     :needs (:parking :systemd))
  (with-directory (directory)
    (let ((restart (script-command directory "restart" *recording-restart*)))
      (flet ((check (code restarted url units &rest keys)
               (is (eql code (apply #'run-rolling-restart directory url units :restart restart
                                    keys)))
               (is (equal restarted (restarted-units directory)))))
        (with-ready-server (url)
          (check 1 '() (format nil "http://127.0.0.1:~D/ready" (free-port)) '("a") :patience 1)
          (check 0 '("a" "b") url '("a" "b"))
          (check 1 '("a" "bad") url '("a" "bad" "b"))
          (check 2 '() url '()))))))
