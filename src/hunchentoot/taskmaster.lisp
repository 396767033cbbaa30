(in-package #:hunchentoot-recycling-taskmaster)

(defclass recycling-taskmaster (http-service hunchentoot:multi-threaded-taskmaster)
  ((standby-thread-count
    :initarg :standby-thread-count
    :documentation "How many threads are made at start and kept when there is nothing to do, an
integer above 0.")
   (max-thread-count
    :initarg :max-thread-count
    :accessor hunchentoot:taskmaster-max-thread-count
    :documentation "How many threads may serve at a time, an integer above 0, or NIL for no limit.
Setting it below the standby count lowers that, too.")
   (max-accept-count
    :initarg :max-accept-count
    :accessor hunchentoot:taskmaster-max-accept-count
    :documentation "The fate of a new connection while MAX-THREAD-COUNT threads serve:
  :UNLIMITED   it waits for a thread;
  an integer   greater than MAX-THREAD-COUNT: it waits, unless that many connections are served or
               wait for a thread already; then it is answered 503.  Where connections are parked, a
               connection between two requests does not count; elsewhere every open one counts;
  NIL          it is answered 503.
Over TLS, the server closes the connection instead of answering 503.")
   (max-waiting-count
    :initarg :max-waiting-count
    :reader taskmaster-max-waiting-count
    :documentation "How many threads may wait for clients at a time, to send content or to take a
reply: an integer above 0, :HALF of MAX-THREAD-COUNT, or NIL for no limit.")
   (worker-thread-name-format
    :initarg :worker-thread-name-format
    :documentation "A control string for FORMAT that makes a thread's name of one argument, a string
with address, port and number; NIL for the default.")
   (parking
    :initarg :parking
    :accessor taskmaster-parking-p
    :documentation "True when a connection between two requests should have no thread, where the
platform supports that.")
   (rejections
    :initform (make-rejections)
    :accessor taskmaster-rejections
    :documentation "Counters of rejected requests since the last start; see rejections.lisp.")
   (heart
    :initform (make-heart)
    :reader taskmaster-heart
    :documentation "The event streams that get comments; see heartbeats.lisp.")
   (failed-handshakes
    :initform (make-failed-handshakes)
    :accessor taskmaster-failed-handshakes
    :documentation "Counters of failed handshakes since the last start; see
failed-handshakes.lisp."))
  (:default-initargs
   :standby-thread-count nil
   :max-thread-count (default-max-thread-count)
   :max-accept-count :unlimited
   :max-waiting-count :half
   :parking *parking-by-default*
   :worker-thread-name-format *default-worker-thread-name-format*)
  (:documentation "A taskmaster whose threads share the acceptor's connections and are recycled: a
thread that has served one connection serves another.  The number of threads follows the load.

  :STANDBY-THREAD-COUNT       how many threads are made at start and kept when there is nothing to
                              do, an integer above 0; default *DEFAULT-STANDBY-THREAD-COUNT*, or
                              MAX-THREAD-COUNT where that is less
  :MAX-THREAD-COUNT           how many threads may serve at a time, an integer above 0, or NIL for
                              no limit; default Hunchentoot's
  :MAX-ACCEPT-COUNT           the fate of a new connection while MAX-THREAD-COUNT threads serve:
                              :UNLIMITED, the default, lets it wait; NIL answers 503; an integer
                              greater than MAX-THREAD-COUNT lets that many connections be served or
                              wait for a thread, and answers others 503
  :MAX-WAITING-COUNT          how many threads may wait for clients at a time, to send content or to
                              take a reply: an integer above 0, :HALF of MAX-THREAD-COUNT, the
                              default, or NIL for no limit.  When one more has to wait, the server
                              gives up the slowest client
  :WORKER-THREAD-NAME-FORMAT  a control string that prints its one argument, a string of the
                              acceptor's address and port and the thread's number; NIL for the
                              default.  LIST-CONNECTIONS tells which connection a thread serves
  :PARKING                    true, the default: a connection between two requests has no thread,
                              where the platform supports that; NIL: it keeps its thread.  Where
                              connections are parked, threads run under SCHED_BATCH (sched(7)) and
                              their sleeps may last 0.25 ms longer, so that they interrupt each
                              other less; threads that a handler makes inherit both

Equal :STANDBY-THREAD-COUNT and :MAX-THREAD-COUNT make a fixed pool.  Signals
HUNCHENTOOT:PARAMETER-ERROR when an argument makes no sense."))

;;; Readers, generic so that they have a docstring

(defgeneric taskmaster-standby-thread-count (taskmaster)
  (:documentation "How many threads of TASKMASTER, a RECYCLING-TASKMASTER, are made at start and
kept when there is nothing to do, an integer above 0.  Can be set with SETF, also while the server
runs: missing threads are made at once, and threads beyond the number end when they have nothing to
do.  SETF signals HUNCHENTOOT:PARAMETER-ERROR for a value that is greater than MAX-THREAD-COUNT.")
  (:method ((taskmaster recycling-taskmaster))
    (slot-value taskmaster 'standby-thread-count)))

(defgeneric taskmaster-worker-thread-name-format (taskmaster)
  (:documentation "The control string, for FORMAT, of the names of the threads of TASKMASTER, a
RECYCLING-TASKMASTER.  Its one argument is a string with address, port and number.")
  (:method ((taskmaster recycling-taskmaster))
    (slot-value taskmaster 'worker-thread-name-format)))

;;; Arguments

(defun check-count (name value words)
  "Signals HUNCHENTOOT:PARAMETER-ERROR unless VALUE, of the argument NAME, is a count.  WORDS
describe the values that are allowed."
  (unless (typep value '(integer 1 #.most-positive-fixnum))
    (hunchentoot:parameter-error "~A must be ~A, not ~S." name words value)))

(defun check-thread-counts (standby maximum)
  (when maximum
    (check-count :max-thread-count maximum "an integer above 0, or NIL for no limit"))
  (check-count :standby-thread-count standby "an integer above 0")
  (when (and maximum (> standby maximum))
    (hunchentoot:parameter-error
     "STANDBY-THREAD-COUNT, ~D, must not be greater than MAX-THREAD-COUNT, ~D (which may be NIL, ~
      for no limit)."
     standby maximum)))

(defun check-accept-count (accept maximum)
  (unless (member accept '(nil :unlimited))
    (check-count
     :max-accept-count accept
     "an integer greater than MAX-THREAD-COUNT, :UNLIMITED, or NIL, to answer 503 at once")
    (unless maximum
      (hunchentoot:parameter-error
       "MAX-ACCEPT-COUNT, ~D, needs a MAX-THREAD-COUNT, which is NIL, for no limit." accept))
    (unless (> accept maximum)
      (hunchentoot:parameter-error
       "MAX-ACCEPT-COUNT, ~D, must be greater than MAX-THREAD-COUNT, ~D; or :UNLIMITED, to have ~
        all wait; or NIL, to answer 503 at once." accept maximum))))

(defun check-waiting-count (waiting)
  (unless (member waiting '(nil :half))
    (check-count :max-waiting-count waiting
                 "an integer above 0, :HALF of MAX-THREAD-COUNT, or NIL for no limit")))

(defun check-name-format (control)
  (unless (and (stringp control)
               (search "<name>" (handler-case (format nil control "<name>") (error () ""))))
    (hunchentoot:parameter-error
     "WORKER-THREAD-NAME-FORMAT must be a control string that prints its one argument, such as ~S, ~
      or NIL, not ~S."
     *default-worker-thread-name-format* control)))

(defun check-arguments (standby maximum accept waiting control)
  (check-thread-counts standby maximum)
  (check-accept-count accept maximum)
  (check-waiting-count waiting)
  (check-name-format control))

(defun default-standby (maximum)
  "The default of the standby count where MAXIMUM threads, a count or NIL, may serve."
  (if (typep maximum '(integer 1))
      (min *default-standby-thread-count* maximum)
      *default-standby-thread-count*))

(defun fill-defaults (taskmaster)
  "Replaces those arguments of TASKMASTER by their defaults for which NIL means the default."
  (with-slots (standby-thread-count max-thread-count worker-thread-name-format) taskmaster
    (unless standby-thread-count
      (setf standby-thread-count (default-standby max-thread-count)))
    (unless worker-thread-name-format
      (setf worker-thread-name-format *default-worker-thread-name-format*))))

(defmethod initialize-instance :after ((taskmaster recycling-taskmaster) &key)
  (fill-defaults taskmaster)
  (with-slots (standby-thread-count max-thread-count max-accept-count max-waiting-count
               worker-thread-name-format)
      taskmaster
    (check-arguments standby-thread-count max-thread-count max-accept-count max-waiting-count
                     worker-thread-name-format)))

(defmethod reinitialize-instance :before
    ((taskmaster recycling-taskmaster)
     &key (max-thread-count (hunchentoot:taskmaster-max-thread-count taskmaster))
       (max-accept-count (hunchentoot:taskmaster-max-accept-count taskmaster))
       (max-waiting-count (taskmaster-max-waiting-count taskmaster))
       (standby-thread-count (taskmaster-standby-thread-count taskmaster))
       (worker-thread-name-format (taskmaster-worker-thread-name-format taskmaster)))
  (check-arguments (or standby-thread-count (default-standby max-thread-count))
                   max-thread-count max-accept-count max-waiting-count
                   (or worker-thread-name-format *default-worker-thread-name-format*)))

(defun resize-engine (taskmaster)
  "Gives the engine of TASKMASTER, if there is one, the current limits on threads."
  (when (application-engine taskmaster)
    (resize-pool (application-engine taskmaster)
                 :standby (taskmaster-standby-thread-count taskmaster)
                 :thread-limit (hunchentoot:taskmaster-max-thread-count taskmaster))))

(defmethod reinitialize-instance :after ((taskmaster recycling-taskmaster) &key)
  (fill-defaults taskmaster)
  (let ((engine (application-engine taskmaster)))
    (when engine
      (setf (engine-accept-limit engine) (hunchentoot:taskmaster-max-accept-count taskmaster)
            (client-waits-limit (engine-client-waits engine))
            (taskmaster-max-waiting-count taskmaster))
      (resize-engine taskmaster))))

;;; Changing them at run time

(defgeneric (setf taskmaster-standby-thread-count) (count taskmaster)
  (:documentation "Makes COUNT, an integer above 0, the number of threads that TASKMASTER keeps when
there is nothing to do.  Signals HUNCHENTOOT:PARAMETER-ERROR.")
  (:method (count (taskmaster recycling-taskmaster))
    (check-thread-counts count (hunchentoot:taskmaster-max-thread-count taskmaster))
    (setf (slot-value taskmaster 'standby-thread-count) count)
    (resize-engine taskmaster)
    count))

(defun standby-below (maximum taskmaster)
  "The standby count of TASKMASTER, or MAXIMUM, where that is less."
  (let ((standby (taskmaster-standby-thread-count taskmaster)))
    (if (typep maximum '(integer 1))
        (min standby maximum)
        standby)))

(defmethod (setf hunchentoot:taskmaster-max-thread-count) :before
    (value (taskmaster recycling-taskmaster))
  (check-thread-counts (standby-below value taskmaster) value)
  (check-accept-count (hunchentoot:taskmaster-max-accept-count taskmaster) value))

(defmethod (setf hunchentoot:taskmaster-max-thread-count) :after
    (value (taskmaster recycling-taskmaster))
  ;; A lower maximum lowers the standby count, too.
  (setf (slot-value taskmaster 'standby-thread-count) (standby-below value taskmaster))
  (resize-engine taskmaster))

(defmethod (setf hunchentoot:taskmaster-max-accept-count) :before
    (value (taskmaster recycling-taskmaster))
  (check-accept-count value (hunchentoot:taskmaster-max-thread-count taskmaster)))

(defmethod (setf hunchentoot:taskmaster-max-accept-count) :after
    (value (taskmaster recycling-taskmaster))
  (when (application-engine taskmaster)
    (setf (engine-accept-limit (application-engine taskmaster)) value)))

;;; Hunchentoot's protocol of taskmasters

(defmethod (setf hunchentoot:taskmaster-acceptor) :before
    (acceptor (taskmaster recycling-taskmaster))
  "START of ACCEPTOR calls this first.  Signals an error while the threads of TASKMASTER serve
another acceptor, since they would serve its connections as those of ACCEPTOR."
  (let ((engine (application-engine taskmaster)))
    (when (and engine
               (not (engine-stopped-p engine))
               (not (eq acceptor (hunchentoot:taskmaster-acceptor taskmaster))))
      (hunchentoot:parameter-error
       "~A cannot start with a taskmaster whose acceptor, ~A, is started: each needs a TASKMASTER ~
        of its own."
       acceptor (hunchentoot:taskmaster-acceptor taskmaster)))))

(defgeneric parks-connections-p (acceptor)
  (:documentation "True when PROCESS-CONNECTION of ACCEPTOR leaves the closing of sockets to the
engine.")
  (:method ((acceptor hunchentoot:acceptor))
    nil))

(defun make-engine (taskmaster acceptor)
  "An engine for ACCEPTOR, which is listening, with the arguments of TASKMASTER."
  (funcall (if (and (taskmaster-parking-p taskmaster)
                    (readiness-supported-p)
                    (parks-connections-p acceptor))
               #'make-ready-engine
               #'make-blocking-engine)
           taskmaster (acceptor-listener acceptor)
           :standby (taskmaster-standby-thread-count taskmaster)
           :thread-limit (hunchentoot:taskmaster-max-thread-count taskmaster)
           :accept-limit (hunchentoot:taskmaster-max-accept-count taskmaster)
           :waiting-limit (taskmaster-max-waiting-count taskmaster)
           :idle-seconds (seconds-for taskmaster :idle)))

(defmethod hunchentoot:execute-acceptor ((taskmaster recycling-taskmaster))
  (let* ((acceptor (hunchentoot:taskmaster-acceptor taskmaster))
         (engine (make-engine taskmaster acceptor)))
    (setf (taskmaster-rejections taskmaster) (make-rejections)
          (taskmaster-failed-handshakes taskmaster) (make-failed-handshakes))
    ;; Before the first worker runs, since handlers use it, and so does STOP.
    (setf (application-engine taskmaster) engine)
    (note-engine acceptor engine)
    (start-engine engine)))

(defmethod hunchentoot:shutdown ((taskmaster recycling-taskmaster))
  (when (application-engine taskmaster)
    (stop-engine (application-engine taskmaster)))
  taskmaster)

(defmethod hunchentoot:taskmaster-thread-count ((taskmaster recycling-taskmaster))
  (let ((engine (application-engine taskmaster)))
    (if engine
        (getf (engine-statistics engine) :threads)
        0)))

(defmethod hunchentoot:handle-incoming-connection ((taskmaster recycling-taskmaster) socket)
  (hunchentoot:process-connection (hunchentoot:taskmaster-acceptor taskmaster) socket))

(defmethod hunchentoot:too-many-taskmaster-requests ((taskmaster recycling-taskmaster) socket)
  (declare (ignore socket))
  (tell-of-refusal taskmaster (hunchentoot:taskmaster-max-thread-count taskmaster)))
