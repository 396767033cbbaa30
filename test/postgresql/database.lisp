(in-package #:hunchentoot-recycling-taskmaster-test)

;;; A PostgreSQL of the tests' own, in a temporary folder, with a Unix socket there and no port.

(def-suite postgresql :in all
  :description "Channels over several processes, with a real PostgreSQL.")

(defun postgresql-program (name)
  "The file of the program NAME of the newest PostgreSQL, or NIL."
  (let ((files (directory (format nil "/usr/lib/postgresql/*/bin/~A" name))))
    (if files
        (uiop:native-namestring (first (last (sort files #'string< :key #'namestring))))
        (program-named name))))

(defun as-postgres (&rest command)
  "COMMAND, strings, run by another user than root, whom PostgreSQL refuses."
  (if (string= "0" (uiop:run-program '("id" "-u") :output '(:string :stripped t)))
      (list* "runuser" "-u" "postgres" "--" command)
      command))

(defstruct (database (:constructor make-database (folder)))
  "A PostgreSQL whose data and socket are in FOLDER.  Its user and its database are called chat.
OPTIONS are arguments of postgres, a string."
  folder (options ""))

(defun database-folder-name (database &optional (name ""))
  (uiop:native-namestring (merge-pathnames name (database-folder database))))

(defun run-for-database (database &rest command)
  "Runs COMMAND in the folder of DATABASE."
  (uiop:run-program (apply #'as-postgres command) :directory (database-folder database)))

(defun control-database (database &rest arguments)
  "Has pg_ctl do what ARGUMENTS say, such as \"start\"."
  (apply #'run-for-database database (postgresql-program "pg_ctl")
         "-D" (database-folder-name database "data/") "-l" (database-folder-name database "log")
         "-o" (format nil "-k '~A' -c listen_addresses='' -c fsync=off ~A"
                      (database-folder-name database) (database-options database))
         "-w" arguments))

(defun start-database (database)
  (control-database database "start"))

(defun stop-database (database)
  "Stops DATABASE, and ends all its connections."
  (control-database database "stop" "-m" "fast"))

(defun psql-command (database &rest arguments)
  "What starts a psql for DATABASE with ARGUMENTS, strings."
  (list* (postgresql-program "psql") "-h" (database-folder-name database) "-U" "chat" "-d" "chat"
         "-X" "-q" "-t" "-A" "-v" "ON_ERROR_STOP=1" arguments))

(defun execute-in-database (database text)
  "Has psql execute TEXT; returns the output."
  (uiop:run-program (psql-command database "-c" text) :output '(:string :stripped t)))

;;; A database that hangs

(defun waiting-connections (database)
  "How many connections of DATABASE wait for a lock."
  (parse-integer (execute-in-database database "select count(*) from pg_stat_activity
                                                where wait_event_type = 'Lock'")))

(defun await-waiting-connections (database count)
  (eventually ((format nil "~D connections to wait for a lock" count))
    (<= count (waiting-connections database))))

(defun connection-processes (database)
  "The numbers of the processes of PostgreSQL that serve brokers of DATABASE, with blanks between."
  (execute-in-database database "select string_agg(pid::text, ' ') from pg_stat_activity
                                 where application_name = 'hunchentoot-recycling-taskmaster'"))

(defun open-transactions (database)
  "How many connections of brokers to DATABASE have a transaction open."
  (parse-integer (execute-in-database database "select count(*) from pg_stat_activity
                                                where xact_start is not null and application_name
                                                      = 'hunchentoot-recycling-taskmaster'")))

(defun start-session (database)
  "Starts a psql that executes what is written to it."
  (uiop:launch-program (psql-command database) :input :stream :output :stream))

(defun end-session (session)
  "Ends SESSION, of START-SESSION, and with it its transaction."
  (close (uiop:process-info-input session))
  (uiop:wait-process session)
  (close (uiop:process-info-output session)))

(defun lock-table (session table)
  "Has SESSION, of START-SESSION, lock TABLE until it ends."
  (format (uiop:process-info-input session)
          "begin; lock table ~A in access exclusive mode; select 'locked';~%" table)
  (finish-output (uiop:process-info-input session))
  (assert (string= "locked" (read-line (uiop:process-info-output session)))))

(defmacro with-table-locked ((database table) &body body)
  "Evaluates BODY while no other connection to DATABASE can read or write TABLE, a string."
  (let ((session (gensym "SESSION")))
    `(let ((,session (start-session ,database)))
       (unwind-protect (progn (lock-table ,session ,table)
                              ,@body)
         (end-session ,session)))))

(defun give-to-postgres (folder)
  "Makes FOLDER and what is in it the user's who runs PostgreSQL."
  (when (rest (as-postgres "true"))
    (uiop:run-program (list "chown" "-R" "postgres" (uiop:native-namestring folder)))))

(defun copy-folder (from to)
  (uiop:run-program (list "cp" "-R" (uiop:native-namestring from) (uiop:native-namestring to))))

(defun template-folder (initdb)
  "Where the data of a new database are kept, which the program INITDB made: that takes seconds."
  (merge-pathnames (format nil "build/postgresql~A/" (substitute #\- #\/ initdb)) (source-root)))

(defun make-template (initdb template)
  "Makes the data of a new database by INITDB in the folder TEMPLATE."
  (with-directory (folder)
    (let ((database (make-database folder)))
      (give-to-postgres folder)
      (run-for-database database initdb "-D" "data" "-U" "chat" "--auth=trust" "-E" "UTF8"
                        "--locale=C" "--no-sync")
      (start-database database)
      (unwind-protect (run-for-database database (postgresql-program "createdb")
                                        "-h" (database-folder-name database) "-U" "chat" "chat")
        (stop-database database))
      (ensure-directories-exist template)
      (copy-folder (merge-pathnames "data" folder) template))))

(defun call-with-database (function)
  "Calls FUNCTION with a DATABASE that was started, or skips the test."
  (let ((initdb (postgresql-program "initdb")))
    (if initdb
        (let ((template (template-folder initdb)))
          (unless (probe-file (merge-pathnames "data/PG_VERSION" template))
            (make-template initdb template))
          (with-directory (folder)
            (let ((database (make-database folder)))
              (copy-folder (merge-pathnames "data" template) folder)
              (give-to-postgres folder)
              (start-database database)
              (unwind-protect (funcall function database)
                (ignore-errors (control-database database "stop" "-m" "immediate"))))))
        (skip "PostgreSQL is not installed."))))

(defmacro with-database ((database) &body body)
  "Evaluates BODY with DATABASE bound to a DATABASE of this test's own.  Brokers wait for its
answers for long, so that a slow machine makes none of them think that it is away."
  `(with-globals ((postgresql::*answer-seconds* (* 10 *patience*)))
     (call-with-database (lambda (,database) ,@body))))

;;; Brokers

(defun database-broker (database &rest initargs)
  "A broker on DATABASE with INITARGS, that reports nothing."
  (apply #'make-instance 'postgresql:postgresql-broker
         (append initargs
                 (list :database "chat" :user "chat" :host (database-folder-name database)
                       :report (constantly nil)))))

(defun close-brokers (brokers)
  (dolist (broker brokers)
    (recycling:close-broker broker :timeout 1)))

(defmacro with-brokers ((brokers form) &body body)
  "Evaluates BODY with BROKERS bound to the value of FORM, a list of brokers, while they are open."
  `(let ((,brokers ,form))
     (unwind-protect
          (progn
            (dolist (broker ,brokers)
              (recycling:open-broker broker :timeout *patience*))
            ,@body)
       (close-brokers ,brokers))))

(defun broker-figure (broker key)
  (getf (recycling:broker-stats broker) key))

(defun await-figure (broker key value)
  "Waits until the statistic KEY of BROKER is VALUE."
  (eventually ((format nil "~(~A~) to be ~A" key value))
    (equal value (broker-figure broker key))))

(defun await-figures (broker &rest keys-and-values)
  "Waits until the statistics of BROKER are KEYS-AND-VALUES, a plist."
  (loop for (key value) on keys-and-values by #'cddr
        do (await-figure broker key value)))

(defun await-connected (broker)
  (eventually ("a broker to be connected")
    (broker-figure broker :connected-p)))

(defmacro with-deliveries ((deliveries) &body body)
  "Evaluates BODY with DELIVERIES bound to a function that returns what was delivered to a broker: a
list of lists of the name and the data."
  (let ((recorder (gensym "RECORDER")))
    `(let ((,recorder (make-recorder)))
       (flet ((,deliveries (broker)
                (loop for (receiver . delivery) in (recorded ,recorder)
                      when (eq receiver broker)
                        collect delivery)))
         (with-function (recycling:deliver-message (original broker name octets)
                          (record ,recorder
                                  (list broker name
                                        (getf (recycling::message-fields octets) :data)))
                          (funcall original broker name octets))
           ,@body)))))

(defmacro with-broker-held ((gate broker) &body body)
  "Evaluates BODY with GATE bound to a gate.  Until it is open, BROKER knows where to begin, but
reads no message."
  `(let ((,gate (make-gate)))
     (with-function (postgresql::catch-up (original opening connection late-p)
                      (when (eq ,broker (postgresql::opening-broker opening))
                        (await ,gate (* 10 *patience*)))
                      (funcall original opening connection late-p))
       ,@body)))

(defun publish-numbers (broker start end &key (name "chat"))
  "Publishes the numbers from START below END by BROKER.  True if it took them all."
  (loop with channel = (recycling:make-channel :name name :broker broker)
        for number from start below end
        always (recycling:publish channel (princ-to-string number))))

(defun numbers (start end &optional (name "chat"))
  "What is delivered after PUBLISH-NUMBERS."
  (loop for number from start below end
        collect (list name (princ-to-string number))))

(defmacro with-losses ((losses on-loss) &body body)
  "Evaluates BODY with ON-LOSS bound to a function that records losses, and LOSSES to a function
that returns them."
  (let ((recorder (gensym "RECORDER")))
    `(let ((,recorder (make-recorder)))
       (flet ((,on-loss (reason count) (record ,recorder (list reason count)))
              (,losses () (recorded ,recorder)))
         ,@body))))
