(in-package #:hunchentoot-recycling-taskmaster-test)

;;; A listener and sockets made of latches, so that tests decide what the engine sees,
;;; and when.

(def-suite engine :in all
  :description "Workers, and how they come to connections; no network, no HTTP.")

;;; A socket on which requests arrive when a test says so

(defclass fake-socket ()
  ((requests :initform 0 :accessor fake-requests
             :documentation "How many requests arrived and were not served.")
   (half-closed :initform nil :accessor fake-half-closed)
   (ended :initform nil :accessor fake-ended)
   (closed :initform nil :accessor fake-closed)))

(defun arrive (socket)
  "Lets a request arrive on SOCKET."
  (incf (fake-requests socket)))

(defmethod platform:await-input ((socket fake-socket) &key until)
  (poll (lambda () (or (plusp (fake-requests socket)) (fake-ended socket)))
        (if until (/ (platform:milliseconds-left until) 1000) *patience*)))

(defmethod platform:shut-down ((socket fake-socket) direction)
  (unless (eq direction :input)
    (setf (fake-half-closed socket) t))
  (unless (eq direction :output)
    (setf (fake-ended socket) t)))

(defmethod platform:socket-open-p ((socket fake-socket))
  (not (fake-closed socket)))

(defmethod platform:close-socket ((socket fake-socket))
  (setf (fake-closed socket) t))

;;; A listener to which tests hand sockets, or conditions to be signalled

(defclass fake-listener ()
  ((lock :initform (bt:make-lock "fake listener") :reader fake-lock)
   (backlog :initform '() :accessor fake-backlog)
   (woken :initform nil :accessor fake-woken)
   (deaf :initform nil :accessor fake-deaf
         :documentation "True when waking has no effect.")))

(defun hand-over (listener thing)
  "Puts THING, a socket, a condition or NIL, at the end of LISTENER's backlog; returns it."
  (bt:with-lock-held ((fake-lock listener))
    (setf (fake-backlog listener) (append (fake-backlog listener) (list thing))))
  thing)

(defun connect-fake (listener &optional (requests 1))
  "Lets a client with REQUESTS requests come to LISTENER; returns the server's socket."
  (let ((socket (make-instance 'fake-socket)))
    (setf (fake-requests socket) requests)
    (hand-over listener socket)))

(defun take-from-backlog (listener)
  "A list of the oldest thing in LISTENER's backlog; NIL when it is empty."
  (bt:with-lock-held ((fake-lock listener))
    (when (fake-backlog listener)
      (list (pop (fake-backlog listener))))))

(defmethod platform:accept-connection ((listener fake-listener))
  (let ((taken (loop for taken = (take-from-backlog listener)
                     until (or taken (fake-woken listener))
                     do (platform:interruptibly
                          (poll (lambda () (or (fake-backlog listener) (fake-woken listener)))
                                1))
                     finally (return taken))))
    (cond ((null taken) (error 'platform:listener-closed :cause "it was woken"))
          ((typep (first taken) 'condition) (error (first taken)))
          (t (first taken)))))

(defmethod platform:pending-connection-p ((listener fake-listener))
  (and (fake-backlog listener) t))

(defmethod platform:wake-listener ((listener fake-listener) waiting-count)
  (declare (ignore waiting-count))
  (unless (fake-deaf listener)
    (setf (fake-woken listener) t)))

;;; A service that does what a test says

(defvar *address-limit* 1000000
  "How many connections one address may have with the services of tests: more than any test opens,
so that each test sees whether they are counted to their ends.")

(defclass fake-service (engine:service)
  ((handler :initarg :handler :reader fake-handler)
   (notes :initform (make-recorder) :reader fake-notes)
   (refusals :initform (make-recorder) :reader fake-refusals)
   (making :initform (constantly nil) :initarg :making :reader fake-making
           :documentation "Called before a thread is made.")
   (ending :initform (constantly nil) :initarg :ending :reader fake-ending
           :documentation "Called by a worker that has left the pool.")))

(defmethod engine:serve ((service fake-service) connection resuming-p)
  (declare (ignore resuming-p))
  (let ((socket (engine:connection-socket connection)))
    (cond ((plusp (fake-requests socket))
           (decf (fake-requests socket))
           (prog1 (funcall (fake-handler service) socket)
             (engine:count-request connection 0)))
          (t :close))))

(defmethod engine:give-notice ((service fake-service) connection)
  (record (fake-refusals service) (engine:connection-socket connection)))

(defmethod engine:address-limit ((service fake-service) connection)
  (declare (ignore connection))
  (values *address-limit* 7))

(defun counted-connections (engine)
  "How many connections of ENGINE are counted for the address that the services of tests tell."
  (gethash 7 (engine::address-counts-table (engine::engine-address-counts engine)) 0))

(defun check-counts (engine)
  "Checks that each connection of ENGINE that is counted for its address is open."
  (eventually ("the connections that ended to be counted no more")
    (<= (counted-connections engine) (statistic engine :open))))

(defmethod engine:note ((service fake-service) level control &rest arguments)
  (let ((notes (fake-notes service)))
    (if (functionp notes)               ; which fails
        (funcall notes)
        (record notes (cons level (apply #'format nil control arguments))))))

(defmethod engine:make-engine-thread :before ((service fake-service) role thunk)
  (declare (ignore thunk))
  (when (integerp role)
    (funcall (fake-making service) role)))

(defmethod engine:call-as-worker :after ((service fake-service) thunk)
  (declare (ignore thunk))
  (funcall (fake-ending service)))

(defun error-notes (service)
  "What SERVICE was told that went wrong."
  (remove :error (recorded (fake-notes service)) :key #'first :test-not #'eq))

;;; Tests

(defvar *listener*)
(defvar *service*)

(defun make-engine (handler &key (standby 1) thread-limit (accept-limit :unlimited)
                              (making (constantly nil)) (ending (constantly nil)))
  "A blocking engine whose requests are answered by HANDLER, a function of a fake socket that
returns what SERVE does."
  (setf *listener* (make-instance 'fake-listener)
        *service* (make-instance 'fake-service :handler handler :making making
                                                :ending ending))
  (engine:make-blocking-engine *service* *listener* :standby standby
                               :thread-limit thread-limit :accept-limit accept-limit))

(defun stop-patiently (engine)
  "Stops ENGINE, not softly, and waits for its threads for as long as even a busy machine needs."
  (engine:stop-engine engine :timeout (* 6 *patience*)))

(defmacro with-running-engine ((engine handler &rest options) &body body)
  "Evaluates BODY while ENGINE, made by MAKE-ENGINE of HANDLER and OPTIONS, runs."
  `(let* (*listener* *service*
          (,engine (make-engine ,handler ,@options)))
     (engine:start-engine ,engine)
     (unwind-protect (progn ,@body)
       (stop-patiently ,engine)
       (check-counts ,engine))))

(defun thread-that-never-began ()
  "A thread that has ended without having done anything, as one does that is destroyed before it
begins."
  (let ((thread (bt:make-thread (constantly nil))))
    (platform:join-thread thread *patience*)
    thread))

(defun statistic (engine name)
  "One of the figures of ENGINE."
  (getf (engine:engine-statistics engine) name))

(defun closed-p (socket)
  "Waits until the engine has closed SOCKET, and returns true."
  (eventually ("the engine to close a connection")
    (fake-closed socket)))

(defun wait-for-statistic (engine name value)
  "Waits until the figure NAME of ENGINE is VALUE, and returns true."
  (eventually ((format nil "~A to be ~A, in ~A" name value
                       (engine:engine-statistics engine)))
    (eql value (statistic engine name))))

(defun sentinel-of (engine)
  "The thread of the sentinel of ENGINE; NIL when it has none."
  (sentinel-thread (engine-sentinel engine)))

(defun launch-after (engine)
  "When ENGINE makes its next thread, in MILLISECONDS; 0 for at once."
  (threads-launch-after (engine-threads engine)))

(defun (setf launch-after) (time engine)
  (setf (threads-launch-after (engine-threads engine)) time))
