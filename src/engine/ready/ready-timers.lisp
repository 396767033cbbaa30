(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; Timers in the ready engine.
;;;;
;;;; The poller watches a timer descriptor, which makes one event each time the alarm rings.  The
;;;; worker that gets the event takes the due functions, one at a time.
;;;;
;;;;   after it took a function, it finds      and before it calls that function, it
;;;;   another one due, for the first time     queues the token, for the next free worker
;;;;   another one due, not the first time     does nothing: the worker that it called sees to them
;;;;   nothing more due                        sets the alarm for the next timer
;;;;
;;;;   before it takes a function, it finds    and
;;;;   it has called many since it asked       sets the alarm to now: its event comes after all
;;;;   the poller                              that is ready now
;;;;
;;;; So instant functions run in one worker, one after the other, and one that blocks holds up no
;;;; other: while it runs, the alarm is set, or another worker was called for those that are due.

(defconstant +timer-token+ (1- (ash 1 31))
  "The token of the timer descriptor: the number of no descriptor of which there are connections.")

(defconstant +timer-batch+ 32
  "The number of timers that one worker runs before other events have their turn.")

;;; The descriptor

(defun acquire-timer-descriptor (engine)
  "Gives ENGINE, which has a poller, a timer descriptor.  Signals START-REFUSED if the system has
none."
  (let ((descriptor (setf (engine-timer-descriptor engine) (make-timer-descriptor))))
    (check-start descriptor)
    (check-start (watch (engine-poller engine) descriptor +timer-token+))))

(defun release-timer-descriptor (engine)
  (let ((descriptor (shiftf (engine-timer-descriptor engine) -1)))
    (unless (minusp descriptor)
      (close-descriptor descriptor))))

(defmethod set-alarm-clock ((engine ready-engine) moment)
  (arm-timer-descriptor (engine-timer-descriptor engine) moment))

;; A request comes to the same workers from the same poller.
(defmethod call-when-pool-serves ((engine ready-engine) function)
  (schedule engine 0 function))

;;; Timers that are due

(defun call-for-timers (engine)
  "Has the next free worker look for due timers of ENGINE."
  (queue-events engine (list +timer-token+)))

(defun ring-again (engine)
  "Leaves the timers of ENGINE to the worker that gets the next event of the alarm."
  (let ((timers (engine-timers engine)))
    (when (with-timers (timers)
            (claim-next-alarm timers (microseconds)))
      (set-alarm engine))))

(defun run-due-timers (engine worker)
  "Calls the functions of the due timers of ENGINE in WORKER, the current thread's, and in others
if one takes long."
  (loop with called-p = nil
        do (when (>= (ready-worker-timers-run worker) +timer-batch+)
             (return (ring-again engine)))
           (multiple-value-bind (function more-p) (next-due-function engine (microseconds))
             (unless function
               (return))
             (incf (ready-worker-timers-run worker))
             (when (and more-p (not called-p))
               (setf called-p t)
               (call-for-timers engine))
             (stamp-worker worker)
             (run-timer engine function))))
