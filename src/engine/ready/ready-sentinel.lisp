(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; The life of the sentinel of the ready engine: a few times a second it sees to deadlines and
;;;; what else connection-time-outs.lisp has; at each tick it has the pool sized (pool-sizing.lisp),
;;;; and rests.

(defun resume-clock (pool)
  "Lets COARSE-NOW be what the current thread, the sentinel's, says from now on.  Nobody else does."
  (setf (pool-state-clock pool) (milliseconds)
        (pool-state-clock-stopped-p pool) nil))

(defmethod call-noting ((engine ready-engine) function)
  "The clock does not stand while the sentinel waits for a log."
  (let ((pool (engine-pool-state engine)))
    (if (or (pool-state-clock-stopped-p pool)
            (not (eq (bt:current-thread) (sentinel-thread (engine-sentinel engine)))))
        (funcall function)
        (unwind-protect (progn (setf (pool-state-clock-stopped-p pool) t)
                               (funcall function))
          (resume-clock pool)))))

;;; Its rests

(defun next-deadline (engine)
  "The first deadline of a connection of ENGINE, in MILLISECONDS, or NIL."
  (let ((first nil))
    (map-connections (lambda (connection)
                       (let ((deadline (connection-deadline connection)))
                         (when (and deadline (or (null first) (< deadline first)))
                           (setf first deadline))))
                     (engine-table engine))
    first))

(defun idle-wait-seconds (engine housekeeping)
  "How long the sentinel of ENGINE may wait idly, whose last HOUSEKEEPING was then, in MILLISECONDS:
until the next deadline, but not less than until the next housekeeping nor longer than *IDLE-TICK*."
  (if (or (engine-accept-again-p engine) (engine-thread-trouble-p engine) (not (running-p engine)))
      *tick*
      (let ((deadline (next-deadline engine))
            (now (milliseconds)))
        (if deadline
            (max 0
                 (/ (- (next-housekeeping housekeeping) now) 1000)
                 (min *idle-tick* (/ (- deadline now) 1000)))
            *idle-tick*))))

(defun idle-wait (engine housekeeping)
  "Waits until the sentinel is woken, and at most as long as there is nothing else to do, as
IDLE-WAIT-SECONDS says of HOUSEKEEPING.  True when a worker of ENGINE woke it, because nobody waits
any more, or a deadline comes soon."
  (let ((pool (engine-pool-state engine)))
    (unwind-protect
         (progn
           (setf (pool-state-clock-stopped-p pool) t
                 (pool-state-sentinel-idle-p pool) t)
           ;; The last worker that waits counts itself off, and then reads SENTINEL-IDLE-P; so that
           ;; must be seen by all before the count is read here, or each might miss what the other
           ;; wrote.  The same holds for a thread that sets an early deadline.
           (order-memory)
           (let ((seconds (idle-wait-seconds engine housekeeping)))
             (rest-until-woken engine seconds
                               (lambda ()
                                 ;; Nobody has woken it by now.
                                 (not (and (pool-state-sentinel-idle-p pool)
                                           (somebody-waits-p engine)))))
             (not (pool-state-sentinel-idle-p pool))))
      (setf (pool-state-sentinel-idle-p pool) nil)
      (resume-clock pool))))

(defparameter *long-nap-ticks* 4
  "For how many ticks the sentinel naps when no worker was missing for some looks.")

(defun rest-after-look (engine controller found)
  "Rests after a look that FOUND what ADJUST-POOL returns.  When a worker has ended an idle wait, the
next few looks follow closely, the first when requests had time to block."
  (let ((rest (decide-rest engine controller found)))
    (count-decision controller rest)
    (ecase rest
      (:short-nap (nap *tick-microseconds*))
      (:long-nap (nap (* *long-nap-ticks* *tick-microseconds*)))
      (:idle-wait
       (when (idle-wait engine (controller-last-housekeeping controller))
         (setf (controller-looks-without-need controller) 0
               (controller-idle-looks controller) 0)
         (nap *tick-microseconds*))))))

;;; What it looks after besides

(defparameter *count-milliseconds* 20000
  "How often the sentinel counts processors.")

(defun count-processors (engine controller now)
  "Lets CONTROLLER and the workers of ENGINE know how many processors there are NOW: they may be
given and taken away while we run, and the pool's floor, too, may have changed."
  (when (> (- now (controller-last-processor-count controller)) *count-milliseconds*)
    (setf (controller-last-processor-count controller) now
          (controller-processors controller) (usable-processors)))
  (setf (pool-state-floor (engine-pool-state engine))
        (min (controller-processors controller) (engine-standby engine))))

(defun sample-wait-when-busy (engine controller)
  "Samples how long what is ready waits, if something was since the last time or a worker serves: at
rest each sample would wake a thread."
  (let ((done (work-done engine))
        (probe (engine-probe engine)))
    (when (or (/= done (shiftf (controller-work-done controller) done))
              (zerop (probe-count probe))
              (plusp (probe-sent probe))
              (plusp (with-engine (engine) (busy-count engine))))
      (sample-wait probe (engine-poller engine)))))

;;; Its loop

(defun make-engine-controller (engine)
  "A controller for the sentinel of ENGINE."
  (make-controller (usable-processors) (milliseconds) (engine-decisions engine)))

(defmethod sentinel-loop ((engine ready-engine))
  (prepare-thread engine *sentinel-slack-microseconds*)
  (resume-clock (engine-pool-state engine))
  (let ((controller (make-engine-controller engine)))
    (flet ((housekeep () (housekeep-when-due engine controller))
           (see-to-workers ()
             (rest-after-look engine controller (adjust-pool engine controller))))
      (declare (dynamic-extent #'housekeep #'see-to-workers)) ; two thousand times a second
      (loop until (eq (engine-phase engine) :stopped)
            do (call-surviving engine :housekeeping #'housekeep)
               (clear-stack)            ; while it rests, it keeps none alive that it has looked at
            unless (call-surviving engine :pool-size #'see-to-workers)
              ;; ADJUST-POOL may have failed before it set the clock.
              do (setf (pool-state-clock-stopped-p (engine-pool-state engine)) t)
                 (pause-after-failure engine)
                 (resume-clock (engine-pool-state engine)))))
  (setf (pool-state-clock-stopped-p (engine-pool-state engine)) t)) ; no tick follows

(defmethod request-sentinel ((engine ready-engine))
  ;; As long as nobody ticks, deadlines must not count from the last tick.
  (setf (pool-state-clock-stopped-p (engine-pool-state engine)) t)
  (wake-one (engine-poller engine))
  (resume-workers engine 1))            ; those who would hear that may all be blocked
