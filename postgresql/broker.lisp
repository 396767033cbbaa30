(in-package #:hunchentoot-recycling-taskmaster.postgresql)

;;;; The broker: what a program configures, and what it is told.
;;;;
;;;; What becomes of a message:
;;;; - PUBLISH-MESSAGE has returned true: every process that listens delivers it once, or reports a
;;;;   loss, when the database had deleted it before; or this process reports a loss when it ends
;;;;   before the database has the message.  If the connection is lost amid the commit, and the
;;;;   broker is closed before it is connected again, the database may have the message after all.
;;;; - PUBLISH-MESSAGE has returned NIL: it is lost, which is reported too.

(defclass postgresql-broker (broker)
  ((database :initarg :database :reader broker-database :type string)
   (user :initarg :user :reader broker-user :type string)
   (password :initarg :password :initform nil :reader broker-password :type (or null string))
   (host :initarg :host :initform "localhost" :reader broker-host)
   (port :initarg :port :initform 5432 :reader broker-port)
   (use-ssl :initarg :use-ssl :initform :no :reader broker-use-ssl)
   (keep-seconds :initarg :keep-seconds :initform 600 :reader broker-keep-seconds)
   (queue-octets :initarg :queue-octets :initform (* 16 1024 1024) :reader broker-queue-octets)
   (on-loss :initarg :on-loss :initform nil :reader broker-on-loss)
   (report :initarg :report :initform 'report-to-error-output :reader broker-report)
   (name :initform (format nil "~36R" (random (expt 2 128) (make-random-state t)))
         :reader broker-name :documentation "Its name in the database.")
   (publisher :initform (make-link "publisher") :reader broker-publisher)
   (listener :initform (make-link "listener") :reader broker-listener)
   ;; The following are guarded by LOCK, which is not that of the channels.
   (lock :initform (bt:make-lock "postgresql broker") :reader broker-state-lock)
   (phase :initform :closed :accessor broker-phase :type (member :open :draining :closed))
   (messages :initform '() :accessor broker-messages
             :documentation "Those that wait for the database, the oldest first.")
   (last :initform '() :accessor broker-last :documentation "The last cons of MESSAGES.")
   (octets :initform 0 :accessor broker-octets :documentation "Of MESSAGES.")
   (sequence :initform 0 :accessor broker-sequence
             :documentation "The number of the last message of this process.")
   (position :initform nil :accessor broker-position
             :documentation "The last message that was delivered; NIL at first.")
   (counts :initform (list :published 0 :delivered 0 :lost 0 :refused 0)
           :accessor broker-counts))
  (:documentation "A broker whose engine is a PostgreSQL database.  Its initargs:

  :DATABASE      the name of the database, a string; it gets three tables, see *SCHEMA*
  :USER          a string
  :PASSWORD      a string, or NIL
  :HOST          a string, by default \"localhost\"; on SBCL also the folder of a Unix socket
  :PORT          an integer, by default 5432
  :USE-SSL       :NO, :TRY, :REQUIRE, :YES or :FULL, as CL-POSTGRES:OPEN-DATABASE takes it
  :KEEP-SECONDS  for how long the database keeps messages for processes whose connection is lost, an
                 integer, by default 600
  :QUEUE-OCTETS  the limit of the memory for messages that wait for the database, an integer, by
                 default 16 MiB
  :ON-LOSS       NIL, or a function of a keyword and an integer, the number of messages, or NIL if
                 that is unknown; called in any thread.  The keyword is :REFUSED when there is no
                 room in the queue; :CLOSED when the broker is not open, or was closed before the
                 database had the messages; :DELETED when the database kept them for too short a
                 time for this process; :RESET when the tables were emptied or restored; :MALFORMED
                 when a message cannot be read
  :REPORT        a function of a string, what an operator should know: that the database is away,
                 say.  By default it prints a line to *ERROR-OUTPUT*"))

(defstruct (link (:include opaque) (:copier nil) (:constructor make-link (name)))
  "A thread of a broker, and its connection.  The lock of the broker guards the slots."
  (name nil :type string :read-only t)
  (thread nil)
  (changed (bt:make-condition-variable) :read-only t) ; notified when the thread has to look
  (connected-p nil)
  (away-since nil))                     ; a moment of MILLISECONDS while it was reported as away

(defmacro with-state ((broker) &body body)
  `(with-lock-briefly ((broker-state-lock ,broker))
     ,@body))

(defun count-messages (broker key &optional (count 1))
  "Adds COUNT to the statistic KEY of BROKER.  Call it with the lock held."
  (incf (getf (broker-counts broker) key) count))

;;; Reports

(defun report-to-error-output (text)
  (format *error-output* "~&[~A] Broker: ~A~%" (local-now) text)
  (finish-output *error-output*))

(defun call-reporter (function &rest arguments)
  "Calls FUNCTION, of the program, with ARGUMENTS.  An error in it ends no thread of the broker."
  (handler-case (apply function arguments)
    (error (condition)
      (ignore-errors (report-to-error-output (format nil "~A failed: ~A" function condition))))))

(defun report (broker control &rest arguments)
  (call-reporter (broker-report broker) (apply #'format nil control arguments)))

(defun report-loss (broker reason count)
  "Counts and reports that COUNT messages, an integer or NIL if unknown, are lost for REASON."
  (with-state (broker)
    (count-messages broker (if (eq reason :refused) :refused :lost) (or count 1)))
  (if (broker-on-loss broker)
      (call-reporter (broker-on-loss broker) reason count)
      (report broker "~:[Messages~;~:*~D message~:P~] lost: ~(~A~)." count reason)))

;;; The messages of this process that wait for the database, in their order.  The publisher thread
;;; copies the first ones, and takes them out once the database has them.

(defstruct (message (:include opaque) (:copier nil)
                    (:constructor make-message (sequence channel payload)))
  "A message for the database, the SEQUENCEth of its publisher."
  (sequence 0 :type unsigned-byte :read-only t)
  (channel nil :type (simple-array octet (*)) :read-only t) ; its name in UTF-8
  (payload nil :type (simple-array octet (*)) :read-only t))

(defun message-size (message)
  (+ (length (message-channel message)) (length (message-payload message)) 200))
