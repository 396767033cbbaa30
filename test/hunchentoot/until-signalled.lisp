(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite until-signalled :in acceptors
  :description "Programs that serve until signals end them.")

(in-suite until-signalled)

(defun begin-upload (connection size)
  "Sends half of a request with SIZE octets to CONNECTION; returns the octets of the other half."
  (let* ((octets (request-octets "/upload" :method :post :content (test-octets size)))
         (middle (floor (length octets) 2)))
    (send connection (subseq octets 0 middle))
    (subseq octets middle)))

(defparameter *busy-program*
  (list (slow-page-forms)
        (page-form "/upload" "(princ-to-string
                                 (length (hunchentoot:raw-post-data :force-binary t)))")
        (page-form "/events" "(hunchentoot-recycling-taskmaster:defer-reply (reply)
                                (hunchentoot-recycling-taskmaster:send-event
                                 (hunchentoot-recycling-taskmaster:start-event-stream reply)
                                 \"hello\"))")
        (page-form "/talk" "(hunchentoot-recycling-taskmaster:upgrade-to-websocket)")
        (signalled-acceptor "" ":drain-timeout 60"))
  "The forms of a program with all that may go on while a signal comes.")

(define-server-test (a-server-that-a-signal-ends-answers-or-tells-every-client :needs :parking)
  (with-serving-program (program *busy-program*)
    (with-connections (slow 50)
      (with-connection (upload)
        (with-connection (events)
          (with-talk (talk :handshake '(:target "/talk"))
            (dolist (connection slow)
              (send-request connection "/slow"))
            (send-request events "/events")
            (let ((rest (begin-upload upload 100000))
                  (stream (read-head events)))
              (await-entered 50)
              (send-signals program "TERM")
              (await-printed program "Stopping")
              (send upload rest)
              (is (equal "100000" (response-text (read-response upload))))
              (is (search "hello" (map 'string #'code-char (read-body events stream nil))))
              (is (eql 1001 (hear-close talk)))
              (say-close talk 1001)
              (is-true (program-runs-p program))
              (release program)
              (dolist (connection slow)
                (is (equal "slow" (response-text (read-response connection)))))
              (is (eql 0 (program-exit program)))
              (is (not (printed-p program "did not finish"))))))))))

(defun expect-cut-short (program client &optional (count 1))
  "Checks that PROGRAM exits with 0, and tells that it has cut COUNT requests short, one of CLIENT."
  (is (eql 0 (program-exit program)))
  (is-true (printed-p program (format nil "~D request~:P or connection~:P did not finish" count)))
  (is-true (closed-by-server-p client)))

(define-server-test (a-second-signal-ends-the-server-at-once :needs :parking)
  (with-serving-program (program (slow-page-forms)
                                 (signalled-acceptor "" ":drain-timeout nil"))
    (with-connection (client)
      (send-request client "/slow")
      (await-entered 1)
      (let ((began (platform:milliseconds)))
        (send-signals program "INT" "TERM")
        (await-printed program "Stopping")
        (send-signals program "TERM")
        ;; One that comes soon after the first is the same.
        (when (< (platform:milliseconds) (+ began 250))
          (is (not (poll (lambda () (not (program-runs-p program))) 6/10)))))
      (eventually ("the program to end")
        (send-signals program "INT")
        (not (program-runs-p program)))
      (expect-cut-short program client))))

(define-server-test (a-signal-ends-a-server-that-can-make-no-more-threads :needs :parking)
  (with-serving-program (program (page-form "/none" "(sb-int:encapsulate
                                                      'bt:make-thread 'none
                                                      (lambda (&rest arguments)
                                                        (declare (ignore arguments))
                                                        (error \"None.\")))
                                                     \"none\"")
                                 (signalled-acceptor))
    (is (equal "none" (ask-text "/none")))
    (send-signals program "TERM")
    (is (eql 0 (program-exit program)))))

(define-server-test (a-server-serves-until-its-delay-is-over :needs :parking)
  (with-serving-program (program (page-form "/hello" "\"hello\"")
                                 (signalled-acceptor "" ":drain-delay 3600"))
    (await-printed program (format nil "Listening on 127.0.0.1:~D." (port-of *server*)))
    (send-signals program "TERM")
    (await-printed program "Stopping in 3600 seconds.")
    (is (equal "hello" (ask-text "/hello"))))
  (with-serving-program (program (signalled-acceptor "" ":drain-delay 1"))
    (send-signals program "TERM")
    (await-printed program "Stopping in 1 second.")
    (is (eql 0 (program-exit program)))))

(define-server-test (a-server-whose-time-to-drain-is-over-tells-what-it-cuts-short :needs :parking)
  (with-serving-program (program "(defvar *log* (here \"access\"))"
                                 (slow-page-forms)
                                 (page-form "/begun" "(progn (hunchentoot:send-headers)
                                                             (loop (sleep 1)))")
                                 (signalled-acceptor ":access-log-destination *log*"
                                                     ":drain-timeout 1/10"))
    (with-connections (clients 2)
      (send-request (second clients) "/begun")
      (read-head (second clients))
      (send-request (first clients) "/slow?cut")
      (await-entered 1)
      (send-signals program "TERM")
      (expect-cut-short program (first clients) 2))
    (let ((log (program-text program "access")))
      (is (search "\"GET /slow?cut HTTP/1.1\" 503 " log))
      (is (not (search "/begun HTTP/1.1\" 503 " log)) "It was answered already."))))

(define-server-test (a-signal-reopens-logs :needs :parking)
  (with-environment (("TZ" "XXX-9"))    ; nine hours east of UTC
    (with-serving-program (program "(defvar *log* (here \"access\"))"
                                   (page-form "/hello" "\"hello\"")
                                   (signalled-acceptor ":access-log-destination *log*
                                                        :message-log-format :json"))
      (is (equal "hello" (ask-text "/hello?first")))
      (eventually ("the first line") (search "first" (program-text program "access")))
      (rename-file (program-file program "access") "access.1")
      (send-signals program "HUP")
      (await-printed program "renewed")
      (is (equal "hello" (ask-text "/hello?second")))
      (eventually ("the second line") (search "second" (program-text program "access")))
      (is (not (search "second" (program-text program "access.1"))))
      (flet ((hour (name)
               (cl-ppcre:register-groups-bind ((#'parse-integer hour))
                   ("[-0-9]{10}.(\\d\\d):" (program-text program name))
                 hour)))
        (is (<= 9 (mod (- (hour "access") (hour "errors")) 24) 10) "Only JSON tells UTC."))
      (send-signals program "TERM")
      (is (eql 0 (program-exit program))))))

(define-server-test (a-standard-error-that-nobody-reads-holds-up-neither-requests-nor-the-exit
                     :needs :parking)
  (with-serving-program (program "(require :sb-posix)"
                                 "(sb-posix:dup2 (nth-value 1 (sb-posix:pipe)) 2)"
                                 (page-form "/hello" "\"hello\"")
                                 (signalled-acceptor ":access-log-destination *error-output*"))
    (with-connection (connection)
      ;; More than a pipe takes.
      (let ((headers `(("User-Agent" . ,(make-string 1000 :initial-element #\u)))))
        (is (loop repeat 300
                  always (equal "hello" (exchange-text connection "/hello" :headers headers))))))
    (send-signals program "TERM")
    (is (eql 0 (program-exit program :patience (* 3 *patience*))))))

(defun failed-start (&rest forms)
  "The code of the exit of a program of FORMS that does not start, and what it says, on one line."
  (apply #'call-with-lisp-program
         (lambda (program)
           (let ((code (program-exit program :patience (patience-to-load))))
             (values code (string-trim '(#\Newline) (program-text program "errors")))))
         forms))

(define-server-test (a-failed-start-exits-with-one-sentence :needs (:parking :tls-client))
  (flet ((check (reason &rest forms)
           (multiple-value-bind (code text) (apply #'failed-start forms)
             (is (eql 1 code))
             (is (uiop:string-prefix-p "The server cannot start: " text))
             (is (search reason text))
             (is (not (find #\Newline text)) "~A" text))))
    (serving () ()
      (check "something else listens there"
             (signalled-acceptor (format nil ":port ~D" (port-of *server*)))))
    (check "No such file or directory"
           (https-program "/nonexistent.pem" "/nonexistent.key"))
    (check "One line. Two: "
           "(hunchentoot-recycling-taskmaster:serve-until-signalled
             (make-instance 'hunchentoot-recycling-taskmaster:parallel-easy-acceptor
                            :port 0 :message-log-destination nil)
             :on-start (lambda (acceptor) (error \"One line.~%Two: ~A\" acceptor)))")
    (check "DRAIN-TIMEOUT must be a number" (signalled-acceptor "" ":drain-timeout :long"))
    (check "DRAIN-DELAY must be a number" (signalled-acceptor "" ":drain-delay nil"))))

;;; Clack, and certificates

(defun clack-program (&optional (keywords ""))
  "The form of a program that serves a Clack application with KEYWORDS, a string."
  (format nil "(defvar *release* (here \"release\"))
               (clack.handler.recycling:run-until-signalled
                (lambda (environment)
                  (when (string= \"/slow\" (getf environment :path-info))
                    (print :entered)
                    (finish-output)
                    (loop until (probe-file *release*) do (sleep 1/50)))
                  '(200 (:content-type \"text/plain\") (\"Hey!\")))
                ~A :port 0
                :on-start (lambda (server)
                            (format t \"~~&serving ~~D~~%\"
                                    (clack.handler.recycling:server-port server))
                            (finish-output)))"
          keywords))

(define-server-test (a-clack-application-is-drained-when-a-signal-ends-its-server :needs :parking)
  (with-serving-program (program (clack-program))
    (with-connection (client)
      (send-request client "/slow")
      (await-printed program (format nil "Listening on 127.0.0.1:~D." (port-of *server*)))
      (await-printed program "ENTERED")
      (send-signals program "TERM")
      (await-printed program "Stopping")
      (release program)
      (is (equal "Hey!" (response-text (read-response client))))
      (is (eql 0 (program-exit program)))))
  (multiple-value-bind (code text) (failed-start (clack-program ":port -1"))
    (is (eql 1 code))
    (is (uiop:string-prefix-p "The server cannot start: PORT must be an integer" text))))

(defun https-program (certificate key)
  "The form of a program that serves with the files CERTIFICATE and KEY."
  (serving-form (format nil ":port 0 :ssl-certificate-file ~S :ssl-privatekey-file ~S"
                        certificate key)
                "" "parallel-easy-ssl-acceptor"))

(define-server-test (a-signal-reloads-certificates-for-hunchentoot-and-clack
                     :needs (:parking :tls-client))
  (with-directory (directory)
    (flet ((serve-by (name)
             (dolist (type '("pem" "key"))
               (uiop:copy-file (file-in directory name type) (file-in directory "served" type)))))
      (issue directory "first")
      (issue directory "second")
      (dolist (form (list (https-program (file-in directory "served" "pem")
                                         (file-in directory "served" "key"))
                          (clack-program (format nil ":ssl-cert-file ~S :ssl-key-file ~S"
                                                 (file-in directory "served" "pem")
                                                 (file-in directory "served" "key")))))
        (serve-by "first")
        (with-serving-program (program form)
          (is (equal "first" (subject-told (talk-by-openssl))))
          (serve-by "second")
          (send-signals program "HUP")
          (await-printed program "were renewed")
          (is (equal "second" (subject-told (talk-by-openssl))))
          (delete-file (file-in directory "served" "pem"))
          (send-signals program "HUP")
          (await-printed program "could not be renewed: ")
          (is (equal "second" (subject-told (talk-by-openssl))))
          (send-signals program "TERM")
          (is (eql 0 (program-exit program))))))))

;;; Every Lisp

(define-server-test (a-program-on-any-lisp-ends-with-a-signal :needs :our-engine)
  (with-serving-program (program (page-form "/hello" "\"hello\"") (signalled-acceptor))
    (is (equal "hello" (ask-text "/hello")))
    (send-signals program "HUP")
    (await-printed program "were renewed")
    ;; Java leaves SIGINT ignored where a shell has started it in the background.
    (send-signals program "TERM")
    (is (eql 0 (program-exit program)))))

;;; An executable

(define-server-test (the-demo-becomes-an-executable-that-a-signal-ends :needs :parking)
  (uiop:run-program (list (project-file "scripts/lisp") (project-file "scripts/executable.lisp")))
  (with-environment (("PORT" "0") ("ADDRESS" "127.0.0.1"))
    (call-with-command
     (lambda (program)
       (await-printed program "Ctrl-C" :patience (patience-to-load))
       (let ((place "http://127.0.0.1:") (output (program-text program "output")))
         (with-connection (connection (parse-integer output :start (+ (search place output)
                                                                      (length place))
                                                            :junk-allowed t))
           (is (equal "Hey!" (exchange-text connection "/yo")))))
       (send-signals program "TERM")
       (is (eql 0 (program-exit program))))
     (constantly (list (project-file "build/demo") "--version"))))) ; no argument of the Lisp's
