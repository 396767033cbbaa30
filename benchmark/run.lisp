(in-package #:recycling-benchmark)

;;;; A run: rounds of all servers under all workloads, written to a result.
;;;;
;;;; A result is a folder.  rounds.lisp has a form for each round, (WORKLOAD SERVER . FIGURES),
;;;; written as soon as it is over; facts.lisp has a property list, notes.lisp a list of what went
;;;; wrong.  The report is made from these files.

(defvar *result* nil
  "The folder of the result.")

(defvar *notes* '()
  "What could not be had or went wrong, strings, the latest first.")

(defun note (control &rest arguments)
  "Tells of what went wrong: now, and in the report."
  (let ((text (apply #'format nil control arguments)))
    (format t "~&  ~a~%" text)
    (pushnew text *notes* :test #'string=)))

(defun result-file (name)
  "The file NAME of the result."
  (let ((file (merge-pathnames name *result*)))
    (ensure-directories-exist file)
    file))

(defun write-form (form file &rest options)
  "Writes FORM to FILE, opened with OPTIONS."
  (with-open-stream (stream (apply #'open file :direction :output :if-does-not-exist :create
                                   options))
    (with-standard-io-syntax
      (let ((*print-readably* nil))     ; which writes strings of some types as arrays
        (prin1 form stream)
        (terpri stream)))))

(defun fact (&rest command)
  "The first line that COMMAND prints."
  (first (uiop:split-string (apply #'output-of command) :separator '(#\Newline))))

(defun facts (servers seconds)
  "What a reader has to know of a run of SERVERS, with rounds of SECONDS: a property list."
  (list :date (subseq (fact "date" "-u" "+%Y-%m-%d %H:%M") 0 10)
        :commit (fact "git" "-C" *root* "rev-parse" "--short" "HEAD")
        :changes (plusp (length (output-of "git" "-C" *root* "status" "--porcelain")))
        :processors (processors)
        :processor (fact "sh" "-c" "sed -n 's/^model name.*: //p' /proc/cpuinfo")
        :kernel (fact "uname" "-r")
        :lisp (format nil "~a ~a" (lisp-implementation-type) (lisp-implementation-version))
        :wrk (fact (find-program "wrk") "-v")
        :load (fact "cut" "-d" " " "-f1-3" "/proc/loadavg")
        :seconds seconds
        :servers (loop for server in servers
                       collect (list (server-name server)
                                     (first (uiop:split-string (funcall (server-version server))
                                                               :separator '(#\Newline)))))))

;;; Servers that run.  Each runs at most twice, with TLS and without.

(defvar *running* '()
  "The servers that run.")

(defvar *given-up* '()
  "Servers that did not start, each with what :TLS was for it.")

(defun start-or-give-up (server tls)
  "Starts SERVER, over TLS if TLS, and returns it RUNNING; UNAVAILABLE, and given up, if it does not
start."
  (let ((running nil)
        (log (format nil "logs/~a~:[~;-tls~].log" (server-name server) tls)))
    (unwind-protect (setf running (start server :tls tls :log (result-file log)))
      (unless running (push (list server tls) *given-up*)))
    (push running *running*)
    running))

(defun running-for (server workload)
  "SERVER, RUNNING for WORKLOAD; started if need be."
  (let* ((tls (tls-workload-p workload))
         (running (find-if (lambda (running)
                             (and (eq server (running-server running))
                                  (eq tls (running-tls-p running))))
                           *running*)))
    (when (and running (not (alive-p (running-child running))))
      (note "~a had ended before ~a." (server-name server) (workload-name workload))
      (stop running)
      (setf *running* (remove running *running*)
            running nil))
    (or running (start-or-give-up server tls))))

(defun stop-all ()
  "Stops all servers that run."
  (loop while *running* do (stop (pop *running*))))

(defmacro noting-errors ((control &rest arguments) &body forms)
  "The value of FORMS; or NIL, and a note, where there is an error.  CONTROL and ARGUMENTS
say to whom that happened."
  `(handler-case (progn ,@forms)
     (error (condition)
       (note "~@?: ~a." ,control ,@arguments condition)
       nil)))

(defun prepared (servers)
  "Those of SERVERS that can be had."
  (loop for server in servers
        when (noting-errors ("~a is left out" (server-name server))
               (funcall (server-prepare server))
               t)
          collect server))

(defun participants (servers workload)
  "Those of SERVERS that serve WORKLOAD, RUNNING."
  (loop for server in servers
        for running = (and (serves-p server workload)
                           (not (member (list server (tls-workload-p workload)) *given-up*
                                        :test #'equal))
                           (noting-errors ("~a is left out of ~a" (server-name server)
                                                                       (workload-name workload))
                             (let ((running (running-for server workload)))
                               (check-answer running workload)
                               running)))
        when running collect running))

(defun rotated (list count)
  "LIST, begun with the element COUNT: nobody always has the same turn."
  (let ((start (mod count (max 1 (length list)))))
    (append (nthcdr start list) (subseq list 0 start))))

(defun run-round (running workload seconds)
  "Measures and records one round."
  (noting-errors ("~a lost a round of ~a" (server-name (running-server running))
                                               (workload-name workload))
    (write-form (list* (workload-name workload) (server-name (running-server running))
                       (measure running workload seconds))
                (result-file "rounds.lisp") :if-exists :append)))

(defun run-workload (servers workload rounds seconds)
  "Measures SERVERS under WORKLOAD: at most ROUNDS of SECONDS for each, in turns."
  (let ((participants (participants servers workload))
        (rounds (min rounds (or (workload-rounds workload) rounds))))
    (format t "~&~a:~{ ~a~}~%" (workload-name workload)
            (mapcar (lambda (running) (server-name (running-server running))) participants))
    ;; What is compiled, or made, on first requests is there then.
    (unless (workload-lasting workload)
      (dolist (running participants)
        (noting-errors ("~a" (server-name (running-server running)))
          (load-by-wrk running workload 1))))
    (dotimes (count rounds)
      (dolist (running (rotated participants count))
        (when (alive-p (running-child running))
          (run-round running workload seconds))))))

(defun minutes (servers workloads rounds seconds)
  "How long a run takes, about."
  (loop for workload in workloads
        for count = (count-if (lambda (server) (serves-p server workload)) servers)
        for all-rounds = (min rounds (or (workload-rounds workload) rounds))
        for one = (+ 0.3 (if (workload-by-rate-p workload) seconds 6)
                         (if (or (workload-lasting workload) (plusp (workload-idle workload))) 2 0))
        sum (* count (+ 1.5 (* all-rounds one))) into all
        finally (return (ceiling (+ all (* 12 (length servers))) 60))))

(defun workload-by-rate-p (workload)
  "True if servers are compared by their rates under WORKLOAD."
  (eq (workload-by workload) :rate))

(defun run (servers workloads rounds seconds)
  "Measures SERVERS under WORKLOADS, with ROUNDS of SECONDS, into *RESULT*."
  (let ((*running* '())
        (*given-up* '())
        (*notes* '())
        (*sockets* nil)
        (postgres nil))
    (data)
    (unwind-protect
         (let ((servers (prepared servers)))
           (when (find :database workloads :key #'workload-needs :test #'member)
             (noting-errors ("Workloads with a database are left out")
               (setf (values postgres *sockets*) (start-postgres))))
           (format t "~&This takes about ~d minutes.~%" (minutes servers workloads rounds seconds))
           (write-form (facts servers seconds) (result-file "facts.lisp") :if-exists :supersede)
           (dolist (workload workloads)
             (run-workload servers workload rounds seconds)))
      (stop-all)
      (when postgres (stop-postgres postgres))
      (write-form (reverse *notes*) (result-file "notes.lisp") :if-exists :supersede))))
