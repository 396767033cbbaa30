(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; The ready engine: its workers wait together on one poller, for the listener and for every
;;;; parked connection.
;;;;
;;;;   a worker that ...          and finds that ...             does this
;;;;   waits alone                several events came            handles the first, queues the
;;;;                                                             others: see loop.lisp
;;;;   gets the listener's event  connections wait               accepts one and serves it: see
;;;;                                                             accepting-connections.lisp
;;;;   gets the alarm's event     timers are due                 runs one, leaves others
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
;;;; ready-sentinel.lisp.

(defparameter *processors* nil
  "The number of processors to count on, an integer above 0; NIL for all that this process may
use.")

(defstruct (ready-engine (:include engine)
                         (:constructor make-ready-engine
                             (service listener
                              &key standby thread-limit accept-limit idle
                              &aux (listener-descriptor (socket-descriptor listener))))
                         (:conc-name engine-) (:copier nil))
  "The engine for platforms with pollers.  A parked connection has no thread."
  (poller nil)                          ; NIL before the start
  (table (make-table) :type table :read-only t)
  (listener-descriptor -1 :type fixnum :read-only t)
  (timer-descriptor -1 :type fixnum)    ; below 0 before the start
  (event-queue '() :type list)          ; see loop.lisp
  ;; A worker was woken for a queued event, and has not come yet.
  (wakeup-pending-p nil)
  (waiting (make-counter) :read-only t) ; how many workers wait
  ;; The sentinel writes these, between two requests of the workers that read them:
  (processors 1 :type fixnum)
  (target 1 :type fixnum)               ; how many workers may wait
  (excess 0 :type fixnum)               ; how many should be suspended; each one counts it down
  (calm-p nil)                          ; no worker was blocked or missing lately
  (sentinel-idle-p nil)                 ; wake the sentinel when no worker waits
  ;; Of the looks of the sentinel, in MICROSECONDS:
  (looked 0 :type fixnum)               ; when it looked last
  (looks 0 :type fixnum)                ; since a worker was missing, or seemed blocked
  (blocked-lately 0 :type real)         ; how many workers were blocked lately, and how many were
  (asleep-lately 0 :type real)          ; blocked or asleep
  (free-p t)                            ; see PROCESSOR-FREE-P
  (total 0 :type integer)               ; what the system counted when that was decided, and when
  (time-asked 0 :type fixnum)
  (housekept 0 :type fixnum))           ; when it looked at all connections last

;;; Its numbers

(declaim (inline somebody-waits-p))
(defun somebody-waits-p (engine)
  "True if a worker of ENGINE waits, or is about to."
  (plusp (counter-count (engine-waiting engine))))

(defmethod busy-count ((engine ready-engine))
  (count-if (lambda (worker) (plusp (worker-stamp worker))) (engine-workers engine)))

(defmethod standby-count ((engine ready-engine))
  ;; Not the workers that wait: one that was resumed is on its way there.
  (- (pool-size engine) (busy-count engine)))

;;; Start and stop

(defconstant +timer-token+ (1- (ash 1 31))
  "The token of the timer descriptor: the number of no descriptor of which there are connections.")

(defmethod acquire-resources ((engine ready-engine))
  (let ((listener (engine-listener-descriptor engine))
        (poller (make-poller)))
    (setf (engine-poller engine) poller
          (engine-processors engine) (or *processors* (processor-count)))
    (flet ((check (result)              ; of a call of the system
             (when (minusp result)
               (error "The poller cannot wait for connections and timers: ~A."
                      (error-text (- result))))))
      (prepare-listener (engine-listener engine))
      (check (watch poller listener listener))
      (let ((clock (setf (engine-timer-descriptor engine) (make-timer-descriptor))))
        (check clock)
        (check (watch poller clock +timer-token+))
        (setf (timers-set-clock (engine-timers engine))
              (lambda (moment) (arm-timer-descriptor clock moment)))))))

(defmethod release-resources ((engine ready-engine))
  (end-input engine)                    ; whatever is left
  (unless (minusp (engine-timer-descriptor engine))
    (close-descriptor (engine-timer-descriptor engine)))
  (when (engine-poller engine)
    (close-poller (engine-poller engine))))

(defmethod leave-listener ((engine ready-engine))
  (when (engine-poller engine)          ; else it did not even begin to start
    (wake-listener (engine-listener engine) 0)))

(defmethod show-phase ((engine ready-engine))
  (when (engine-poller engine)          ; a worker that ends wakes the next one
    (wake-one (engine-poller engine)))
  (with-engine (engine)
    (notify-sentinel engine)
    (dolist (worker (engine-workers engine))
      (bt:condition-notify (worker-resumed worker))))
  (map-connections (lambda (connection)
                     ;; An owner that finds :ARRIVED looks again.  If the owner has left a moment
                     ;; ago, AWAITING already shows whether the connection is deferred.
                     (when (or (owned-p connection) (eq :answer (connection-awaiting connection)))
                       (resume-connection engine connection)))
                   (engine-table engine)))

(defmethod end-input ((engine ready-engine))
  (map-connections (lambda (connection)
                     ;; Requests over virtual connections that run have their time, too.
                     (unless (and (not (eq :stopped (engine-phase engine)))
                                  (find-if (lambda (virtual) (and virtual (owned-p virtual)))
                                           (connection-virtuals connection)))
                       (or (as-owner (claim-parked connection)
                             (finish-connection engine connection)
                             t)
                           (shut-if-owned connection :input))))
                   (engine-table engine)))

(defmethod wake-from-client ((engine ready-engine) connection direction)
  (shut-if-owned connection direction))

;;; The list of its connections

(defmethod map-open-connections (function (engine ready-engine))
  (map-connections (lambda (connection)
                     ;; One that carries virtual ones is not counted besides them.
                     (unless (find-if #'identity (connection-virtuals connection))
                       (funcall function connection
                                (cond ((awaits-p connection :linger) :draining)
                                      ((owned-p connection) :active)
                                      ((connection-output connection) :writing)
                                      ((or (eq :turn (connection-awaiting connection))
                                           (null (connection-data connection))) ; no worker saw it
                                       :queued)
                                      ((plusp (length (connection-virtuals connection))) :parked)
                                      ((connection-awaiting connection) :deferred)
                                      ((zerop (connection-served connection)) :new)
                                      (t :parked)))))
                   (engine-table engine)))
