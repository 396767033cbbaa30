(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; The life of the sentinel of the ready engine.  A few times a second it looks at deadlines (see
;;;; connection-time-outs.lisp).  At each tick it sizes the pool (see pool-sizing.lisp), and rests.

(defun resume-clock (pool)
  "Lets COARSE-NOW use the clock of the sentinel, which is the current thread, from now on."
  (setf (pool-state-clock pool) (milliseconds)
        (pool-state-clock-stopped-p pool) nil))

(defmethod call-noting ((engine ready-engine) function)
  "Lets COARSE-NOW ask the system while the sentinel may wait for a log."
  (let ((pool (engine-pool-state engine)))
    (if (or (pool-state-clock-stopped-p pool)
            (not (eq (bt:current-thread) (sentinel-thread (engine-sentinel engine)))))
        (funcall function)
        (unwind-protect (progn (setf (pool-state-clock-stopped-p pool) t)
                               (funcall function))
          (resume-clock pool)))))

;;; Its rests

(defun next-deadline (engine)
  "The first deadline of a connection of ENGINE, in MILLISECONDS; NIL if there is none."
  (let ((first nil))
    (map-connections (lambda (connection)
                       (let ((deadline (connection-deadline connection)))
                         (when (and deadline (or (null first) (< deadline first)))
                           (setf first deadline))))
                     (engine-table engine))
    first))

(defun idle-wait-seconds (engine housekeeping)
  "The number of seconds for which the sentinel of ENGINE, whose last HOUSEKEEPING was at that
moment in MILLISECONDS, may wait: until the next deadline, but at least until the next
housekeeping, and at most *IDLE-TICK*."
  (if (or (accept-again-p (engine-accept-state engine))
          (thread-trouble-p engine)
          (not (running-p engine)))
      *tick*
      (let ((deadline (next-deadline engine))
            (now (milliseconds)))
        (if deadline
            (max 0
                 (/ (- (next-housekeeping housekeeping) now) 1000)
                 (min *idle-tick* (/ (- deadline now) 1000)))
            *idle-tick*))))

(defun idle-wait (engine housekeeping)
  "Waits until the sentinel is woken, at most as long as IDLE-WAIT-SECONDS says of HOUSEKEEPING.
True if a thread woke it, because no worker of ENGINE waits any more or a deadline comes soon."
  (let ((pool (engine-pool-state engine)))
    (setf (pool-state-clock-stopped-p pool) t
          (pool-state-sentinel-idle-p pool) t)
    ;; The last worker that waits first stops counting itself, and then reads SENTINEL-IDLE-P.  So
    ;; all threads must see that slot before the count is read here; otherwise each might miss the
    ;; other's write.  The same holds for a thread that sets an early deadline.
    (order-memory)
    (rest-until-woken engine (idle-wait-seconds engine housekeeping)
                      (lambda ()        ; no thread has woken it by now
                        (not (and (pool-state-sentinel-idle-p pool)
                                  (somebody-waits-p engine)))))
    (resume-clock pool)
    (not (shiftf (pool-state-sentinel-idle-p pool) nil))))

(defparameter *long-nap-ticks* 4
  "The length of a nap, in ticks, when no worker was missing for some looks.")

(defun rest-after-look (engine controller found)
  "Rests after a look at which ADJUST-POOL returned FOUND.  If a worker has ended an idle wait,
the next few looks follow closely, the first after requests had time to block."
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

;;; Processors

(defparameter *count-milliseconds* 20000
  "The sentinel counts the processors this often.")

(defun count-processors (engine controller now)
  "Counts the processors, if it is time NOW, and updates the floor of ENGINE.  Processors come
and go while we run, and the standby count may have changed."
  (when (> (- now (controller-last-processor-count controller)) *count-milliseconds*)
    (setf (controller-last-processor-count controller) now
          (controller-processors controller) (usable-processors)))
  (setf (pool-state-floor (engine-pool-state engine))
        (min (controller-processors controller) (engine-standby engine))))

;;; Its loop

(defun make-engine-controller (engine)
  "A controller for the sentinel of ENGINE."
  (make-controller (usable-processors) (milliseconds) (engine-decisions engine)))

(defmethod sentinel-loop ((engine ready-engine))
  (prepare-thread *sentinel-slack-microseconds*)
  (resume-clock (engine-pool-state engine))
  (let ((controller (make-engine-controller engine)))
    (flet ((housekeep () (housekeep-when-due engine controller))
           (see-to-workers ()
             (rest-after-look engine controller (adjust-pool engine controller))))
      (declare (dynamic-extent #'housekeep #'see-to-workers)) ; two thousand times a second
      (loop until (eq (engine-phase engine) :stopped)
            do (call-surviving engine :housekeeping #'housekeep)
               (clear-stack)            ; a rest must keep no connection alive
            unless (call-surviving engine :pool-size #'see-to-workers)
              ;; ADJUST-POOL may have failed before it set the clock.
              do (setf (pool-state-clock-stopped-p (engine-pool-state engine)) t)
                 (rest-until-woken engine *tick*)
                 (resume-clock (engine-pool-state engine)))))
  (setf (pool-state-clock-stopped-p (engine-pool-state engine)) t)) ; no tick follows
