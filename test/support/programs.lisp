(in-package #:hunchentoot-recycling-taskmaster-test)

;;; Programs in processes of their own, which signals end, as scripts/lisp runs them: without a
;;; terminal, and with nothing to read.

(defstruct (program (:constructor make-program (directory)))
  "A program, and the DIRECTORY of its file and of what it prints."
  directory process)

(defun program-file (program name)
  (merge-pathnames name (program-directory program)))

(defun program-text (program name)
  "What the file NAME in the directory of PROGRAM has by now: \"output\" or \"errors\", say."
  (let ((file (program-file program name)))
    (if (probe-file file)
        (uiop:read-file-string file :external-format :utf-8)
        "")))

(defun printed-p (program text)
  "True when PROGRAM has printed TEXT to one of its streams."
  (or (search text (program-text program "errors"))
      (search text (program-text program "output")))) ; ABCL has one stream

(defun await-printed (program text &key (patience *patience*))
  (eventually ((format nil "a program to print ~S" text) :patience patience)
    (printed-p program text)))

(defun program-number (program)
  "The system's number of the process of PROGRAM, a string."
  (string-trim '(#\Newline) (program-text program "number")))

(defun send-signals (program &rest signals)
  "Sends SIGNALS, such as \"TERM\", to PROGRAM, one right after the other."
  (uiop:run-program (list "sh" "-c" (format nil "~{kill -~A ~A;~}"
                                            (loop for signal in signals
                                                  collect signal
                                                  collect (program-number program))))
                    :ignore-error-status t :error-output nil))

(defun program-runs-p (program)
  (uiop:process-alive-p (program-process program)))

(defun patience-to-load ()
  "For how many seconds a program may load the library."
  (* (if (slow-lisp-p) 30 6) *patience*))

(defun program-exit (program &key (patience *patience*))
  "The code with which PROGRAM exits, which it does within PATIENCE seconds."
  (eventually ("a program to exit" :patience patience) (not (program-runs-p program)))
  (uiop:wait-process (program-process program)))

(defun run-in (directory command &rest keys)
  "Starts COMMAND, a list of strings, in DIRECTORY, to which it writes; returns its process.  KEYS
are for UIOP:LAUNCH-PROGRAM."
  (apply #'uiop:launch-program
         (list* "sh" "-c"
                "cd \"$1\"; shift; echo $$ >number; exec \"$@\" </dev/null >output 2>errors"
                "sh" (uiop:native-namestring directory) command)
         keys))

(defun call-with-command (function make-command)
  "Calls FUNCTION with a program whose command, a list of strings, MAKE-COMMAND returns for its
directory, and ends the program afterwards."
  (with-directory (directory)
    (let ((program (make-program directory)))
      (setf (program-process program) (run-in directory (funcall make-command directory)))
      (unwind-protect (funcall function program)
        (when (program-runs-p program)
          (send-signals program "KILL"))
        (uiop:wait-process (program-process program))))))

(defun project-file (name)
  (uiop:native-namestring (merge-pathnames name (source-root))))

(defvar *core* nil
  "The file of a core that has the library in it, where the Lisp can save one; NIL before that.")

(defun core ()
  "The file *CORE*, saved when a test first wants it; NIL on Lisps other than SBCL.  A program that
starts from it is there in a fifth of the time."
  (or *core*
      (when (lisp-runtime)
        (let ((file (uiop:native-namestring (merge-pathnames "core" (fresh-directory)))))
          (with-environment (("CORE" file))
            (uiop:run-program (list (project-file "scripts/lisp")
                                    (project-file "scripts/save-core.lisp"))))
          (setf *core* file)))))

(defun delete-core ()
  "Deletes the file *CORE*, if there is one."
  (when *core*
    (delete-tree (uiop:pathname-directory-pathname (shiftf *core* nil)))))

(defvar *runtime-options* '()
  "Further options of the runtime of a Lisp that starts from a core, strings.")

(defun command-for (directory forms)
  "The command of a program in DIRECTORY that has the library in it, and consists of FORMS, strings,
in which HERE makes the name of a file beside it."
  (let ((file (uiop:native-namestring
               (write-file directory "program.lisp"
                           (unless (core)
                             "(hunchentoot-recycling-taskmaster-scripts:load-own
                               \"clack.handler.recycling\")
                              (hunchentoot-recycling-taskmaster-scripts:load-own
                               \"hunchentoot-recycling-taskmaster\")
                             ")
                           "(in-package #:common-lisp-user)
                            (defun here (name)
                              (merge-pathnames name (uiop:pathname-directory-pathname
                                                     *load-truename*)))
                           "
                           forms))))
    (if (core)
        `(,(lisp-runtime) "--core" ,(core) "--noinform" "--disable-ldb" "--lose-on-corruption"
          ,@*runtime-options* "--end-runtime-options" "--no-sysinit" "--no-userinit"
          "--non-interactive" "--load" ,file)
        (list (project-file "scripts/lisp") file))))

(defun call-with-lisp-program (function &rest forms)
  "Calls FUNCTION with a program as COMMAND-FOR makes it of FORMS."
  (call-with-command function (lambda (directory) (command-for directory forms))))

(defmacro with-program ((program &rest forms) &body body)
  "Evaluates BODY with PROGRAM bound to a program of FORMS, strings, that was just started."
  `(call-with-lisp-program (lambda (,program) ,@body) ,@forms))

;;; Ports

(defvar *ports-random-state* (make-random-state t)
  "Not that of the tests: several processes may run them at the same time.")

(defvar *free-ports* '()
  "The ports that FREE-PORT has returned.")

(defun free-port ()
  "A port of this machine for another program, which was free just now, below those that the system
chooses by itself, so that it gives it to nobody meanwhile."
  (let ((end (or (ignore-errors
                  (parse-integer (uiop:read-file-line "/proc/sys/net/ipv4/ip_local_port_range")
                                 :junk-allowed t))
                 32768)))
    (loop repeat 1000
          do (let ((port (+ 10000 (random (max 1000 (- end 10000)) *ports-random-state*))))
               (when (and (not (member port *free-ports*))
                          (ignore-errors
                           (usocket:socket-close
                            (usocket:socket-listen "127.0.0.1" port :reuse-address t))
                           t))
                 (push port *free-ports*)
                 (return port)))
          finally (error "No port is free."))))

(defun listening-p (port)
  (ignore-errors
   (usocket:socket-close (usocket:socket-connect "127.0.0.1" port))
   t))

;;; Programs that serve.  They print "serving PORT".

(defmethod port-of ((program program))
  (let ((text (program-text program "output")) (words "serving "))
    (parse-integer text :start (+ (search words text) (length words)) :junk-allowed t)))

(defun await-serving (program)
  (eventually ("a program to serve" :patience (patience-to-load))
    (or (search "serving " (program-text program "output"))
        (not (program-runs-p program))))
  (is-true (program-runs-p program) "~A" (program-text program "errors")))

(defmacro with-serving-program ((program &rest forms) &body body)
  "Evaluates BODY with PROGRAM and *SERVER* bound to a program of FORMS, strings, that serves."
  `(with-program (,program ,@forms)
     (let ((*server* ,program))
       (await-serving ,program)
       ,@body)))

(defparameter *tell-that-it-serves*
  ":on-start (lambda (acceptor)
               (format t \"~&serving ~D~%\" (hunchentoot:acceptor-port acceptor))
               (finish-output))")

(defun serving-form (initargs &optional (keywords "") (class "parallel-easy-acceptor"))
  "The form of a program that serves with INITARGS for an acceptor of CLASS and with KEYWORDS for
SERVE-UNTIL-SIGNALLED, strings."
  (format nil "(hunchentoot-recycling-taskmaster:serve-until-signalled
                (lambda ()
                  (make-instance 'hunchentoot-recycling-taskmaster:~A
                                 ~A :access-log-destination nil))
                ~A ~A)"
          class initargs *tell-that-it-serves* keywords))

(defun signalled-acceptor (&optional (initargs "") (keywords ""))
  "The SERVING-FORM for INITARGS and KEYWORDS, on a port that the system chooses."
  (serving-form (format nil "~A :port 0 :address \"127.0.0.1\"" initargs) keywords))

;;; What they serve

(defun page-form (target form)
  "The form of a program that has TARGET answered with the value of FORM, a string."
  (format nil "(push (hunchentoot:create-prefix-dispatcher ~S (lambda () ~A))
                     hunchentoot:*dispatch-table*)~%"
          target form))

(defun slow-page-forms ()
  "Forms of a program whose /slow returns \"slow\" when there is a file \"release\" beside it, and
whose /entered tells how many requests for /slow have come."
  (format nil "(defvar *lock* (bt:make-lock))
               (defvar *entered* 0)
               (defvar *release* (here \"release\"))
               ~A~A"
          (page-form "/slow" "(bt:with-lock-held (*lock*) (incf *entered*))
                              (loop until (probe-file *release*) do (sleep 1/50))
                              \"slow\"")
          (page-form "/entered" "(bt:with-lock-held (*lock*) (princ-to-string *entered*))")))

(defun await-entered (count)
  (eventually ("the handlers to be entered")
    (= count (parse-integer (ask-text "/entered")))))

(defun release (program)
  (write-file (program-directory program) "release"))

(defun program-named (name)
  "The file of the program NAME, a string; NIL where there is none."
  (loop for folder in (append (uiop:split-string (or (uiop:getenv "PATH") "") :separator ":")
                              '("/usr/sbin" "/usr/local/sbin"))
        for file = (and (uiop:absolute-pathname-p folder)
                        (probe-file (merge-pathnames name (uiop:ensure-directory-pathname folder))))
        when file return (uiop:native-namestring file)))

(defmacro where-program ((file name) &body body)
  "Evaluates BODY with FILE bound to the file of the program NAME, where there is one."
  `(let ((,file (program-named ,name)))
     (if ,file
         (progn ,@body)
         (skip "There is no ~A here." ,name))))
