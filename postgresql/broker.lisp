(in-package #:hunchentoot-recycling-taskmaster.postgresql)

;;;; The broker.  Each process has two threads, each with a connection of its own.  The publisher
;;;; moves messages from the queue to the database.  The listener reads the messages of all
;;;; processes, its own among them, and delivers them.
;;;;
;;;;   BROKER-PHASE   PUBLISH-MESSAGE   the publisher                    the listener
;;;;   :closed        refuses           is not there, or ends            the same
;;;;   :open          queues            publishes                        delivers
;;;;   :draining      refuses           publishes the rest, then ends    delivers
;;;;
;;;; What becomes of a message:
;;;; - PUBLISH-MESSAGE has returned true: every process that listens delivers it once, or reports a
;;;;   loss, when the database had deleted it before; or this process reports a loss when it ends
;;;;   before the database has the message.
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
   ;; The following are guarded by LOCK, which is not that of the channels.
   (lock :initform (bt:make-lock "postgresql broker") :reader broker-state-lock)
   (phase :initform :closed :accessor broker-phase)
   (queue :accessor broker-queue)
   (publisher :initform nil :accessor broker-publisher
              :documentation "A LINK.")
   (listener :initform nil :accessor broker-listener
             :documentation "A LINK.")
   (sequence :initform 0 :accessor broker-sequence
             :documentation "The number of messages that the queue has taken.")
   (late-through :initform 0 :accessor broker-late-through
                 :documentation "Messages up to this sequence number were published while the
database was away.")
   (position :initform nil :accessor broker-position
             :documentation "The number of the last message that was delivered; NIL at first.")
   (counts :initform (list :published 0 :delivered 0 :late 0 :lost 0 :refused 0)
           :accessor broker-counts)
   ;; The following do not change while the threads run.
   (name :accessor broker-name
         :documentation "The name of this publisher in the database, a string.")
   (opened-at :accessor broker-opened-at
              :documentation "A moment of MILLISECONDS."))
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
  (away-since nil)                      ; a moment of MILLISECONDS while it was reported as away
  (connections 0 :type unsigned-byte))  ; how often it was connected

