(in-package #:recycling-benchmark)

;;;; A PostgreSQL of the benchmark's own, in build/benchmark/postgres/, with a Unix socket there and
;;;; no port.  It is made anew for each run.

(defun postgres-program (name)
  "The program NAME of the newest PostgreSQL.  UNAVAILABLE without one."
  (or (first (last (sort (directory (format nil "/usr/lib/postgresql/*/bin/~a" name)) #'string<
                         :key #'namestring)))
      (unavailable "PostgreSQL is not installed (Debian's package postgresql)")))

(defun user ()
  "The name of the user who runs this."
  (output-of "id" "-un"))

(defun as-postgres (&rest command)
  "COMMAND, words, wrapped so that a user other than root runs it: PostgreSQL refuses root."
  (if (string= (user) "root")
      (list* "runuser" "-u" "postgres" "--" command)
      command))

(defun start-postgres (&key (port 5432) (addresses "") (rows "servers/seed.sql"))
  "Starts PostgreSQL with the ROWS of a file in the database bench, whose user is bench, and which
has the number PORT.  It listens on ADDRESSES, a string, and on a Unix socket.  Returns the child,
and the folder of its socket.  UNAVAILABLE where it cannot be had."
  (let* ((initdb (postgres-program "initdb"))
         (sockets (built-file "postgres/"))
         (folder (merge-pathnames "data/" sockets))
         (started-p nil))
    (uiop:delete-directory-tree sockets :validate t :if-does-not-exist :ignore)
    (ensure-directories-exist folder)
    (when (string= (user) "root")
      (output-of "chown" "-R" "postgres" sockets))
    (apply #'run-or-be-unavailable "initdb failed"
           (as-postgres initdb "-D" folder "-U" "bench" "--auth=trust" "-E" "UTF8" "--locale=C"))
    (let ((child (launch (as-postgres (postgres-program "postgres") "-D" folder "-k" sockets
                                      "-c" (format nil "listen_addresses=~a" addresses)
                                      "-c" (format nil "port=~d" port)
                                      "-c" "max_connections=1000" "-c" "fsync=off")
                         :output (built-file "postgres.log"))))
      (unwind-protect
           (progn (wait-until (lambda ()
                                (probe-file (format nil "~a.s.PGSQL.~d"
                                                    (uiop:native-namestring sockets) port)))
                              20)
                  (seed sockets port rows)
                  (setf started-p t))
        (unless started-p (stop-postgres child)))
      (values child sockets))))

(defun stop-postgres (child)
  "Ends CHILD, a PostgreSQL, without waiting for its clients."
  (end-child child "INT"))

(defun seed (sockets port rows)
  "Makes the database bench, with the ROWS of a file, in the PostgreSQL whose socket in the folder
SOCKETS has the number PORT."
  (flet ((psql (database &rest words)
           (apply #'run-or-be-unavailable "psql failed"
                  (postgres-program "psql") "-h" sockets "-p" port "-U" "bench" "-d" database
                  "-q" "-v" "ON_ERROR_STOP=1" words)))
    (psql "postgres" "-c" "create database bench")
    (psql "bench" "-f" (source-file rows))))
