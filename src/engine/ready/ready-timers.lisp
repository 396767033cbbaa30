(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; Timers in the ready engine.
;;;;
;;;; A timer descriptor is one of those that the poller watches, and makes one event each time it
;;;; rings.  The worker that gets it takes what is due, one function at a time.
;;;;
;;;;   having taken a function, it finds           and does, before it calls that
;;;;   another one due, for the first time         queues the token, for who is free next
;;;;   another one due, and it has called already  nothing: who was called saw to the others
;;;;   nothing more due                            sets the alarm for the next one
;;;;
;;;;   before it takes one, it finds               and does
;;;;   it has called many since it asked the       sets the alarm for now: its event comes after all that is
;;;;   poller                                      ready now
;;;;
;;;; So instant functions run in one worker, one after the other, and one that blocks holds up
;;;; nobody: while a function runs, for all that is due somebody was called, or the alarm is set.

(defconstant +timer-token+ (1- (ash 1 31))
  "The token of the timer descriptor: the number of no descriptor of which there are connections.")

(defconstant +timer-batch+ 32
  "How many timers one worker runs before what else is ready has its turn.")

;;; The descriptor

(defun acquire-timer-descriptor (engine)
  "Gives ENGINE, which has a poller, a timer descriptor.  Signals START-REFUSED if the system has
none."
  (let ((descriptor (uninterruptibly
                      (setf (engine-timer-descriptor engine) (make-timer-descriptor)))))
    (check-start descriptor)
    (check-start (watch (engine-poller engine) descriptor +timer-token+))))

(defun release-timer-descriptor (engine)
  (let ((descriptor (shiftf (engine-timer-descriptor engine) -1)))
    (unless (minusp descriptor)
      (close-descriptor descriptor))))

(defmethod set-alarm-clock ((engine ready-engine) moment)
  (arm-timer-descriptor (engine-timer-descriptor engine) moment))

;;; What is due

(defun call-for-timers (engine)
  "Has who is free next look which timers of ENGINE are due."
  (queue-events engine (list +timer-token+)))

(defun ring-again (engine)
  "Leaves the timers of ENGINE to who gets the event of the alarm."
  (let ((timers (engine-timers engine)))
    (when (with-timers (timers)
            (claim-next-alarm timers (microseconds)))
      (set-alarm engine))))

(defun run-due-timers (engine worker)
  "Calls the functions of the timers of ENGINE that are due: in WORKER, whose thread this is, and in
others, if one takes long."
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