(defmacro with-state ((broker) &body body)
  `(with-lock-briefly ((broker-state-lock ,broker))
     ,@body))

(defun count-messages (broker key &optional (count 1))
  "Adds COUNT to the statistic KEY of BROKER.  Call it with the lock held."
  (incf (getf (broker-counts broker) key) count))

;;; Reports

(defun report-to-error-output (text)
  (format *error-output* "~&Broker: ~A~%" text)
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

;;; Publishing

(defmethod publish-message ((broker postgresql-broker) name octets)
  (let* ((channel (utf-8-octets name))
         (loss (with-state (broker)
                 (cond ((not (eq :open (broker-phase broker)))
                        :closed)
                       ((put-in-queue (broker-queue broker)
                                      (make-message (1+ (broker-sequence broker)) channel
                                                    (coerce octets '(simple-array octet (*)))))
                        (incf (broker-sequence broker))
                        (bt:condition-notify (link-changed (broker-publisher broker)))
                        nil)
                       (t :refused)))))
    (cond (loss (report-loss broker loss 1)
                nil)
          (t t))))

(defparameter *batch-messages* 200
  "The maximum number of messages in a transaction.")

(defparameter *batch-octets* (* 1024 1024)
  "The maximum number of octets in a transaction of several messages.")

(defun closed-p (broker)
  (eq :closed (broker-phase broker)))

(defun work-of-publisher-p (broker)
  "True if the publisher of BROKER has something to do now.  Call it with the lock held."
  (or (queue-messages (broker-queue broker))
      (not (eq :open (broker-phase broker)))))

(defun await-messages (broker seconds)
  "Waits up to SECONDS, a real, until the queue of BROKER has messages, or BROKER ends."
  (let ((link (broker-publisher broker)))
    (wait-until (lambda () (work-of-publisher-p broker))
                (link-changed link) (broker-state-lock broker) seconds nil)))

(defun publisher-done-p (broker)
  "True if the publisher of BROKER has to end."
  (with-state (broker)
    (or (closed-p broker)
        (and (eq :draining (broker-phase broker))
             (null (queue-messages (broker-queue broker)))))))

(defun publish-batch (broker connection)
  "Moves the first messages of the queue of BROKER to the database.  NIL if there are none."
  (multiple-value-bind (messages late-through)
      (with-state (broker)
        (values (first-in-queue (broker-queue broker) *batch-messages* *batch-octets*)
                (broker-late-through broker)))
    (when messages
      (insert-messages connection (broker-name broker) messages late-through)
      (let ((count (length messages)))
        (with-state (broker)
          (take-from-queue (broker-queue broker) count)
          (count-messages broker :published count))))))

(defun run-publisher (broker connection)
  "Publishes by CONNECTION until BROKER ends."
  (settle-position broker connection)   ; before the first message of our own
  (let* ((period (min 60 (/ (broker-keep-seconds broker) 4)))
         (next-deletion (end-after period)))
    (loop until (publisher-done-p broker)
          do (unless (publish-batch broker connection)
               (await-messages broker (/ (milliseconds-left next-deletion) 1000)))
             (when (zerop (milliseconds-left next-deletion))
               (delete-old-messages connection (broker-keep-seconds broker))
               (setf next-deletion (end-after period))))))

;;; Listening

(defun settle-position (broker connection)
  "Lets BROKER begin to read after the last message before it was opened."
  (unless (broker-position broker)
    (let ((position (ask-value connection "before" (- (milliseconds) (broker-opened-at broker)))))
      (with-state (broker)
        (unless (broker-position broker)
          (setf (broker-position broker) position))))))

(defun note-delivery (broker position late-p)
  (with-state (broker)
    (setf (broker-position broker) position)
    (count-messages broker :delivered)
    (when late-p
      (count-messages broker :late))))

(defun deliver-row (broker row late-p)
  "Delivers the message of ROW, as the statement \"read\" returns it."
  (destructuring-bind (id channel payload marked-late-p) row
    (handler-case (deliver-message broker (utf-8-text channel) payload)
      (error (condition)
        (report broker "A message cannot be read: ~A" condition)
        (report-loss broker :malformed 1)))
    (note-delivery broker id (or late-p marked-late-p))))

(defparameter *rows* 100
  "How many messages a process reads at a time.")

(defun read-messages (broker connection last-id late-p)
  "Delivers some of the messages up to LAST-ID that BROKER has not read."
  (let* ((position (broker-position broker))
         (rows (ask connection "read" position last-id *rows*))
         (end (if (= *rows* (length rows)) (first (first (last rows))) last-id))
         (missing (- end position (length rows))))
    (when (plusp missing)
      (report-loss broker :deleted missing))
    (dolist (row rows)
      (deliver-row broker row late-p))
    (with-state (broker)
      (setf (broker-position broker) end))))

(defun catch-up (broker connection late-p)
  "Delivers all messages that BROKER has not read."
  (let ((last-id (ask-value connection "last")))
    (when (< last-id (broker-position broker))
      (report-loss broker :reset nil)
      (with-state (broker)
        (setf (broker-position broker) last-id)))
    (loop while (and (< (broker-position broker) last-id)
                     (not (closed-p broker)))
          do (read-messages broker connection last-id late-p))))

(defparameter *look-seconds* 10
  "After so many seconds without a notification a listener asks the database, so that it finds out
when its connection has died.")

(defparameter *slice-seconds* 1/2
  "How long a listener waits before it looks whether its broker was closed.")

(defun await-news (broker connection)
  "Waits until CONNECTION has a notification, or it is time to ask without one, or BROKER ends."
  (loop with end = (end-after *look-seconds*)
        until (or (closed-p broker)
                  (zerop (milliseconds-left end))
                  (await-notification connection *slice-seconds*))))

(defun run-listener (broker connection)
  "Delivers what CONNECTION reads until BROKER ends."
  (execute connection "listen recycling_messages")
  (settle-position broker connection)
  (catch-up broker connection (< 1 (link-connections (broker-listener broker))))
  (loop until (closed-p broker)
        do (await-news broker connection)
           (catch-up broker connection nil)))

;;; Connections that come and go

(defparameter *longest-pause* 5
  "The maximum time between two attempts to connect, in seconds.")

(defun pause-seconds (attempt)
  "How long to wait after the ATTEMPTth failure in a row, in seconds: twice as long each time, and
at random, so that many processes do not come at the same time."
  (let ((longest (min *longest-pause* (* 1/10 (expt 2 (min attempt 10))))))
    (* longest (+ 1/2 (random 0.5)))))

(defun connection-arguments (broker)
  (list (broker-database broker) (broker-user broker) (broker-password broker)
        (broker-host broker) (broker-port broker) (broker-use-ssl broker)
        "postgres" "hunchentoot-recycling-taskmaster"))

(defun note-connected (broker link)
  "Notes that LINK of BROKER is connected."
  (let ((since (with-state (broker)
                 (setf (link-connected-p link) t)
                 (incf (link-connections link))
                 (when (eq link (broker-publisher broker))
                   (when (or (link-away-since link) (< 1 (link-connections link)))
                     (setf (broker-late-through broker) (broker-sequence broker))))
                 (shiftf (link-away-since link) nil))))
    (when since
      (report broker "The ~A is connected again after ~,1F seconds." (link-name link)
              (/ (- (milliseconds) since) 1000)))))

(defun note-away (broker link condition)
  "Notes that LINK of BROKER is not connected, because of CONDITION."
  (when (with-state (broker)
          (setf (link-connected-p link) nil)
          (unless (link-away-since link)
            (setf (link-away-since link) (milliseconds))))
    (report broker "The ~A has no database: ~A" (link-name link) condition)))

(defun pause (broker link attempt)
  "Waits after the ATTEMPTth failure in a row, unless BROKER is closed."
  (wait-until (lambda () (closed-p broker))
              (link-changed link) (broker-state-lock broker) (pause-seconds attempt) nil))

(defun run-link (broker link run)
  "Connects LINK of BROKER, and calls RUN with BROKER and the connection.  True if RUN returns; NIL
after an error."
  (handler-case
      (with-connection (connection (connection-arguments broker))
        (note-connected broker link)
        (funcall run broker connection)
        t)
    (error (condition)
      (note-away broker link condition)
      nil)))

(defun keep-connected (broker link run)
  "The life of the thread of LINK: calls RUN as RUN-LINK does, again after each error, until RUN
returns or BROKER is closed."
  (loop with attempt = 0
        for start = (milliseconds)
        until (or (closed-p broker)
                  (run-link broker link run))
        do (when (<= (as-milliseconds *longest-pause*) (- (milliseconds) start))
             (setf attempt 0))          ; the connection was good for a while
           (pause broker link (incf attempt))))

(defun start-link (broker link run)
  "Makes the thread of LINK of BROKER, which calls RUN."
  (setf (link-thread link)
        (call-making-thread
         (lambda ()
           (bt:make-thread (lambda ()
                             (unwind-protect (keep-connected broker link run)
                               (with-state (broker)
                                 (setf (link-connected-p link) nil))))
                           :name (format nil "broker-~A" (link-name link)))))))

(defun wake-links (broker)
  "Makes the threads of BROKER look at its phase.  Call it with the lock held."
  (bt:condition-notify (link-changed (broker-publisher broker)))
  (bt:condition-notify (link-changed (broker-listener broker))))

;;; Open and close

(defmethod initialize-instance :after ((broker postgresql-broker)
                                       &key database user password keep-seconds queue-octets)
  (check-type database string)
  (check-type user string)
  (check-type password (or null string))
  (check-type keep-seconds (or null (integer 1)))
  (check-type queue-octets (or null (integer 1)))
  (setf (broker-queue broker) (make-queue (broker-queue-octets broker))))

(defun connected-p (broker)
  "True if both connections of BROKER are there, as far as is known."
  (flet ((link-there-p (link)
           (and link (link-connected-p link))))
    (and (link-there-p (broker-publisher broker))
         (link-there-p (broker-listener broker)))))

(defun begin-broker (broker)
  "Makes BROKER open.  NIL if it was open already."
  (with-state (broker)
    (when (closed-p broker)
      (setf (broker-phase broker) :open
            (broker-queue broker) (make-queue (broker-queue-octets broker))
            (broker-position broker) nil
            (broker-name broker) (format nil "~36R" (random (expt 2 128) (make-random-state t)))
            (broker-opened-at broker) (milliseconds)
            (broker-publisher broker) (make-link "publisher")
            (broker-listener broker) (make-link "listener")))))

(defmethod open-broker ((broker postgresql-broker) &key (timeout 5))
  (when (begin-broker broker)
    (let ((open-p nil))
      (unwind-protect
           (progn
             (start-link broker (broker-publisher broker) 'run-publisher)
             (start-link broker (broker-listener broker) 'run-listener)
             (setf open-p t))
        (unless open-p                  ; there is no thread to be had
          (close-broker broker)))))
  (wait-until (lambda () (and (broker-position broker) (connected-p broker)))
              (bt:make-condition-variable) (broker-state-lock broker) timeout 1/50)
  broker)

(defun join-link (link end)
  "Waits until END, a moment of MILLISECONDS, for the end of the thread of LINK.  True if it has
ended."
  (let ((thread (link-thread link)))
    (or (null thread)
        (join-thread thread (/ (milliseconds-left end) 1000)))))

(defmethod close-broker ((broker postgresql-broker) &key (timeout 5))
  (let ((end (end-after timeout))
        (publisher (broker-publisher broker))
        (listener (broker-listener broker)))
    (flet ((enter (phase)
             (with-state (broker)
               (unless (closed-p broker)
                 (setf (broker-phase broker) phase)
                 (wake-links broker)))))
      (when publisher
        (enter :draining)
        (join-link publisher end)
        (enter :closed)
        ;; A listener that is well needs a moment.
        (let* ((end (max end (end-after (* 2 *slice-seconds*))))
               (ended-p (and (join-link publisher end) (join-link listener end)))
               (count (with-state (broker)
                        (shiftf (queue-count (broker-queue broker)) 0))))
          (when (plusp count)
            (report-loss broker :closed count))
          ended-p)))))

(defmethod broker-stats ((broker postgresql-broker))
  (with-state (broker)
    (list* :connected-p (and (connected-p broker) t)
           :queued (queue-count (broker-queue broker))
           :queued-octets (queue-octets (broker-queue broker))
           (copy-list (broker-counts broker)))))
