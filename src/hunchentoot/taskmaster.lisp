(in-package #:hunchentoot-recycling-taskmaster)

;;;; The taskmaster: its arguments, and the answers of Hunchentoot's side to the questions of the
;;;; engine and the server.  It is the service of the one and the application of the other.

(defvar *default-standby-thread-count* 8
  "The default of :STANDBY-THREAD-COUNT: how many threads a RECYCLING-TASKMASTER keeps when there is
nothing to do, an integer above 0.")

(defvar *parking-by-default* t
  "The default of :PARKING: true when a connection between two requests has no thread, where the
platform supports that.")

(defvar *work* nil
  "The function that the current worker is to call; NIL in other threads.")

(defclass recycling-taskmaster (http-service hunchentoot:multi-threaded-taskmaster)
  ((standby-thread-count :initarg :standby-thread-count)
   (max-thread-count :initarg :max-thread-count :reader hunchentoot:taskmaster-max-thread-count)
   (max-accept-count :initarg :max-accept-count :reader hunchentoot:taskmaster-max-accept-count)
   (worker-thread-name-format :initarg :worker-thread-name-format)
   (parking :initarg :parking :accessor taskmaster-parking-p)
   (silent-streams :initform (make-channel :when-full :skip) :reader silent-streams
                   :documentation "A channel of the event streams that get comments.")
   (heart-engine :initform nil :accessor heart-engine
                 :documentation "The engine whose timer for these runs, or NIL; guarded by the
lock of the channel."))
  (:default-initargs
   :standby-thread-count nil
   :max-thread-count *default-max-thread-count*
   :max-accept-count :unlimited
   :parking *parking-by-default*
   :worker-thread-name-format "http-worker-~A") ; not Hunchentoot's, see MAKE-ENGINE-THREAD
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
  :WORKER-THREAD-NAME-FORMAT  a control string that prints its one argument, a string of the
                              acceptor's address and port and the thread's number.
                              LIST-CONNECTIONS tells which connection a thread serves
  :PARKING                    true, the default: a connection between two requests has no thread,
                              where the platform supports that; NIL: it keeps its thread.  Where
                              connections are parked, threads run under SCHED_BATCH (sched(7)) and
                              their sleeps may last 0.25 ms longer, so that they interrupt each
                              other less; threads that a handler makes inherit both

Equal :STANDBY-THREAD-COUNT and :MAX-THREAD-COUNT make a fixed pool.  Signals
HUNCHENTOOT:PARAMETER-ERROR when an argument makes no sense."))

;;; Arguments

(defmacro with-parameter-errors (&body body)
  "Evaluates BODY.  Turns UNFIT-ARGUMENT into HUNCHENTOOT:PARAMETER-ERROR."
  `(handler-case (progn ,@body)
     (unfit-argument (condition)
       (hunchentoot:parameter-error "~A" condition))))

(defmethod shared-initialize :before
    ((taskmaster recycling-taskmaster) slot-names &rest initargs)
  "Checks the arguments before any slot changes."
  (declare (ignore slot-names))
  (flet ((value (name slot)
           (getf initargs name (and (slot-boundp taskmaster slot) (slot-value taskmaster slot)))))
    (with-parameter-errors
      (check-arguments initargs
                       (list* '(:standby-thread-count (or null (and index (integer 1)))
                                "an integer above 0")
                              (arguments-of :threads)))
      (check-accept-count (value :max-accept-count 'max-accept-count)
                          (value :max-thread-count 'max-thread-count)))))

(defmethod shared-initialize :after ((taskmaster recycling-taskmaster) slot-names &key)
  "Settles how many threads are kept, and gives the engine of TASKMASTER, if there is one, the
current limits."
  (declare (ignore slot-names))
  (with-slots (standby-thread-count max-thread-count max-accept-count) taskmaster
    (setf standby-thread-count (min (or standby-thread-count *default-standby-thread-count*)
                                    (or max-thread-count most-positive-fixnum)))
    (let ((engine (application-engine taskmaster)))
      (when engine
        (setf (engine-accept-limit engine) max-accept-count)
        (resize-pool engine :standby standby-thread-count :thread-limit max-thread-count)))))

(defun taskmaster-standby-thread-count (taskmaster)
  "How many threads of TASKMASTER, a RECYCLING-TASKMASTER, are made at start and kept when there is
nothing to do, an integer above 0, and at most MAX-THREAD-COUNT.  Can be set with SETF, also while
the server runs: missing threads are made at once, and threads beyond the number end when they have
nothing to do.  SETF signals HUNCHENTOOT:PARAMETER-ERROR."
  (slot-value taskmaster 'standby-thread-count))

(defun (setf taskmaster-standby-thread-count) (count taskmaster)
  "Makes COUNT, an integer above 0, the number of threads that TASKMASTER keeps when there is
nothing to do.  Signals HUNCHENTOOT:PARAMETER-ERROR."
  (reinitialize-instance taskmaster :standby-thread-count count)
  count)

(defmethod (setf hunchentoot:taskmaster-max-thread-count) (value (taskmaster recycling-taskmaster))
  (reinitialize-instance taskmaster :max-thread-count value)
  value)

(defmethod (setf hunchentoot:taskmaster-max-accept-count) (value (taskmaster recycling-taskmaster))
  (reinitialize-instance taskmaster :max-accept-count value)
  value)

;;; Hunchentoot's protocol of taskmasters

(defmethod (setf hunchentoot:taskmaster-acceptor) :before
    (acceptor (taskmaster recycling-taskmaster))
  "START of ACCEPTOR calls this first.  Signals an error where ACCEPTOR is none of ours, and while
the threads of TASKMASTER serve another, since they would serve its connections as those of
ACCEPTOR."
  (unless (typep acceptor 'parallel-acceptor)
    (hunchentoot:parameter-error
     "~A needs a taskmaster of Hunchentoot's: a RECYCLING-TASKMASTER is for a PARALLEL-ACCEPTOR."
     acceptor))
  (let ((engine (application-engine taskmaster)))
    (when (and engine
               (not (engine-stopped-p engine))
               (not (eq acceptor (hunchentoot:taskmaster-acceptor taskmaster))))
      (hunchentoot:parameter-error
       "~A cannot start with a taskmaster whose acceptor, ~A, is started: each needs a TASKMASTER ~
        of its own."
       acceptor (hunchentoot:taskmaster-acceptor taskmaster)))))

(defmethod hunchentoot:execute-acceptor ((taskmaster recycling-taskmaster))
  (let ((acceptor (hunchentoot:taskmaster-acceptor taskmaster)))
    (start-engine
     ;; Before the first worker runs, since handlers use it, and so does STOP.
     (setf (slot-value acceptor 'engine)
           (make-engine-on taskmaster (acceptor-listener acceptor)
                           (taskmaster-parking-p taskmaster)
                           :standby (taskmaster-standby-thread-count taskmaster)
                           :thread-limit (hunchentoot:taskmaster-max-thread-count taskmaster)
                           :accept-limit (hunchentoot:taskmaster-max-accept-count taskmaster))))))

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
  "Does nothing, since TURN-AWAY logs."
  (declare (ignore socket)))

;;; Questions of the server

(defmethod reads-first-p ((taskmaster recycling-taskmaster))
  (slot-value (hunchentoot:taskmaster-acceptor taskmaster) 'reads-first-p))

(defmethod application-limits ((taskmaster recycling-taskmaster))
  (slot-value (hunchentoot:taskmaster-acceptor taskmaster) 'limits))

(defmethod application-compression ((taskmaster recycling-taskmaster))
  (slot-value (hunchentoot:taskmaster-acceptor taskmaster) 'compression-in-use))

(defmethod read-seconds ((taskmaster recycling-taskmaster))
  (hunchentoot:acceptor-read-timeout (hunchentoot:taskmaster-acceptor taskmaster)))

(defmethod write-seconds ((taskmaster recycling-taskmaster))
  (hunchentoot:acceptor-write-timeout (hunchentoot:taskmaster-acceptor taskmaster)))

(defmethod encrypted-p ((taskmaster recycling-taskmaster))
  (hunchentoot:acceptor-ssl-p (hunchentoot:taskmaster-acceptor taskmaster)))

(defmethod trusted-proxies ((taskmaster recycling-taskmaster))
  (acceptor-trusted-proxies (hunchentoot:taskmaster-acceptor taskmaster)))

(defmethod proxy-protocol-p ((taskmaster recycling-taskmaster))
  (slot-value (hunchentoot:taskmaster-acceptor taskmaster) 'proxy-protocol))

(defmethod http2 ((taskmaster recycling-taskmaster))
  (slot-value (hunchentoot:taskmaster-acceptor taskmaster) 'http2))

(defmethod http2-streams ((taskmaster recycling-taskmaster))
  (slot-value (hunchentoot:taskmaster-acceptor taskmaster) 'http2-streams))

(defmethod program-stream ((taskmaster recycling-taskmaster) socket-stream)
  (let ((hunchentoot:*acceptor* (hunchentoot:taskmaster-acceptor taskmaster)))
    (hunchentoot:initialize-connection-stream hunchentoot:*acceptor* socket-stream)))

;;; Questions of the engine

;; Programs wait for the server to end by joining the first thread whose name has "hunchentoot" in
;; it: so the sentinel, which lives until STOP, has the name of Hunchentoot's listener, and no other
;; thread has such a name.
(defmethod make-engine-thread ((taskmaster recycling-taskmaster) role thunk)
  (let ((place (place-of (hunchentoot:taskmaster-acceptor taskmaster))))
    (hunchentoot:start-thread
     taskmaster
     (if (eq :sentinel role)
         (lambda ()
           (setf (acceptor-process taskmaster) (bt:current-thread))
           (funcall thunk))
         thunk)
     :name (case role
             (:sentinel (format nil "hunchentoot-listener-~A" place))
             (t (format nil (slot-value taskmaster 'worker-thread-name-format)
                        (format nil "~A-~D" place role)))))))

(defmethod call-as-worker ((taskmaster recycling-taskmaster) thunk)
  ;; Through ACCEPT-CONNECTIONS, so that a program's methods around it wrap each worker.
  (let ((acceptor (hunchentoot:taskmaster-acceptor taskmaster))
        (*work* thunk))
    (call-with-worker-buffers (lambda () (hunchentoot:accept-connections acceptor)))))

(defmethod turn-away :before ((taskmaster recycling-taskmaster) connection reason)
  (unless (eq :address reason)
    (hunchentoot:too-many-taskmaster-requests taskmaster (connection-usocket connection)))
  (log-rejection (hunchentoot:taskmaster-acceptor taskmaster) (client-address connection)
                 hunchentoot:+http-service-unavailable+))
