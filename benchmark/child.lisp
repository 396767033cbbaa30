(in-package #:recycling-benchmark)

;;;; Child processes, and what /proc says of them.
;;;;
;;;; Each child leads a session of its own.  A Ctrl-C that is meant for us does not reach it; the
;;;; session tells all processes that it started; and Linux shares the processors out by sessions,
;;;; so a server and its clients stand to each other as they do where the server is a service.

(defparameter *patience-to-end* 3
  "Seconds that a child has between being asked to end and being killed.")

(defun wait-until (predicate seconds)
  "Calls PREDICATE every 20 milliseconds until it returns true, for at most SECONDS; returns what it
returned last."
  (loop with end = (+ (get-internal-real-time) (* seconds internal-time-units-per-second))
        for value = (funcall predicate)
        until (or value (> (get-internal-real-time) end))
        do (sleep 0.02)
        finally (return value)))

(defun strings (command)
  "COMMAND, a list of strings, numbers and pathnames, as a list of strings."
  (loop for word in command
        collect (if (pathnamep word) (uiop:native-namestring word) (princ-to-string word))))

(defun output-of (&rest command)
  "What COMMAND, words as STRINGS takes them, printed, errors too, without white space at its end;
an empty string where it cannot be run."
  (handler-case
      (string-right-trim '(#\Newline #\Space)
                         (uiop:run-program (strings command) :output :string :error-output :output
                                                             :ignore-error-status t))
    (error () "")))

(defun run-or-be-unavailable (what &rest command)
  "Runs COMMAND, words as STRINGS takes them.  UNAVAILABLE, with what it printed, if it fails; WHAT
names it then."
  (multiple-value-bind (output errors status)
      (uiop:run-program (strings command) :output :string :error-output :output
                                          :ignore-error-status t)
    (declare (ignore errors))
    (unless (zerop status)
      (unavailable "~a: ~a" what (string-trim '(#\Newline) output)))))

(defstruct child
  "A process that was launched.  INFO is what UIOP knows of it, SESSION the number of the session
that it leads."
  info session)

(defun first-integer-in (file)
  "The integer that FILE begins with, or NIL."
  (let ((line (ignore-errors (uiop:read-file-line file))))
    (and line (parse-integer line :junk-allowed t))))

(defun launch (command &key (output nil) (input nil))
  "Launches COMMAND, words as STRINGS takes them, with as many descriptors as the system allows, and
returns the child.  OUTPUT, where errors go too, and INPUT are a file or :STREAM, or NIL for none."
  (uiop:with-temporary-file (:pathname note)
    (let ((info (uiop:launch-program
                 (append (list "setsid" "--wait" "sh" "-c"
                               "echo $$ >\"$0\"; ulimit -n \"$(ulimit -H -n)\"; exec \"$@\""
                               (uiop:native-namestring note))
                         (strings command))
                 :input input :output output :error-output :output
                 :if-output-exists :supersede)))
      (make-child :info info
                  :session (wait-until (lambda () (first-integer-in note)) 10)))))

(defun alive-p (child)
  "True while CHILD has not ended."
  (uiop:process-alive-p (child-info child)))

(defun signal-child (child signal)
  "Sends SIGNAL, a name such as \"TERM\", to all processes that CHILD started, and to itself."
  (output-of "sh" "-c" "kill -s \"$0\" -- \"-$1\"" signal (child-session child)))

(defun end-child (child &optional (signal "TERM"))
  "Ends CHILD and all that it started: by SIGNAL first, by force after *PATIENCE-TO-END*."
  (signal-child child signal)
  (wait-until (lambda () (not (alive-p child))) *patience-to-end*)
  ;; CHILD may be gone while others remain.
  (signal-child child "KILL")
  (uiop:wait-process (child-info child))
  (uiop:close-streams (child-info child)))

;;; /proc

(defun stat-fields (pid)
  "The fields of the stat file of process PID from the third on, strings, or NIL when it is gone.
The second, the name, may hold spaces."
  (let ((line (ignore-errors (uiop:read-file-line (format nil "/proc/~a/stat" pid)))))
    (and line
         (uiop:split-string (subseq line (+ 2 (position #\) line :from-end t)))))))

(defun stat-field (number fields)
  "The integer that proc(5) lists under NUMBER, of FIELDS as STAT-FIELDS returns them."
  (parse-integer (nth (- number 3) fields)))

(defun processes-of (child)
  "The STAT-FIELDS of all processes of the session of CHILD."
  (loop for folder in (uiop:subdirectories "/proc/")
        for name = (first (last (pathname-directory folder)))
        for fields = (and (every #'digit-char-p name) (stat-fields name))
        when (and fields (= (stat-field 6 fields) (child-session child)))
          collect fields))

(defun system-constant (name default)
  "The integer that getconf knows as NAME, or DEFAULT."
  (or (parse-integer (output-of "getconf" name) :junk-allowed t) default))

(defparameter *ticks-per-second* (system-constant "CLK_TCK" 100)
  "The unit of processor time in /proc.")

(defun processor-seconds (child)
  "The processor time that the processes of CHILD have used since they began."
  (loop for fields in (processes-of child)
        sum (/ (+ (stat-field 14 fields) (stat-field 15 fields)) *ticks-per-second*)))

(defparameter *page-octets* (system-constant "PAGESIZE" 4096)
  "The unit of memory in /proc.")

(defun resident-megabytes (child)
  "The memory that the processes of CHILD have now."
  (loop for fields in (processes-of child)
        sum (/ (* *page-octets* (stat-field 24 fields)) 1000000)))
