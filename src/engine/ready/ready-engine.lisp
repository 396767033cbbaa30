(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; The ready engine: its workers wait together on one poller, for the listener and for every
;;;; parked connection.
;;;;
;;;;   a worker that ...          and finds that ...             does this
;;;;   waits alone                several events came            handles the first, queues the
;;;;                                                             others: see loop.lisp
;;;;   gets the listener's event  connections wait               accepts one and serves it: see
;;;;                                                             accepting-connections.lisp
;;;;   gets the alarm's event     timers are due                 runs one: see RUN-DUE-TIMERS
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

(defparameter *decisions*
  '(:resume :launch :suspend :limit :accept-overflow :short-nap :long-nap :idle-wait)
  "The decisions of the sentinel at a look: to resume or to make workers; to have one suspended
because too many run, or because the limit was lowered; to accept connections itself, only to
refuse or park them; and how to rest.")

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

(defstruct (ready-engine (:include engine)
                         (:constructor make-ready-engine
                             (service listener &key standby thread-limit accept-limit
                                                 (waiting-limit :half) idle-seconds
                              &aux (pool-state (make-pool-state
                                                :idle (as-milliseconds idle-seconds)))
                                (listener-descriptor (listener-descriptor listener))))
                         (:conc-name engine-) (:copier nil))
  "The engine for platforms with pollers.  A parked connection has no thread."
  (poller nil)                          ; NIL before the start
  (arm nil)                             ; see WATCH-UNDER-LOCK; a function of a connection
  (table (make-table) :type table :read-only t)
  (pool-state nil :type pool-state :read-only t)
  ;; Samples of how long a ready connection waits for a worker: see SAMPLE-WAIT.
  (sampled-since 0 :type fixnum)        ; in MICROSECONDS; 0 while none is under way
  (latest-wait 0 :type fixnum)          ; likewise
  (waits (make-tally-sheet) :type tally-sheet :read-only t)
  (event-queue '() :type list)          ; see loop.lisp
  ;; A worker was woken for a queued event, and has not come yet.
  (wakeup-pending-p nil)
  (listener-descriptor -1 :type fixnum :read-only t)
  (timer-descriptor -1 :type fixnum)    ; below 0 before the start
  ;; How often the sentinel, which alone writes it, has made each of *DECISIONS*.
  (decisions (make-array (length *decisions*) :element-type 'fixnum :initial-element 0)
   :read-only t))

(defparameter *poll-milliseconds* 1000
  "A worker that had nothing to do for this long looks whether it is needed.  The poller wakes
the worker that came last first, so the others reach this time.")

(defstruct (ready-worker (:include worker)
                         (:constructor make-ready-worker (engine number pool-state)))
  "A worker of a ready engine.  Its state is :ACTIVE while it waits or serves; STAMP says which."
  (pool-state nil :type pool-state :read-only t)
  (stamp 0 :type fixnum)                ; tick at which its request began; 0 when it waits
  (begun 0 :type fixnum)                ; the same moment in MILLISECONDS
  (blocked-stamp 0 :type fixnum)        ; the stamp for which it was found to be blocked
  (asked-stamp 0 :type fixnum)          ; the stamp for which it was asked about, and how long its
  (run-time 0 :type fixnum)             ; thread had run by then, in microseconds
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

(defmethod make-pool-worker ((engine ready-engine) number)
  (make-ready-worker engine number (engine-pool-state engine)))

;;; Waking its sentinel

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

;;; Start and stop

(defconstant +timer-token+ (1- (ash 1 31))
  "The token of the timer descriptor: the number of no descriptor of which there are connections.")

(defmethod acquire-resources ((engine ready-engine))
  (let ((pool (engine-pool-state engine))
        (listener (engine-listener-descriptor engine))
        (poller (make-poller)))
    (setf (engine-poller engine) poller
          (engine-arm engine) (lambda (connection) (watch-under-lock engine connection t))
          (pool-state-clock pool) (milliseconds)
          (pool-state-floor pool) (min (usable-processors) (engine-standby engine))
          (pool-state-target pool) (pool-state-floor pool))
    (flet ((check (result)              ; of a call of the system
             (when (minusp result)
               (error "The poller cannot wait for connections and timers: ~A."
                      (error-text (- result))))))
      (check (set-non-blocking listener))
      (set-no-delay listener)           ; accepted sockets inherit it; none of a Unix-domain socket
      (check (watch poller listener listener))
      (let ((clock (setf (engine-timer-descriptor engine) (make-timer-descriptor))))
        (check clock)
        (check (watch poller clock +timer-token+))
        (setf (timers-set-clock (engine-timers engine))
              (lambda (moment) (arm-timer-descriptor clock moment)))))))

(defmethod release-resources ((engine ready-engine))
  (end-input engine :keep-alive :writing) ; whatever is left
  (unless (minusp (engine-timer-descriptor engine))
    (close-descriptor (engine-timer-descriptor engine)))
  (when (engine-poller engine)
    (close-poller (engine-poller engine))))

(defmethod recheck-workers ((engine ready-engine))
  (dolist (worker (engine-suspended engine))
    (bt:condition-notify (ready-worker-resumed worker))))

(defmethod leave-listener ((engine ready-engine))
  (when (engine-poller engine)          ; else it did not even begin to start
    (unwatch (engine-poller engine) (engine-listener-descriptor engine))
    (wake-listener (engine-listener engine) 0)))

(defmethod wake-workers ((engine ready-engine))
  (when (engine-poller engine)
    (wake-all (engine-poller engine)))
  (with-engine (engine)
    (notify-sentinel engine)
    (recheck-workers engine)))

(defmethod end-input ((engine ready-engine) &rest states)
  "Closes those that are parked; makes the owners of others read nothing more."
  (map-connections (lambda (connection)
                     (cond ((as-owner (and (member (if (unfinished-p connection)
                                                       :writing
                                                       :keep-alive)
                                                   states)
                                           (claim-parked connection))
                              (drop-connection engine connection)
                              t))
                           ((member :serving states)
                            (shut-if-owned connection :input))))
                   (engine-table engine)))

;; A request comes to the same workers from the same poller.
(defmethod call-when-pool-serves ((engine ready-engine) function)
  (schedule engine 0 function))

;;; How long a ready connection waits for a worker, sampled at no cost to requests.  While no
;;; worker waits, the kernel alone knows when a connection became ready.  So a few times a second
;;; the sentinel wakes a worker then: the wakeup takes its place behind all that is ready.  One
;;; sample is under way at a time, so its slots have one writer: the sentinel, and then the worker
;;; that gets the wakeup.

(defun note-wait (engine microseconds)
  (setf (engine-latest-wait engine) microseconds)
  (note-duration (engine-waits engine) microseconds))

(defun sample-wait (engine)
  "Begins a sample, in the sentinel of ENGINE, or sends the one under way again: its worker may have
died."
  (cond ((and (zerop (engine-sampled-since engine)) (somebody-waits-p engine))
         (note-wait engine 0))
        (t
         (when (zerop (engine-sampled-since engine))
           (setf (engine-sampled-since engine) (microseconds)))
         (wake-one (engine-poller engine)))))

(defun sample-under-way (engine)
  "For how many microseconds a sample has been under way; 0 when none is."
  (let ((since (engine-sampled-since engine)))
    (if (zerop since) 0 (- (microseconds) since))))

(defun end-sample (engine)
  "Ends the sample under way, if any: the caller got the wakeup."
  (when (plusp (engine-sampled-since engine))
    (note-wait engine (sample-under-way engine))
    (setf (engine-sampled-since engine) 0)))

(defmethod milliseconds-queued ((engine ready-engine) connection least)
  "Trusts the samples only where the kernel does not know when the input came."
  (let* ((since (engine-sampled-since engine))
         (under-way (if (zerop since) 0 (floor (- (microseconds) since) 1000))))
    (if (<= least (max under-way (floor (engine-latest-wait engine) 1000)))
        (or (quiet-milliseconds (connection-descriptor connection))
            under-way)
        0)))

;;; Its statistics, and the list of its connections

(defmethod parking-statistics ((engine ready-engine))
  (let ((parked 0) (deferred 0) (writing 0))
    (declare (type fixnum parked deferred writing))
    ;; There may be many, so they are counted in one walk.
    (map-connections (lambda (connection)
                       (when (and (parked-p connection) (not (unfinished-p connection)))
                         (incf parked))
                       (when (eq :answer (connection-awaiting connection))
                         (incf deferred))
                       (when (and (connection-output connection) (not (owned-p connection)))
                         (incf writing)))
                     (engine-table engine))
    (list :resumes (engine-resumes engine)
          :suspends (engine-suspends engine)
          :decisions (loop for decision in *decisions*
                           for count across (engine-decisions engine)
                           collect decision
                           collect count)
          :parked parked
          :deferred deferred
          :writing writing
          :ready-wait (/ (max (sample-under-way engine) (engine-latest-wait engine)) 1000000.0)
          :ready-waits (histogram (add-sheet (make-tally-sheet) (engine-waits engine))))))

(defmethod busy-seconds ((worker ready-worker))
  (if (zerop (ready-worker-stamp worker))
      0.0
      (/ (max 0 (- (milliseconds) (ready-worker-begun worker))) 1000.0)))

(defmethod worker-activity ((worker ready-worker))
  (let ((stamp (ready-worker-stamp worker)))
    (cond ((not (eq :active (worker-state worker))) (worker-state worker))
          ((zerop stamp) :waiting)
          ((= stamp (ready-worker-blocked-stamp worker)) :blocked)
          (t :serving))))

(defmethod list-engine-connections ((engine ready-engine))
  (let ((workers (worker-connections engine))
        (plists '()))
    (map-connections (lambda (connection)
                       (let* ((worker (cdr (assoc connection workers)))
                              (state (cond ((connection-linger-octets connection) :draining)
                                           (worker :active)
                                           ((connection-output connection) :writing)
                                           ((eq :turn (connection-awaiting connection)) :queued)
                                           ((connection-awaiting connection) :deferred)
                                           ((zerop (connection-served connection)) :new)
                                           (t :parked))))
                         (push (describe-connection connection state worker) plists)))
                     (engine-table engine))
    plists))

(defun octets-unseen-p (engine connection)
  "True if CONNECTION of ENGINE is parked and has input that no worker has looked at.  The caller
looks as its owner; otherwise the descriptor might belong to another connection by then."
  (as-owner (claim-parked connection)
    (prog1 (or (eq :turn (connection-awaiting connection))
               (and (not (unfinished-p connection))
                    (first-octet (connection-descriptor connection))))
      (park-again engine connection))))

(defmethod unanswered-connections ((engine ready-engine))
  (let ((waiting '()))
    (map-connections (lambda (connection)
                       (when (octets-unseen-p engine connection)
                         (push connection waiting)))
                     (engine-table engine))
    (append (call-next-method)
            (loop for connection in waiting
                  collect (describe-connection connection :queued)))))
