(in-package #:hunchentoot-recycling-taskmaster.postgresql)

;;;; The database.  Its tables keep messages for a while, so that a process whose connection was
;;;; lost reads what it has missed.  NOTIFY only wakes the processes; it carries no message.
;;;;
;;;; A publisher holds the one row of recycling_log until it commits.  So messages get numbers
;;;; without gaps, in the order in which they become visible, and a reader needs to remember only
;;;; the last number that it has read: what is missing among the next ones has been deleted.
;;;;
;;;; If a connection fails at the commit, the publisher does not know whether it has published.  So
;;;; the transaction also notes the last sequence number of the publisher, which it reads at first
;;;; when it is connected again, under the same lock.

(defparameter *schema*
  '("create table if not exists recycling_log
       (only_row boolean primary key default true check (only_row),
        last_id bigint not null)"
    "insert into recycling_log (last_id) values (0) on conflict do nothing"
    "create table if not exists recycling_messages
       (id bigint primary key,
        channel bytea not null,
        payload bytea not null,
        at timestamptz not null default clock_timestamp())"
    "create table if not exists recycling_publishers
       (publisher text primary key,
        sequence bigint not null,
        at timestamptz not null default clock_timestamp())")
  "The statements, strings, that make the tables of a POSTGRESQL-BROKER.  OPEN-BROKER executes them
if the tables are not there.  Whoever owns the database may do so before, if its user may not; the
user has to select, insert, update and delete rows.")

(defparameter *statements*
  '(("lock" "select last_id from recycling_log for update")
    ("last" "select last_id from recycling_log")
    ;; The first messages of a range: up to so many, with up to so many octets except for one.
    ("read" "select id, channel, payload
             from (select *, sum(octet_length(payload)) over (order by id) as octets
                   from (select * from recycling_messages
                         where id > $1 and id <= $2 order by id limit $3) as range) as counted
             where octets <= $4 or octets = octet_length(payload) order by id")
    ("published" "select sequence from recycling_publishers where publisher = $1")
    ("insert" "insert into recycling_messages (id, channel, payload) values ($1, $2, $3)")
    ("note" "insert into recycling_publishers (publisher, sequence) values ($1, $2)
             on conflict (publisher)
             do update set sequence = excluded.sequence, at = excluded.at")
    ("advance" "update recycling_log set last_id = $1")
    ("delete" "delete from recycling_messages
               where at < clock_timestamp() - $1 * interval '1 second'")
    ("forget" "delete from recycling_publishers
               where at < clock_timestamp() - interval '30 days'"))
  "The names and the texts of all statements with parameters or frequent use.")

(defparameter *answer-seconds* 10
  "The maximum wait for an answer of the database, in seconds.")

;;; Statements

(defun abort-connection (connection)
  "Closes the socket of CONNECTION, which has not answered.  Never signals."
  (ignore-errors (close (cl-postgres::connection-socket connection) :abort t)))

(defvar *notified-p* nil
  "True if a statement has taken a notification since a listener has looked for messages.  Each
connection has a binding of its own.")

(defun note-warning (condition)
  "Muffles CONDITION, a notice or a notification of PostgreSQL's, which CL-POSTGRES signals as
warnings."
  (when (typep condition 'cl-postgres:postgresql-notification)
    (setf *notified-p* t))
  (muffle-warning condition))

(defmacro with-answer ((&optional connection) &body body)
  "Evaluates BODY, which asks the database by CONNECTION, or connects.  Limits its waits."
  `(call-within *answer-seconds*
                (lambda ()
                  (handler-bind ((warning #'note-warning))
                    ,@body))
                ;; CL-POSTGRES would wait for the end of the answer before it lets an error pass.
                ,@(when connection
                    `((lambda (condition)
                        (declare (ignore condition))
                        (abort-connection ,connection))))))

(defun execute (connection text)
  "Executes the statement TEXT; returns its rows, lists."
  (with-answer (connection)
    (cl-postgres:exec-query connection text 'cl-postgres:list-row-reader)))

(defun ask (connection name &rest parameters)
  "Executes the one of *STATEMENTS* called NAME with PARAMETERS; returns its rows, lists."
  (with-answer (connection)
    (cl-postgres:exec-prepared connection name parameters 'cl-postgres:list-row-reader)))

(defun ask-value (connection name &rest parameters)
  "The only value that the statement NAME returns with PARAMETERS, or NIL."
  (first (first (apply #'ask connection name parameters))))

(defmacro with-transaction ((connection) &body body)
  "Evaluates BODY in a transaction of CONNECTION, and commits.  After an error the caller closes
CONNECTION, which undoes what BODY did."
  `(progn
     (execute ,connection "begin")
     ,@body
     (execute ,connection "commit")))

;;; Connections

(defun call-with-connection (arguments function)
  "Calls FUNCTION with a connection to the database of ARGUMENTS, those of
CL-POSTGRES:OPEN-DATABASE, that is ready for *STATEMENTS*.  Makes the tables if they are missing."
  (let ((*notified-p* nil)
        (connection (with-answer ()
                      (apply #'cl-postgres:open-database arguments))))
    (unwind-protect
         (progn
           ;; Its role may have any defaults for its transactions.
           (execute connection "set session characteristics as transaction
                                isolation level read committed, read write, not deferrable")
           ;; If a process stops amid a transaction, the others wait for its lock.
           (execute connection (format nil "set idle_in_transaction_session_timeout = '~Ds'"
                                       *answer-seconds*))
           (when (eq :null (first (first (execute
                                          connection
                                          "select to_regclass('recycling_publishers')::text"))))
             (with-transaction (connection)
               ;; Only one process makes them.
               (execute connection "select pg_advisory_xact_lock(7385920461)")
               (dolist (statement *schema*)
                 (execute connection statement))))
           ;; A statement that is prepared begins a transaction, which CL-POSTGRES leaves open.
           (with-transaction (connection)
             (loop for (name text) in *statements*
                   do (with-answer (connection)
                        (cl-postgres:prepare-query connection name text))))
           (funcall function connection))
      (handler-case (with-answer () (cl-postgres:close-database connection))
        (error () (abort-connection connection))))))

(defun await-notification (connection seconds)
  "Waits up to SECONDS, a real, until CONNECTION has something to read.  The next statement takes
it."
  (await-stream-input (cl-postgres::connection-socket connection) seconds))

;;; Messages

(defun insert-messages (connection publisher messages)
  "Publishes MESSAGES, a list in the order of their sequence numbers, as those of PUBLISHER, a
string.  Leaves out those that the database has already."
  (with-transaction (connection)
    (let* ((last-id (ask-value connection "lock"))
           (published (or (ask-value connection "published" publisher) -1))
           (new (member-if (lambda (message) (< published (message-sequence message))) messages)))
      (when new
        (dolist (message new)
          (ask connection "insert" (incf last-id) (message-channel message)
               (message-payload message)))
        (ask connection "note" publisher (message-sequence (first (last new))))
        (ask connection "advance" last-id)
        (execute connection "notify recycling_messages")))))

(defun delete-old-messages (connection seconds)
  "Deletes messages that are older than SECONDS."
  (with-transaction (connection)
    (ask connection "lock")             ; no two of these wait for each other
    (ask connection "delete" seconds)
    (ask connection "forget")))
