(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; The ready engine: workers wait together on one poller, for the listener and for every
;;;; parked connection.
;;;;
;;;;   a worker that ...          and finds that ...             does
;;;;   waits alone                several things come at once    follows the first, leaves the others
;;;;                                                             on the tray: see tray.lisp
;;;;   is told of the listener    connections wait               accepts one and serves it, leaves
;;;;                                                             the others: see accepting.lisp
;;;;   is told of a connection    somebody owns it               leaves its mark, waits again
;;;;   is told of a connection    nobody owns it                 serves it
;;;;   served a request           more of its connection came    serves that too
;;;;   served a request           otherwise                      parks the connection
;;;;   is free                    enough siblings wait           goes to the bench
;;;;   is free                    too many run                   likewise
;;;;   is free                    something lies on the tray     follows that
;;;;   is free                    otherwise                      waits again
;;;;   sits on the bench          long enough, and the pool is   ends
;;;;                              larger than its floor
;;;;
;;;; How many are enough, and too many, is the sentinel's to say: see pacing.lisp.

(defparameter *processors* nil
  "How many processors to count on, an integer above 0; NIL for as many as this process may use.")

(defun usable-processors ()
  (or *processors* (processor-count)))

(defstruct (pace (:include opaque))
  "What the workers of a ready engine look at between two requests.  Each slot has one writer,
the sentinel, save SURPLUS, DOZING-P and WAITING."
  (tick 1 :type fixnum)                 ; of the sentinel's clock; never 0
  (clock 0 :type fixnum)                ; MILLISECONDS at that tick
  (clock-stands-p nil)                  ; nobody ticks: the sentinel dozes, waits after a failure, or is lost
  (idle nil :type (or null fixnum))     ; IDLE-SECONDS of the service, as milliseconds
  (floor 1 :type fixnum)                ; how many workers are awake when there is nothing to do
  (target 1 :type fixnum)               ; how many workers may wait
  (surplus 0 :type fixnum)              ; how many should sit down; who does counts it down
  (dozing-p nil)                        ; the sentinel is to be rung when nobody waits
  (waiting (make-counter) :read-only t)) ; how many workers wait

(declaim (inline pace-now))
(defun pace-now (pace)
  "MILLISECONDS, a tick or so ago.  Asks the clock only while the sentinel does not."
  (if (pace-clock-stands-p pace)
      (milliseconds)
      (pace-clock pace)))

(defstruct (ready-engine (:include engine) (:constructor %make-ready-engine)
                         (:conc-name engine-) (:copier nil))
  "The engine for platforms with pollers: a parked connection has no thread."
  (poller nil)                          ; NIL before the start
  (table (make-table) :type table :read-only t)
  (pace (make-pace) :type pace :read-only t)
  (probe (make-probe) :type probe :read-only t)
  (tray '() :type list)                 ; see tray.lisp
  (summoned-p nil)                      ; somebody is, and was not told yet
  (listener-descriptor -1 :type fixnum :read-only t)
  (benched '() :type list)              ; workers on the bench, who came last first
  (promotions 0 :type fixnum)
  (benchings 0 :type fixnum)
  (blind-p nil)                         ; that the system does not tell of threads was noted
  (status-descriptors '() :type list))  ; of workers that ended; the sentinel closes them

(defparameter *wait-milliseconds* 1000
  "After how long without anything to do a worker looks whether it is needed.  The poller wakes
who came last first, so those who are not needed get there.")

(defstruct (ready-worker (:include worker)
                         (:constructor make-ready-worker (engine number pace)))
  "A worker of a ready engine.  Its state is :ACTIVE while it waits or serves; which of the two,
STAMP tells."
  (pace nil :type pace :read-only t)
  (stamp 0 :type fixnum)                ; tick at which its request began; 0 when it waits
  (begun 0 :type fixnum)                ; the same moment in MILLISECONDS
  (patience *wait-milliseconds* :type fixnum) ; how long it waits before it looks around
  (verdict 0 :type fixnum)              ; the stamp for which it was found to be stuck
  (suspected 0 :type fixnum)            ; the stamp for which it was asked about, and how long its
  (run-time 0 :type fixnum)             ; thread had run by then, in microseconds
  (latest-run-time 0 :type fixnum)      ; and when it was asked about last
  (accepted 0 :type fixnum)             ; connections, since it asked the poller last
  (identity nil)                        ; of its thread, for the system
  (status nil)                          ; descriptor that tells whether its thread is blocked, or NIL
  (bell (bt:make-condition-variable) :read-only t)) ; rung when it is promoted

;;; Its numbers

(declaim (inline somebody-waits-p))
(defun somebody-waits-p (engine)
  "True when a worker of ENGINE waits, or is about to."
  (plusp (counter-count (pace-waiting (engine-pace engine)))))

(defmethod attended-count ((engine ready-engine))
  (count-if (lambda (worker) (plusp (ready-worker-stamp worker))) (engine-workers engine)))

(defmethod coming-count ((engine ready-engine))
  ;; Not by who waits: a worker that was promoted is on its way there.
  (- (pool-size engine) (attended-count engine)))

(defmethod parking-statistics ((engine ready-engine))
  (let ((probe (engine-probe engine)))
    (list :promotions (engine-promotions engine)
          :benchings (engine-benchings engine)
          :parked (length (parked-connections (engine-table engine)))
          :writing (count-connections #'connection-output engine)
          :ready-wait (probe-wait probe)
          :ready-wait-sum (/ (probe-sum probe) 1000000.0)
          :ready-wait-count (probe-count probe))))

(defmethod resting-p ((worker ready-worker))
  (or (eq (worker-state worker) :benched)
      (and (eq (worker-state worker) :active) (zerop (ready-worker-stamp worker)))))

(defmethod short-handed-p ((engine ready-engine))
  nil)                                  ; the sentinel sees to that, see pacing.lisp

(defmethod doorkeeper-needed-p ((engine ready-engine))
  nil)                                  ; the sentinel stands in, see pacing.lisp

(defmethod leave-behind :after ((engine ready-engine) worker)
  (when (ready-worker-status worker)
    (push (ready-worker-status worker) (engine-status-descriptors engine))))

;;; Making it

(defmethod make-pool-worker ((engine ready-engine) number)
  (make-ready-worker engine number (engine-pace engine)))

(defun make-ready-engine (service listener &key standby thread-limit accept-limit)
  "An engine for SERVICE on LISTENER, not started.  STANDBY is how many workers it keeps when
there is nothing to do, THREAD-LIMIT how many it may have, or NIL; ACCEPT-LIMIT says how many
connections may be open: see ENGINE-ACCEPT-LIMIT."
  (%make-ready-engine :service service :listener listener :standby standby
                      :thread-limit thread-limit :accept-limit accept-limit
                      :listener-descriptor (listener-descriptor listener)))
