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

(defun database-processes (database)
  "The numbers of the processes of PostgreSQL that serve brokers of DATABASE, strings."
  (uiop:split-string (execute-in-database database
                                          "select string_agg(pid::text, ' ') from pg_stat_activity
                                           where application_name
                                                 = 'hunchentoot-recycling-taskmaster'")))

(defun signal-processes (signal processes)
  (uiop:run-program (list* "kill" (format nil "-~A" signal) processes)))

(defmacro with-processes-stopped ((processes) &body body)
  "Evaluates BODY while PROCESSES, of DATABASE-PROCESSES, do nothing."
  (let ((stopped (gensym "STOPPED")))
    `(let ((,stopped ,processes))
       (signal-processes "STOP" ,stopped)
       (unwind-protect (progn ,@body)
         (signal-processes "CONT" ,stopped)))))

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
answers for long, so that a slow machine makes none of them think that it is away; and do not look
for messages of which the database has not notified them."
  `(with-globals ((postgresql::*answer-seconds* (* 10 *patience*))
                  (postgresql::*look-seconds* 3600))
     (call-with-database (lambda (,database) ,@body))))

;;; Brokers

(defun database-broker (database &rest initargs)
  "A broker on DATABASE with INITARGS, that reports nothing."
  (apply #'make-instance 'postgresql:postgresql-broker
         (append initargs
                 (list :database "chat" :user "chat" :host (database-folder-name database)
                       :report (constantly nil)))))

(defun database-brokers (count database &rest initargs)
  (loop repeat count collect (apply #'database-broker database initargs)))

(defmacro with-brokers ((brokers form) &body body)
  "Evaluates BODY with BROKERS bound to the value of FORM, a list of brokers, while they are open."
  `(let ((,brokers ,form))
     (unwind-protect
          (progn
            (dolist (broker ,brokers)
              (recycling:open-broker broker :timeout *patience*))
            ,@body)
       (dolist (broker ,brokers)
         (recycling:close-broker broker :timeout 1)))))

(defun broker-figure (broker key)
  (getf (recycling:broker-stats broker) key))

(defun await-figure (broker key value)
  "Waits until the statistic KEY of BROKER is VALUE."
  (eventually ((format nil "~(~A~) to be ~A" key value))
    (equal value (broker-figure broker key))))

(defun publish-numbers (broker start end &optional (by "a"))
  "Publishes the numbers from START below END by BROKER, as those of BY.  True if it took them all."
  (loop with channel = (recycling:make-channel :name "chat" :broker broker)
        for text in (numbers start end by)
        always (recycling:publish channel text)))

(defun numbers (start end &optional (by "a"))
  "The texts of PUBLISH-NUMBERS."
  (loop for number from start below end
        collect (format nil "~A ~D" by number)))

(defun call-with-deliveries (brokers name function)
  "Calls FUNCTION while a client of a WebSocket for each of BROKERS follows the channel NAME; with a
function of a broker and a number, which waits for as many texts, and returns all that have come."
  (let ((channels (loop for broker in brokers
                        collect (recycling:make-channel :name name :broker broker)))
        (recorders (loop for nil in brokers collect (make-recorder))))
    (serving ()
        (("/ws" (let ((channel (nth (parse-integer (hunchentoot:get-parameter "number"))
                                    channels)))
                  (recycling:upgrade-to-websocket
                   :high-water-mark 100000000 :ping-seconds nil :idle-seconds nil
                   :on-open (lambda (socket) (recycling:subscribe channel socket))))))
      (with-connections (connections (length brokers))
        (loop for connection in connections
              for number from 0
              for recorder in recorders
              do (let ((recorder recorder)
                       (talk (open-talk connection
                                        :handshake (list :target (format nil "/ws?number=~D"
                                                                         number)))))
                   (let ((*patience* (* 10 *patience*))) ; the database may be away meanwhile
                     (in-background ("a follower")
                       (loop for text = (hear-text talk)
                             while (stringp text)
                             do (record recorder text))))))
        (eventually ("all to follow")
          (every (lambda (channel) (= 1 (recycling:channel-size channel))) channels))
        (unwind-protect
             (funcall function
                      (lambda (broker count)
                        (let ((recorder (nth (position broker brokers) recorders)))
                          (eventually ((format nil "~D texts" count))
                            (<= count (recorded-count recorder)))
                          (recorded recorder))))
          (hunchentoot:stop *server*))))))

(defmacro with-deliveries ((deliveries brokers &optional (name "chat")) &body body)
  "Evaluates BODY with DELIVERIES bound to the function of CALL-WITH-DELIVERIES."
  (let ((function (gensym "FUNCTION")))
    `(call-with-deliveries ,brokers ,name
                           (lambda (,function)
                             (flet ((,deliveries (broker count)
                                      (funcall ,function broker count)))
                               ,@body)))))

(defmacro with-losses ((losses on-loss) &body body)
  "Evaluates BODY with ON-LOSS bound to a function that records losses, and LOSSES to a function
that returns them."
  (let ((recorder (gensym "RECORDER")))
    `(let ((,recorder (make-recorder)))
       (flet ((,on-loss (reason count) (record ,recorder (list reason count)))
              (,losses () (recorded ,recorder)))
         ,@body))))
