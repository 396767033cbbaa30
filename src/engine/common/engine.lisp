(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; The phases of an engine.
;;;;
;;;;   :new       not started                                         -> :running
;;;;   :running   accepts and serves                                  -> any later one
;;;;   :leaving   likewise, but each request as the last of its       -> :draining, :stopping
;;;;              connection, so that clients go elsewhere
;;;;   :draining  serves the requests that have come, each as the     -> :stopping, :stopped
;;;;              last of its connection; ends idle connections
;;;;              after a moment
;;;;   :stopping  serves only the requests that run                   -> :stopped
;;;;   :stopped   has reported the workers that it left behind; an engine starts only once

(defparameter *tick* 0.25
  "Seconds between two looks of the sentinel while there is something to look after, when nobody
wakes it.")

(defparameter *idle-tick* 1
  "Seconds between two looks of the sentinel when nothing happens.")

(defstruct (tally (:include opaque) (:copier nil))
  "The moments and the counts of an engine, under its lock, except the counters."
  (started nil)                         ; in MILLISECONDS
  (stopped nil)                         ; likewise
  (drain-end nil :type (or null fixnum)) ; until when a drain waits for requests, likewise
  (made 0 :type fixnum)                 ; workers
  (resumes 0 :type fixnum)              ; workers that were suspended
  (suspends 0 :type fixnum)             ; workers
  (accepted (make-counter) :read-only t) ; connections, since the start
  (open (make-counter) :read-only t)    ; connections, now
  ;; Octets that connections sent after their last request was counted.
  (sent (make-counter) :read-only t)
  (refused-by (zeros *refusal-reasons*) :type list) ; connections, by why; see *REFUSAL-REASONS*
  (expired-by (zeros *deadline-kinds*) :type list) ; connections, by why; see *DEADLINE-KINDS*
  (failed 0 :type fixnum)               ; errors of the service, of making a thread
  (stalls 0 :type fixnum)               ; calls of SERVE that claimed input and served none
  ;; How long requests took that were served by workers that have ended, and by resuming threads.
  (served-before (make-tally-sheet) :read-only t))

(defstruct (sentinel (:include opaque) (:copier nil))
  "The thread that looks after an engine from its start to its stop: see sentinel.lisp.  Under the
lock of the engine."
  ;; That of the caller of START before it has begun; NIL before that, and after it has ended.
  (thread nil)
  (failing-parts '() :type list)        ; parts of its work that failed last, and that was noted
  ;; Notified when it has something to do before its tick.
  (wakeup (bt:make-condition-variable) :read-only t))

(defstruct (accept-state (:include opaque) (:conc-name accept-) (:copier nil))
  "Whether and how an engine accepts connections from its listener.  Under the lock of the engine."
  (open-p nil)                          ; it does
  (users 0 :type fixnum)                ; threads that stop it, and use the listener meanwhile
  (trouble nil)                         ; the kind of ACCEPT-FAILED that was noted and lasts
  (again-p nil))                        ; connections may wait that could not be accepted

(defstruct (threads (:include opaque) (:copier nil))
  "The threads that an engine could not make, or has yet to join: see engine-threads.lisp.  Under
the lock of the engine."
  (trouble-p nil)                       ; one could not be made; that was logged, and lasts
  (last-error nil)                      ; the last condition that kept one from being made
  (launch-after 0 :type fixnum)         ; none is made before that, in MILLISECONDS
  (exited '() :type list))              ; those of workers and timers that ended

(defstruct (client-waits (:include opaque) (:copier nil))
  "The workers of an engine that wait for clients: see client-waits.lisp.  Under the lock of the
engine."
  ;; How many workers may be among CLIENT-WAITS at a time, an integer above 0; :HALF of the
  ;; engine's thread limit, or NIL for no limit.
  (limit :half :type (or (integer 1 #.most-positive-fixnum) (member nil :half)))
  (list '() :type list))                ; of CLIENT-WAITs

(defstruct (address-counts (:include opaque) (:constructor make-address-counts ()) (:copier nil))
  "How many connections of an engine each address has open: see address-counts.lisp."
  (lock (bt:make-lock "addresses") :read-only t)
  (table (make-hash-table) :read-only t)) ; by address, an integer; no number is 0

(defstruct (engine (:include opaque) (:constructor nil) (:copier nil))
  "A pool of workers over the connections of one listener."
  ;; The SERVICE that ENGINE works for.
  (service nil :read-only t)
  ;; The listener of ENGINE, as the platform's functions take it.
  (listener nil :read-only t)
  ;; How many workers, an integer above 0, ENGINE has at its start and keeps when there is nothing
  ;; to do.
  (standby 1 :type fixnum)
  ;; How many connections of ENGINE may be served at a time, an integer, or NIL for no limit.
  (thread-limit nil :type (or null fixnum))
  ;; What happens to a connection of ENGINE beyond its thread limit: :UNLIMITED it waits, in the
  ;; kernel, until a worker accepts it; an integer it is accepted, and waits unless that many are
  ;; open already: then it is refused: see GIVE-NOTICE; NIL it is accepted and refused.
  (accept-limit :unlimited :type (or null fixnum (eql :unlimited)))
  ;; Guards all slots below.  Held for a few instructions only, never while something is waited
  ;; for or the service is called.
  (lock (bt:make-lock "engine") :read-only t)
  ;; Notified when a worker came or went; START and STOP wait on it.
  (changed (bt:make-condition-variable) :read-only t)
  (phase :new :type keyword)
  (sentinel (make-sentinel) :type sentinel :read-only t)
  ;; True while RELEASE-RESOURCES may have something to give back.
  (resources-held-p nil)
  (accept-state (make-accept-state) :type accept-state :read-only t)
  (workers '() :type list)              ; every one that has not ended
  (threads (make-threads) :type threads :read-only t)
  ;; How many workers are in each state.
  (counts (make-array (length *worker-states*) :initial-element 0) :read-only t)
  (queue '() :type list)                ; accepted connections without a worker, oldest first
  ;; The CLIENT-WAITS of ENGINE: how many of its workers may wait for clients, and those that do.
  (client-waits (make-client-waits) :type client-waits :read-only t)
  (address-counts (make-address-counts) :type address-counts :read-only t)
  (overloaded-p nil)                    ; a connection waits for a worker and none is free
  (tally (make-tally) :type tally :read-only t)
  (timers (make-timers) :type timers :read-only t)) ; see timer-heap.lisp

(defmethod print-object ((engine engine) stream)
  (print-unreadable-object (engine stream :type t :identity t)
    (format stream "~(~A~)" (engine-phase engine))))

(defmacro with-engine ((engine) &body body)
  "Runs BODY, which is short and waits for nothing, under the lock of ENGINE.  No interrupt, nor
the death of the thread, can leave the counts of ENGINE half changed."
  `(with-lock-briefly ((engine-lock ,engine))
     ,@body))

(defun notify-sentinel (engine)
  "Has the sentinel of ENGINE look around before its tick.  Under the lock."
  (bt:condition-notify (sentinel-wakeup (engine-sentinel engine))))

(defun wait-for-change (engine seconds predicate)
  "Waits up to SECONDS, or for ever when NIL, until PREDICATE, called under the lock, is true;
returns its last value."
  (wait-until predicate (engine-changed engine) (engine-lock engine) seconds *tick*))

(defun countdown (seconds)
  "A function that returns how many of SECONDS from now, a real or NIL for no limit, are left."
  (let ((end (end-after seconds)))
    (lambda () (and end (/ (milliseconds-left end) 1000)))))

(defun state-index (state)
  (position state *worker-states*))

(defun worker-count (engine &rest states)
  "How many workers of ENGINE are in one of STATES."
  (loop for state in states sum (svref (engine-counts engine) (state-index state))))

(define-compiler-macro worker-count (&whole form engine &rest states)
  ;; Some are counted for each event.
  (if (every #'keywordp states)
      (let ((counts (gensym "COUNTS")))
        `(let ((,counts (engine-counts ,engine)))
           (declare (type simple-vector ,counts))
           (+ ,@(loop for state in states
                      collect `(the fixnum (svref ,counts ,(position state *worker-states*)))))))
      form))

(defun pool-size (engine)
  (worker-count engine :starting :waiting :serving :keep-alive :active :suspended))

(defun open-count (engine)
  "How many connections of ENGINE are open."
  (counter-count (tally-open (engine-tally engine))))

(defgeneric busy-count (engine)
  (:documentation "How many connections of ENGINE have a worker.  Under the lock.")
  (:method ((engine engine))
    (worker-count engine :serving :keep-alive)))

(defgeneric standby-count (engine)
  (:documentation "How many workers of ENGINE wait for a connection or soon will.  Under the
lock.")
  (:method ((engine engine))
    (worker-count engine :starting :waiting)))

(defun accepting-p (engine)
  "True if ENGINE accepts connections from its listener."
  (accept-open-p (engine-accept-state engine)))

(defun welcoming-p (engine)
  "True while ENGINE runs, and no stop of it, gentle or not, has begun."
  (eq (engine-phase engine) :running))

(defun running-p (engine)
  "True until a stop of ENGINE, gentle or not, ends what goes on without an end."
  (case (engine-phase engine)
    ((:running :leaving) t)))

(defun engine-stopped-p (engine)
  "True when ENGINE was stopped: it serves no more connections, save those left behind."
  (eq (engine-phase engine) :stopped))

(defun draining-p (engine)
  (eq (engine-phase engine) :draining))

(defun serving-p (engine)
  "True if ENGINE serves the requests that come to it."
  (case (engine-phase engine)
    ((:running :leaving :draining) t)))

(defun drain-over-p (engine now)
  "True when ENGINE drains and has, at NOW, in MILLISECONDS, waited long enough for requests that
were under way."
  (let ((end (tally-drain-end (engine-tally engine))))
    (and end (draining-p engine) (>= now end))))

(defun winding-down-p (engine)
  "True if connections of ENGINE that idle should end: ENGINE drains or stops, or connections wait
for a worker."
  (or (engine-overloaded-p engine) (not (running-p engine))))

(defun keeps-connections-p (engine)
  "True if the connections of ENGINE should be kept after the replies that are sent now."
  (and (welcoming-p engine) (not (engine-overloaded-p engine))))

(defgeneric milliseconds-queued (engine connection least)
  (:documentation "For how many milliseconds, an integer, the input of CONNECTION of ENGINE has
waited for a worker, which is the caller, and has just read it; 0 where that is less than LEAST, or
not known.  Costs next to nothing while no connection waits for long."))

(defvar *timed-engine* nil
  "In a timer thread, the engine that it belongs to; else NIL.")

(defun current-engine ()
  "The engine that the current thread, a worker or a timer thread, belongs to; else NIL."
  (if *worker* (worker-engine *worker*) *timed-engine*))

(defun inside-worker-p (engine)
  "True in the threads of the workers of ENGINE, and in that of its timers."
  (and engine (eq engine (current-engine))))

(defgeneric worker-loop (engine worker)
  (:documentation "The life of WORKER: takes connections of ENGINE and serves them until it
is to end.  Called in its thread."))

(defgeneric make-pool-worker (engine number)
  (:documentation "A worker for ENGINE, without its thread.  NUMBER distinguishes it from others.")
  (:method ((engine engine) number)
    (make-worker engine number)))

(defgeneric detach (engine connection)
  (:documentation "Removes CONNECTION, which the caller owns, from ENGINE, and leaves its socket
open for another owner.  Does nothing the second time.  Called by the worker that serves
CONNECTION, which defers interrupts until it has recorded the other owner."))

(defgeneric acquire-resources (engine)
  (:documentation "Prepares ENGINE, before its first worker is made.")
  (:method ((engine engine))
    nil))

(defgeneric release-resources (engine)
  (:documentation "Gives back the resources of ACQUIRE-RESOURCES: ENGINE has stopped, and its
last worker is gone.")
  (:method ((engine engine))
    nil))

(defgeneric accept-rest (engine seconds)
  (:documentation "Has the connections accepted that have come to the listener of ENGINE, which
drains.  Takes up to SECONDS, a real, while ENGINE accepts: new connections may come as fast, and
descriptors may be missing."))

(defgeneric sentinel-loop (engine)
  (:documentation "The life of the sentinel of ENGINE, until that is stopped."))

(defgeneric resume-all-deferred (engine)
  (:documentation "Has all connections of ENGINE that have waited since SERVE returned :DEFERRED
served: the phase of ENGINE has changed.")
  (:method (engine)
    "Does nothing: each connection has a worker, which looks itself."
    (declare (ignore engine))
    nil))
