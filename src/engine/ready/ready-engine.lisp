(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; The ready engine: its workers wait together on one poller, for the listener and for every
;;;; parked connection.
;;;;
;;;;   a worker that ...          and finds that ...             does this
;;;;   waits alone                several events came            handles the first, queues the
;;;;                                                             others: see loop.lisp
;;;;   gets the listener's event  connections wait               accepts one and serves it: see
;;;;                                                             accepting-connections.lisp
;;;;   gets the alarm's event     timers are due                 runs one: see ready-timers.lisp
;;;;   gets a connection's event  a thread owns it               marks it, waits again
;;;;   gets a connection's event  no thread owns it              serves it
;;;;   served a request           it has more input              serves that too
;;;;   served a request           otherwise                      parks the connection
;;;;   is free                    enough siblings wait           is suspended
;;;;   is free                    too many workers run           is suspended
;;;;   is free                    an event is queued             handles that
;;;;   is free                    otherwise                      waits again
;;;;   is suspended               long enough, and the pool is   ends
;;;;                              larger than its floor
;;;;
;;;; The sentinel decides how many workers are enough, and how many are too many: see
;;;; pool-sizing.lisp.

(defparameter *processors* nil
  "The number of processors to count on, an integer above 0; NIL for all that this process may
use.")

(defun usable-processors ()
  (or *processors* (processor-count)))

(defstruct (pool-state (:include opaque))
  "The data that the workers of a ready engine read between two requests.  The sentinel alone
writes it, except EXCESS, SENTINEL-IDLE-P and WAITING."
  (tick 1 :type fixnum)                 ; of the sentinel's clock; never 0
  (clock 0 :type fixnum)                ; MILLISECONDS at that tick
  ;; No tick comes: the sentinel is idle, or has just failed.
  (clock-stopped-p nil)
  ;; How many milliseconds a connection may wait for its next request; NIL for no limit.
  (idle nil :type (or null fixnum))
  (floor 1 :type fixnum)                ; how many workers are awake when there is nothing to do
  (target 1 :type fixnum)               ; how many workers may wait
  (excess 0 :type fixnum)               ; how many should be suspended; each one counts it down
  (calm-p nil)                          ; no worker was blocked or missing lately
  (sentinel-idle-p nil)                 ; wake the sentinel when no worker waits
  (waiting (make-counter) :read-only t)) ; how many workers wait

(declaim (inline coarse-now))
(defun coarse-now (pool)
  "MILLISECONDS, a tick or so ago.  Asks the system for the time only while the clock of the
sentinel stands."
  (if (pool-state-clock-stopped-p pool)
      (milliseconds)
      (pool-state-clock pool)))

(defstruct (ready-engine (:include engine) (:constructor %make-ready-engine)
                         (:conc-name engine-) (:copier nil))
  "The engine for platforms with pollers.  A parked connection has no thread."
  (poller nil)                          ; NIL before the start
  (arm nil)                             ; see WATCH-UNDER-LOCK; a function of a connection
  (table (make-table) :type table :read-only t)
  (pool-state nil :type pool-state :read-only t)
  ;; Samples of how long a ready connection waits for a worker: see READY-STATISTICS.LISP.
  (sampled-since 0 :type fixnum)        ; in MICROSECONDS; 0 while none is under way
  (latest-wait 0 :type fixnum)          ; likewise
  (waits (make-tally-sheet) :type tally-sheet :read-only t)
  (event-queue '() :type list)          ; see loop.lisp
  ;; A worker was woken for a queued event, and has not come yet.
  (wakeup-pending-p nil)
  (listener-descriptor -1 :type fixnum :read-only t)
  (timer-descriptor -1 :type fixnum)    ; below 0 before the start; see ready-timers.lisp
  (suspended '() :type list)            ; workers, the one suspended last first
  (decisions nil :read-only t)          ; the sentinel's, see pool-sizing.lisp
  ;; The system refuses to watch connections; that was logged, and lasts.
  (watch-trouble-p nil))

(defparameter *poll-milliseconds* 1000
  "A worker that had nothing to do for this long looks whether it is needed.  The poller wakes
the worker that came last first, so the others reach this time.")

(defstruct (ready-worker (:include worker)
                         (:constructor make-ready-worker (engine number pool-state)))
  "A worker of a ready engine.  Its state is :ACTIVE while it waits or serves; STAMP says which."
  (pool-state nil :type pool-state :read-only t)
  (stamp 0 :type fixnum)                ; tick at which its request began; 0 when it waits
  (begun 0 :type fixnum)                ; the same moment in MILLISECONDS
  (poll-milliseconds *poll-milliseconds* :type fixnum) ; how long it waits before it looks around
  (blocked-stamp 0 :type fixnum)        ; the stamp for which it was found to be blocked
  (asked-stamp 0 :type fixnum)          ; the stamp for which it was asked about, and how long its
  (run-time 0 :type fixnum)             ; thread had run by then, in microseconds
  (latest-run-time 0 :type fixnum)      ; and when it was asked about last
  (identity nil)                        ; of its thread, as the system knows it
  (accepted 0 :type fixnum)             ; connections, since it asked the poller last
  (timers-run 0 :type fixnum)           ; likewise
  (taken 0 :type fixnum)                ; events off the queue, likewise
  (resumed (bt:make-condition-variable) :read-only t)) ; notified when it is resumed

(declaim (inline stamp-worker))
(defun stamp-worker (worker)
  "Shows the sentinel that WORKER now begins something that may take long."
  (let ((pool (ready-worker-pool-state worker)))
    (setf (ready-worker-begun worker) (coarse-now pool)
          (ready-worker-stamp worker) (pool-state-tick pool))))

(define-condition start-refused (recycling-error)
  ((number :initarg :number :reader start-refused-number))
  (:report (lambda (condition stream)
             (format stream "The poller cannot wait for connections and timers: ~A."
                     (error-text (start-refused-number condition)))))
  (:documentation "Signalled when an engine cannot start: the system refuses its poller the listener
or a timer descriptor."))

(defun check-start (result)
  "Signals START-REFUSED if RESULT, of a call of the platform, is minus an error number."
  (when (minusp result)
    (error 'start-refused :number (- result))))

;;; Its numbers

(declaim (inline somebody-waits-p))
(defun somebody-waits-p (engine)
  "True if a worker of ENGINE waits, or is about to."
  (plusp (counter-count (pool-state-waiting (engine-pool-state engine)))))

(defmethod busy-count ((engine ready-engine))
  (count-if (lambda (worker) (plusp (ready-worker-stamp worker))) (engine-workers engine)))

(defmethod standby-count ((engine ready-engine))
  ;; Not the workers that wait: one that was resumed is on its way there.
  (- (pool-size engine) (busy-count engine)))

(defun all-serve-p (engine)
  "True if no worker of ENGINE is free, and none may be made."
  (with-engine (engine)
    (not (or (room-p engine) (plusp (standby-count engine))))))

(defmethod resting-p ((worker ready-worker))
  (or (eq (worker-state worker) :suspended)
      (and (eq (worker-state worker) :active) (zerop (ready-worker-stamp worker)))))

(defmethod worker-needed-p ((engine ready-engine))
  nil)                                  ; the sentinel adds workers, see pool-sizing.lisp

(defmethod overflow-acceptor-needed-p ((engine ready-engine))
  nil)                                  ; the sentinel accepts then, see pool-sizing.lisp

(defmethod keep-for-cleanup :after ((engine ready-engine) worker)
  ;; Otherwise it would be resumed although it has ended.
  (setf (engine-suspended engine) (delete worker (engine-suspended engine))))

;;; Its threads

(defparameter *worker-slack-microseconds* 250
  "The system may end the sleep of a handler this late, to end several at once.  Its own default
is 50.")

(defparameter *sentinel-slack-microseconds* 100
  "The system may end a nap of the sentinel this late.  The sentinel has to see soon that workers
are blocked.")

(defun prepare-thread (slack-microseconds)
  "Tells the system how to schedule the current thread, a worker or the sentinel.  When
such a thread wakes it should interrupt neither the others nor the clients, and its sleeps may
end SLACK-MICROSECONDS, an integer, late.  A thread that is interrupted during a request may have
to wait for the time slices of several others."
  (schedule-as-batch)
  (let-timers-be-late slack-microseconds))

(defun wake-sentinel (engine)
  (with-engine (engine)
    ;; The clock stands until the sentinel has woken; COARSE-NOW asks the system meanwhile.
    (when (shiftf (pool-state-sentinel-idle-p (engine-pool-state engine)) nil)
      (notify-sentinel engine))))

(defun heed-deadline (engine connection)
  "Wakes the sentinel of ENGINE if it is idle, and would look too late at the deadline of
CONNECTION, which the caller owns and has just set."
  (let ((pool (engine-pool-state engine))
        (deadline (connection-deadline connection)))
    (when deadline
      ;; The sentinel says that it is idle, and looks at deadlines then.
      (order-memory)
      (when (and (pool-state-sentinel-idle-p pool)
                 (< deadline (+ (coarse-now pool) (as-milliseconds *idle-tick*))))
        (wake-sentinel engine)))))

(defun limit-handler-at (engine connection time)
  "Has TIME-OUT-HANDLER called for CONNECTION of ENGINE, which the caller owns and serves, at TIME,
in MILLISECONDS, or a little later.  Its value does not matter."
  (set-deadline-at connection :handler time)
  (when (connection-parkable-p connection)
    (heed-deadline engine connection)))

(defmethod make-pool-worker ((engine ready-engine) number)
  (make-ready-worker engine number (engine-pool-state engine)))
