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
;;;;
;;;; The states of a worker.
;;;;
;;;;   state         what its thread does                           may become
;;;;   :starting     is being made, or has run timers; it counts      :waiting :active
;;;;                 already, so that no second one is made for the   :serving :ended
;;;;                 same need
;;;;   :waiting      waits for a connection                         :serving :ended
;;;;   :serving      serves a request of its connection             :keep-alive :waiting :ended
;;;;   :keep-alive   keeps its connection, waits for its next       :serving :waiting :ended
;;;;                 request
;;;;   :active       calls the functions of timers                  :starting :ended
;;;;   :ended        left the pool; its thread ends by itself
;;;;
;;;; In the ready engine, where connections are not tied to workers, :ACTIVE stands for all in the
;;;; middle, and there is one more:
;;;;
;;;;   :active       waits for something to do, or does it          :suspended :ended
;;;;   :suspended    waits to be needed                             :active :ended
;;;;
;;;; A worker's state changes only by SET-WORKER-STATE, under the lock of its engine.

(defparameter *tick* 1/2
  "Seconds between two looks of the sentinel when nobody wakes it.")

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
  ;; How many milliseconds a connection may wait for its next request; NIL for no limit.
  (idle nil :type (or null fixnum) :read-only t)
  ;; Guards all slots below.  Held for a few instructions only, never while something is waited
  ;; for or the service is called.
  (lock (bt:make-lock "engine") :read-only t)
  ;; Notified when a worker came or went; START and STOP wait on it.
  (changed (bt:make-condition-variable) :read-only t)
  (phase :new :type keyword)
  (sentinel nil)                        ; its thread; NIL before it has begun, and after its end
  (sentinel-wakeup (bt:make-condition-variable) :read-only t) ; notified before its tick
  (accepting-p nil)                     ; it accepts connections from its listener
  (listener-lock (bt:make-lock "listener") :read-only t) ; see WITH-LISTENER
  (troubles '() :type list)             ; a plist of those that last; see NOTE-TROUBLE
  (launch-failed-p nil)                 ; no thread is made before the next tick
  (workers '() :type list)              ; every one that has not ended
  (queue '() :type list)                ; accepted connections without a worker, oldest first
  (client-waits '() :type list)         ; of its workers, for clients, the latest first
  (overloaded-p nil)                    ; a connection waits for a worker, and each has one
  (timers (make-timers) :read-only t)
  ;; How many connections each address, an integer, has open; no number is 0.
  (addresses (make-hash-table) :read-only t)
  ;; Moments and counts
  (started nil)                         ; in MILLISECONDS
  (drain-end most-positive-fixnum :type fixnum) ; until when a drain waits for requests
  (made 0 :type fixnum)                 ; workers
  (accepted (make-counter) :read-only t) ; connections, since the start
  (open (make-counter) :read-only t)    ; connections, now
  (sent (make-counter) :read-only t)    ; octets, after the last request of a connection was counted
  (refused-by (zeros *refusal-reasons*) :type list) ; connections, by why
  (expired-by (zeros *deadline-kinds*) :type list) ; connections, by why
  (failed 0 :type fixnum)               ; errors of the service, of making a thread
  ;; How long requests took that were served by workers that have ended.
  (served-before (make-tally-sheet) :read-only t))

(defstruct (worker (:include opaque) (:constructor make-worker (engine number)))
  "One thread of the pool of ENGINE."
  ;; The engine that WORKER works for.
  (engine nil :read-only t)
  (number 0 :type fixnum :read-only t)
  (thread nil)
  (state :starting :type (member :starting :waiting :serving :keep-alive :active :suspended :ended))
  (since (milliseconds) :type integer)  ; when STATE began
  (connection nil :type (or null connection))
  ;; What the layer above says that the thread of WORKER is at, any object; NIL for nothing. Other
  ;; threads read it, so it may be out of date.
  (task nil)
  ;; How long its requests took; written by its own thread alone.
  (durations (make-tally-sheet) :read-only t)
  ;; When its request or its timer began, in MICROSECONDS; 0 while it is :ACTIVE and waits.
  (stamp 0 :type (unsigned-byte 62))
  ;; In the ready engine only:
  (blocked-stamp 0 :type fixnum)        ; the stamp for which it was found to be blocked
  (asked-stamp 0 :type fixnum)          ; the stamp for which it was asked about, and how long its
  (run-time 0 :type fixnum)             ; thread had run by then, in microseconds
  (identity nil)                        ; of its thread, as the system knows it
  (taken 0 :type fixnum)                ; events off the queue, since it asked the poller last
  (resumed (bt:make-condition-variable) :read-only t)) ; notified when it is resumed

(defvar *worker* nil
  "The worker whose thread this is, or NIL.")

(declaim (inline note-task))
(defun note-task (task)
  "Notes that the current thread is at TASK, any object, or NIL for nothing, if it is a worker's."
  (when *worker*
    (setf (worker-task *worker*) task)))

(defun worker-milliseconds (worker)
  "For how long WORKER has been in its state."
  (- (milliseconds) (worker-since worker)))

(defun current-engine ()
  "The engine that the current thread, a worker, belongs to; else NIL."
  (and *worker* (worker-engine *worker*)))

(defmacro with-engine ((engine) &body body)
  "Runs BODY, which is short and waits for nothing, under the lock of ENGINE.  No interrupt, nor
the death of the thread, can leave the counts of ENGINE half changed."
  `(with-lock-briefly ((engine-lock ,engine))
     ,@body))

(defun notify-sentinel (engine)
  "Has the sentinel of ENGINE look around before its tick.  Under the lock."
  (bt:condition-notify (engine-sentinel-wakeup engine)))

(defun wait-for-change (engine seconds predicate)
  "Waits up to SECONDS, or for ever when NIL, until PREDICATE, called under the lock, is true;
returns its last value."
  (wait-until predicate (engine-changed engine) (engine-lock engine) seconds *tick*))

(defun seconds-left (end)
  "The seconds until END, in MILLISECONDS, a real; NIL for NIL, which is never."
  (and end (/ (milliseconds-left end) 1000)))

;;; What differs between the two engines

(defgeneric worker-loop (engine worker)
  (:documentation "The life of WORKER: takes connections of ENGINE and serves them until it
is to end.  Called in its thread."))

(defgeneric look (engine)
  (:documentation "One look of the sentinel at the workers and connections of ENGINE, and a rest."))

(defgeneric acquire-resources (engine)
  (:documentation "Prepares ENGINE, before its first worker is made."))

(defgeneric release-resources (engine)
  (:documentation "Gives back the resources of ACQUIRE-RESOURCES: ENGINE has stopped, and its
last worker is gone.")
  (:method ((engine engine))))

(defgeneric detach (engine connection)
  (:documentation "Removes CONNECTION, which the caller owns, from ENGINE, and leaves its socket
open for another owner.  Does nothing the second time.  Called by the worker that serves
CONNECTION, which defers interrupts until it has recorded the other owner."))

(defgeneric wake-from-client (engine connection direction)
  (:documentation "Shuts down the connection CONNECTION of ENGINE if a worker still has it, so
that the worker wakes.  DIRECTION is :INPUT, so that the client can still be told why, or :IO.  The
value does not matter."))

(defgeneric leave-listener (engine)
  (:documentation "Wakes the workers of ENGINE that wait for its listener.  Called once,
when ENGINE accepts nothing more."))

(defgeneric end-input (engine)
  (:documentation "Lets the connections of ENGINE read nothing more, and ends those without a
worker."))

(defgeneric show-phase (engine)
  (:documentation "Makes the workers of ENGINE that wait for something look around, and has all
connections served that have waited since SERVE returned :DEFERRED: the phase of ENGINE has changed.
A worker that has its own connection looks itself.")
  (:method ((engine engine))))

;;; Its numbers and its phase

(defun worker-count (engine &rest states)
  "How many workers of ENGINE are in one of STATES."
  (declare (dynamic-extent states))
  (count-if (lambda (worker) (member (worker-state worker) states)) (engine-workers engine)))

(defun pool-size (engine)
  (length (engine-workers engine)))

(defun open-count (engine)
  "How many connections of ENGINE are open."
  (counter-count (engine-open engine)))

(defgeneric busy-count (engine)
  (:documentation "How many connections of ENGINE have a worker.  Under the lock.")
  (:method ((engine engine))
    (worker-count engine :serving :keep-alive)))

(defgeneric standby-count (engine)
  (:documentation "How many workers of ENGINE wait for a connection or soon will.  Under the
lock.")
  (:method ((engine engine))
    (worker-count engine :starting :waiting)))

(defun welcoming-p (engine)
  "True while ENGINE runs, and no stop of it, gentle or not, has begun."
  (eq (engine-phase engine) :running))

(defun running-p (engine)
  "True until a stop of ENGINE, gentle or not, ends what goes on without an end."
  (and (member (engine-phase engine) '(:running :leaving)) t))

(defun engine-stopped-p (engine)
  "True when ENGINE was stopped: it serves no more connections, save those left behind."
  (eq (engine-phase engine) :stopped))

(defun draining-p (engine)
  (eq (engine-phase engine) :draining))

(defun serving-p (engine)
  "True if ENGINE serves the requests that come to it."
  (and (member (engine-phase engine) '(:running :leaving :draining)) t))

(defun drain-over-p (engine now)
  "True when ENGINE has drained and, at NOW, in MILLISECONDS, waited long enough for requests that
were under way."
  (>= now (engine-drain-end engine)))

(defun keeps-connections-p (engine)
  "True if the connections of ENGINE should be kept after the replies that are sent now."
  (not (or (engine-overloaded-p engine)
           (engine-troubles engine)
           (not (eq :running (engine-phase engine))))))

;;; Calls of the service whose errors only count, and what else may fail in a thread of an engine

(defun count-failure (engine)
  "Counts a failure while ENGINE served a connection, or did something for one."
  (with-engine (engine)
    (incf (engine-failed engine))))

(defun ask (engine otherwise function &rest arguments)
  "The value of FUNCTION of the service of ENGINE and ARGUMENTS.  A failure is only counted, and the
value is OTHERWISE then."
  (declare (dynamic-extent arguments))
  (handler-case (apply function (engine-service engine) arguments)
    ((or error storage-condition) ()
      (count-failure engine)
      otherwise)))

(defun count-late (engine kind)
  "Counts a connection of ENGINE as ended because of KIND, a keyword as for SET-DEADLINE: by the
sentinel, or by its service, which has found it late before."
  (with-engine (engine)
    (incf (getf (engine-expired-by engine) kind 0))))

(defun refuse-with-notice (engine connection reason)
  "Counts CONNECTION, which ENGINE has just accepted, and refuses because of REASON, one of
*REFUSAL-REASONS*, and lets the service tell its peer.  True if that had something to say."
  (with-engine (engine)
    (incf (getf (engine-refused-by engine) reason)))
  (setf (connection-deadline-kind connection) reason)
  (ask engine nil #'give-notice connection))

(defun log-message (engine level control &rest arguments)
  "Lets the service of ENGINE NOTE an event; LEVEL, CONTROL and ARGUMENTS are for that.  A
failure of it is only counted."
  (apply #'ask engine nil #'note level control arguments))

(defun note-trouble (engine kind condition &optional (control "~A"))
  "Counts a failure of ENGINE, and logs CONTROL with CONDITION, unless one of KIND, a keyword,
lasts."
  (let ((before (with-engine (engine)
                  (incf (engine-failed engine))
                  (shiftf (getf (engine-troubles engine) kind) condition))))
    (unless before
      (log-message engine :error control condition))))

(defun forget-trouble (engine kind)
  "Notes that the trouble of KIND with ENGINE is over."
  (when (getf (engine-troubles engine) kind)
    (with-engine (engine)
      (remf (engine-troubles engine) kind))))

;;; The making of threads

(defun thread-made-p (engine function)
  "Calls FUNCTION, which makes a thread for ENGINE.  NIL if it could not: that is counted, and
logged unless it was before.  No thread is made then before a tick has passed."
  (handler-case (progn (call-making-thread function)
                       (forget-trouble engine :threads)
                       t)
    ((or error storage-condition) (condition)
      (setf (engine-launch-failed-p engine) t)
      (note-trouble engine :threads condition "A thread could not be made, and is tried again: ~A")
      nil)))

;;; How many connections each address has open.  The service says which addresses count, and up to
;;; which number; most services say that none does.  A connection is counted when it is accepted, or
;;; when its service has learnt for whom a proxy has made it, until NOTE-CLOSED, whatever has ended
;;; it.

(defun enter-address (engine connection)
  "Counts CONNECTION of ENGINE, which the caller owns and which is counted for no address yet, for
the one that its service tells.  Returns NIL if that has as many connections as it may: CONNECTION
is not counted then, and the caller is to refuse it.  True also where the service tells no address."
  (multiple-value-bind (limit address) (ask engine nil #'address-limit connection)
    (or (null limit)
        (with-engine (engine)
          (when (< (gethash address (engine-addresses engine) 0) limit)
            (incf (gethash address (engine-addresses engine) 0))
            (setf (connection-address connection) address))))))

(defun note-closed (engine connection)
  "Notes that CONNECTION, which ENGINE has counted as open, no longer is."
  (counter-add (engine-open engine) -1)
  (let ((queue (connection-queue connection)) (address (connection-address connection)))
    (counter-add (engine-sent engine) (- (send-queue-sent queue) (send-queue-counted queue)))
    (when address
      (with-engine (engine)
        (when (zerop (decf (gethash address (engine-addresses engine))))
          (remhash address (engine-addresses engine)))))))

;;; Accepting

(defmacro with-listener ((engine) &body body)
  "Evaluates BODY, which does not wait, if ENGINE accepts.  Several threads may stop ENGINE, and the
first to return may close the listener, whose number may soon be another's: no thread uses it then."
  `(with-lock-briefly ((engine-listener-lock ,engine))
     (when (engine-accepting-p ,engine)
       ,@body)))

(defun end-accepting (engine)
  "Makes ENGINE accept nothing more.  The system refuses later clients, or they wait for other
processes with the same listener."
  (with-listener (engine)
    (setf (engine-accepting-p engine) nil)
    (leave-listener engine)))           ; otherwise workers might wait for the listener for ever
