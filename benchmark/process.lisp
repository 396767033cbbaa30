(in-package #:hunchentoot-recycling-taskmaster-benchmark)

;;;; Child processes.  Each leads a session of its own, for three reasons: a Ctrl-C
;;;; meant for us doesn't reach it; the end of the session's processes is the end of
;;;; all that it started; and Linux shares the processors out by sessions, so that
;;;; server and load stand to each other as they do where the server is a service.
;;;; (With both in one session Go, for one, took a third less CPU per request.)

(defparameter *patience-to-end* 2
  "Seconds that a child has between being asked to end and being killed.")

(defun wait-until (predicate seconds &optional (interval 0.02))
  "Call PREDICATE every INTERVAL seconds until it returns true, for at most
SECONDS; return what it returned last."
  (loop with deadline = (+ (get-internal-real-time)
                           (* seconds internal-time-units-per-second))
        for value = (funcall predicate)
        until (or value (> (get-internal-real-time) deadline))
        do (sleep interval)
        finally (return value)))

(defun native-words (command)
  "COMMAND, a list of strings, numbers and pathnames, as a list of strings."
  (loop for word in command
        collect (if (pathnamep word) (uiop:native-namestring word) (princ-to-string word))))

(defun with-all-descriptors (command)
  "COMMAND, a list of words, wrapped so that it may open as many files as the
system allows this user: servers with thousands of connections need them."
  (list* "sh" "-c" "ulimit -n \"$(ulimit -H -n)\" && exec \"$@\"" "sh" command))

(defstruct (child-process (:conc-name process-))
  "A child that runs, as UIOP knows it: INFO.  SESSION is the number of the session that
it leads, or NIL if it ended before that was known."
  info session)

(defun launch (command &key log (input nil))
  "Start COMMAND, a list of strings, numbers and pathnames, and return its process;
its output and errors go to the file LOG.  With INPUT :stream our end of its input
can be closed."
  (let ((info (uiop:launch-program
               ;; It waits for the leader of the session, and ends as that ends.
               (list* "setsid" "--wait" (with-all-descriptors (native-words command)))
               :input input :output log :error-output :output :if-output-exists :supersede)))
    (make-child-process :info info :session (wait-for-session info))))

(defun running-p (process)
  "Has PROCESS not ended yet?"
  (uiop:process-alive-p (process-info process)))

(defun signal-session (process signal)
  "Send SIGNAL, a name such as \"TERM\", to all processes of the session of PROCESS."
  (when (process-session process)
    (uiop:run-program (native-words (list "sh" "-c" "kill -s \"$0\" -- \"-$1\"" signal
                                          (process-session process)))
                      :ignore-error-status t)))

(defun end-process (process)
  "End the session of PROCESS: politely first, by force after *PATIENCE-TO-END*."
  (signal-session process "TERM")
  (wait-until (lambda () (not (running-p process))) *patience-to-end*)
  ;; The leader may be gone while others remain.
  (signal-session process "KILL")
  (uiop:wait-process (process-info process)))

(defmacro with-process ((process command &rest options) &body body)
  "Evaluate BODY with PROCESS bound to COMMAND launched with OPTIONS; it is ended
however BODY is left."
  `(let ((,process (launch ,command ,@options)))
     (unwind-protect (progn ,@body)
       (end-process ,process))))

(defun output-of (command)
  "What COMMAND, like that of LAUNCH, printed, errors too; \"\" when it can't be run."
  (handler-case
      (uiop:run-program (native-words command) :output :string :error-output :output
                                :ignore-error-status t)
    (error () "")))

;;;; What Linux tells of processes in /proc

(defun file-line (path &optional (prefix ""))
  "What follows PREFIX in the first line of the file PATH that begins with it; NIL
if there is none.  Leading blanks and colons are left out."
  (handler-case
      (loop for line in (uiop:read-file-lines path)
            when (uiop:string-prefix-p prefix line)
              return (string-left-trim '(#\Space #\Tab #\:) (subseq line (length prefix))))
    (error () nil)))

(defun system-constant (name)
  "The integer that getconf knows as NAME."
  (parse-integer (output-of (list "getconf" name)) :junk-allowed t))

(defparameter *ticks-per-second* (or (system-constant "CLK_TCK") 100)
  "The unit of processor times in /proc.")

(defparameter *page-bytes* (or (system-constant "PAGESIZE") 4096)
  "The unit of memory in /proc.")

(defun stat (pid)
  "The fields of the stat file of the process PID from the third on, as strings; NIL
when it is gone.  The second, the name, may hold spaces."
  (handler-case
      (with-open-file (stream (format nil "/proc/~a/stat" pid))
        (let ((line (read-line stream)))
          (split (subseq line (1+ (position #\) line :from-end t))))))
    ((or file-error stream-error) () nil)))

(defun stat-field (number stat)
  "The integer that proc(5) lists under NUMBER, which counts from 1, in STAT."
  (parse-integer (nth (- number 3) stat)))

(defun parent (stat)
  "The parent of the process of STAT."
  (stat-field 4 stat))

(defun group (stat)
  "The process group of the process of STAT."
  (stat-field 5 stat))

(defun session (stat)
  "The session of the process of STAT."
  (stat-field 6 stat))

(defun all-stats ()
  "The STAT of each process that runs."
  (loop for directory in (uiop:directory* #p"/proc/*/")
        for name = (first (last (pathname-directory directory)))
        for stat = (and (every #'digit-char-p name) (stat name))
        when stat collect stat))

(defun wait-for-session (info)
  "The session that the child of INFO, a setsid, has opened; NIL if INFO ends first."
  (flet ((opened ()
           (loop with pid = (uiop:process-info-pid info)
                 for stat in (all-stats)
                 ;; Of the children of setsid only the leader of a session has both alike.
                 when (and (= pid (parent stat)) (= (group stat) (session stat)))
                   return (session stat))))
    (loop while (uiop:process-alive-p info)
          thereis (wait-until #'opened 0.1 0.002))))

(defstruct usage
  "What the processes of a session have used: processor SECONDS since each began, user
and system; THREADS and resident BYTES now."
  (seconds 0) (threads 0) (bytes 0))

(defun add-usage (usage stat)
  "Add to USAGE what STAT says of one process."
  (incf (usage-seconds usage) (/ (+ (stat-field 14 stat) (stat-field 15 stat))
                                 *ticks-per-second*))
  (incf (usage-threads usage) (stat-field 20 stat))
  (incf (usage-bytes usage) (* (stat-field 24 stat) *page-bytes*)))

(defun session-usage (process)
  "The USAGE of all processes in the session of PROCESS."
  (let ((usage (make-usage)))
    (dolist (stat (all-stats) usage)
      (when (eql (session stat) (process-session process))
        (add-usage usage stat)))))
