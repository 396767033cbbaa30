(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; The phases of an engine.
;;;;
;;;;   :new       not started            -> :running
;;;;   :running   accepts and serves     -> :draining, :stopping
;;;;   :draining  accepts no more, serves what was accepted, ends idle connections
;;;;                                     -> :stopping, :stopped
;;;;   :stopping  serves nothing more than the requests that run
;;;;                                     -> :stopped
;;;;   :stopped   what was left behind was reported; an engine starts only once

(defclass engine ()
  ((service :initarg :service :reader engine-service)
   (listener :initarg :listener :reader engine-listener)
   (standby :initarg :standby :accessor engine-standby
            :documentation "How many workers may wait at a time; as many are made at start.")
   (thread-limit :initarg :thread-limit :accessor engine-thread-limit
                 :documentation "How many connections may be served at a time, or NIL.")
   (accept-limit :initarg :accept-limit :initform :unlimited :accessor engine-accept-limit
                 :documentation "What happens to a connection beyond THREAD-LIMIT:
  :UNLIMITED  it waits, in the kernel, until a worker accepts it;
  an integer  it is accepted, and waits unless that many are open already: then REFUSEd;
  NIL         it is accepted and REFUSEd.")
   (lock :initform (bt:make-lock "engine") :reader engine-lock
         :documentation "Guards all slots below.  Held for a few instructions only, never
while something is waited for or the service is called.")
   (changed :initform (bt:make-condition-variable) :reader engine-changed
            :documentation "Notified when a worker came or went; START and STOP wait on it.")
   (bell :initform (bt:make-condition-variable) :reader engine-bell
         :documentation "Notified when the sentinel has something to do before its tick.")
   (phase :initform :new :accessor engine-phase)
   (sentinel :initform nil :accessor engine-sentinel
             :documentation "The sentinel's thread, which lives from start to stop.")
   (doors-open-p :initform nil :accessor engine-doors-open-p
                 :documentation "True while there is something for CLOSE-DOORS to give back.")
   (workers :initform '() :accessor engine-workers
            :documentation "Every worker that has not ended.")
   (leavers :initform '() :accessor engine-leavers
            :documentation "Threads of workers that ended and were not joined yet.")
   (counts :initform (make-array (length *worker-states*) :initial-element 0)
           :reader engine-counts
           :documentation "How many workers are in each state.")
   (queue :initform '() :accessor engine-queue
          :documentation "Accepted connections that wait for a worker, oldest first.")
   (crowded-p :initform nil :accessor engine-crowded-p
              :documentation "True while a connection waits for a worker and none is free.")
   (accept-trouble :initform nil :accessor engine-accept-trouble
                   :documentation "The kind of ACCEPT-FAILED that was noted and lasts.")
   (last-error :initform nil :accessor engine-last-error
               :documentation "The condition that last kept a thread from being made.")
   (made :initform 0 :accessor engine-made)
   (accepted :initform 0 :accessor engine-accepted)
   (open :initform 0 :accessor engine-open)
   (refused :initform 0 :accessor engine-refused)
   (failed :initform 0 :accessor engine-failed
           :documentation "Errors that got out of SERVE, of REFUSE, of making a thread.")
   (expired :initform 0 :accessor engine-expired
            :documentation "Connections ended by the sentinel: overdue, or idle in a crowd.")
   (expired-by :initform (no-expirations) :accessor engine-expired-by
               :documentation "The same by kind, a plist; see *DEADLINE-KINDS*.")
   (served-before :initform 0 :accessor engine-served-before
                  :documentation "Requests served by workers that have ended.")
   (started :initform nil :accessor engine-started :documentation "In MILLISECONDS.")
   (stopped :initform nil :accessor engine-stopped :documentation "In MILLISECONDS."))
  (:documentation "A pool of workers over the connections of one listener."))

(defmacro with-engine ((engine) &body body)
  "Runs BODY, which is short and waits for nothing, under the lock of ENGINE, whole: neither
an interrupt nor the death of the thread can leave its counts half changed."
  `(uninterruptibly
     (bt:with-lock-held ((engine-lock ,engine))
       ,@body)))

(defun state-index (state)
  (position state *worker-states*))

(define-compiler-macro state-index (&whole form state)
  (if (keywordp state) (position state *worker-states*) form))

(defun worker-count (engine &rest states)
  "How many workers of ENGINE are in one of STATES."
  (loop for state in states sum (svref (engine-counts engine) (state-index state))))

(defun pool-size (engine)
  (worker-count engine :starting :waiting :serving :idling :active :benched))

(defgeneric attended-count (engine)
  (:documentation "How many connections of ENGINE have a worker.  Under the lock.")
  (:method ((engine engine))
    (worker-count engine :serving :idling)))

(defgeneric coming-count (engine)
  (:documentation "How many workers of ENGINE wait for a connection or soon will.  Under the
lock.")
  (:method ((engine engine))
    (worker-count engine :starting :waiting)))

(defun running-p (engine)
  (eq (engine-phase engine) :running))

(defun draining-p (engine)
  (eq (engine-phase engine) :draining))

(defun winding-down-p (engine)
  "True when no connection of ENGINE should be kept open for another request: it drains or
stops, or others wait for a worker."
  (or (engine-crowded-p engine) (not (running-p engine))))

(defun inside-worker-p (engine)
  "True in the threads of the workers of ENGINE."
  (and *worker* (eq (worker-engine *worker*) engine)))

(defgeneric work (engine worker)
  (:documentation "The life of WORKER: takes connections of ENGINE and serves them until it
is to end.  Called in its thread."))

(defgeneric make-pool-worker (engine number)
  (:documentation "A worker for ENGINE, without its thread; NUMBER tells it from others.")
  (:method ((engine engine) number)
    (make-worker engine number)))

(defgeneric open-doors (engine)
  (:documentation "Prepares ENGINE, before its first worker is made.")
  (:method ((engine engine))
    nil))

(defgeneric close-doors (engine)
  (:documentation "Gives back what OPEN-DOORS acquired: ENGINE has stopped, and its last worker
is gone.")
  (:method ((engine engine))
    nil))

(defgeneric watch-over (engine)
  (:documentation "The life of the sentinel of ENGINE, until that is stopped."))

(defgeneric tend (engine)
  (:documentation "What the sentinel of ENGINE looks after at each tick, besides deadlines
and the size of the pool.  Called under the lock.")
  (:method ((engine engine))
    nil))
