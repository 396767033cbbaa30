(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; The timer thread of the blocking engine waits for the alarm and calls the functions that are
;;;; due.  The sentinel makes it once the first timer needs it.  The ready engine has none: its
;;;; poller watches a timer descriptor.
;;;;
;;;;   TIMERS-THREAD   meaning
;;;;   NIL             no timer has needed it, or it has ended with the timers
;;;;   :missing        it is needed; the sentinel makes it
;;;;   the sentinel    the sentinel has made it, and it is to begin
;;;;   a thread        it lives, or has died

(defun timer-thread-missing-p (engine)
  "True if ENGINE has no timer thread."
  (let ((thread (timers-thread (engine-timers engine))))
    (or (member thread '(nil :missing))
        (and (bt:threadp thread) (not (bt:thread-alive-p thread))))))

(defun timer-thread-needed-p (engine)
  "True if the sentinel is to make the timer thread of ENGINE now."
  (and (timers-thread (engine-timers engine))
       (timer-thread-missing-p engine)
       (not (timers-closed-p (engine-timers engine)))
       (may-launch-p engine)))

(defun start-timer-thread (engine)
  "Makes the timer thread of ENGINE.  If that fails, the sentinel tries again later."
  (setf (timers-thread (engine-timers engine)) (bt:current-thread))
  (unless (thread-made-p engine
                         (lambda ()
                           (make-engine-thread (engine-service engine) :timers
                                               (lambda () (run-timer-thread engine)))))
    (setf (timers-thread (engine-timers engine)) :missing)))

(defun notify-timer-thread (engine)
  "Makes the timer thread of ENGINE look at the alarm."
  (let ((timers (engine-timers engine)))
    (when (timer-thread-missing-p engine)
      (with-engine (engine)
        (unless (timers-thread (engine-timers engine))
          (setf (timers-thread (engine-timers engine)) :missing))
        (notify-sentinel engine)))
    (with-timers (timers)
      (bt:condition-notify (timers-changed timers)))))

;;; Its life

(defparameter *longest-alarm-wait* 60
  "The timer thread waits for at most this number of seconds at a time.")

(defun alarm-seconds (alarm now)
  "The number of seconds to wait, at NOW, for ALARM."
  (if (= alarm +never+)
      *longest-alarm-wait*
      (max 0 (min *longest-alarm-wait* (/ (- alarm now) 1000000)))))

(defun alarm-rings-p (timers)
  "True if the alarm of TIMERS rings.  Call it with the lock held."
  (<= (timers-alarm timers) (microseconds)))

(defun await-alarm (timers)
  "Waits until the alarm of TIMERS rings, or TIMERS are closed."
  (wait-until (lambda () (or (timers-closed-p timers) (alarm-rings-p timers)))
              (timers-changed timers) (timers-lock timers)
              nil (lambda () (alarm-seconds (timers-alarm timers) (microseconds)))))

(defun take-alarm (timers)
  "True if TIMERS are open and their alarm rings.  The alarm is off then; the caller sees to the
next one."
  (with-timers (timers)
    (when (and (not (timers-closed-p timers)) (alarm-rings-p timers))
      (setf (timers-alarm timers) +never+))))

(defun end-timer-thread (engine)
  "The last act of the timer thread of ENGINE.  The sentinel joins it, and makes another one unless
the timers have ended."
  (let ((closed-p (timers-closed-p (engine-timers engine))))
    (with-engine (engine)
      (setf (timers-thread (engine-timers engine)) (if closed-p nil :missing))
      (push (bt:current-thread) (threads-exited (engine-threads engine)))
      (bt:condition-notify (engine-changed engine))
      (notify-sentinel engine)))
  (release-resources-when-empty engine))

(defun run-timer-thread (engine)
  "The life of the timer thread of ENGINE, until the timers are closed."
  (let ((*timed-engine* engine))
    (unwind-protect-whole
        (noting-end (engine)
          (with-engine (engine)
            (setf (timers-thread (engine-timers engine)) (bt:current-thread)))
          ;; The alarm rings at once: a function may have ended the last thread.
          (with-timers ((engine-timers engine))
            (setf (timers-alarm (engine-timers engine)) 0))
          (loop with timers = (engine-timers engine)
                until (timers-closed-p timers)
                do (interruptibly (await-alarm timers))
                   (when (take-alarm timers)
                     (loop for function = (next-due-function engine (microseconds))
                           while function
                           do (run-timer engine function)))))
      (end-timer-thread engine))))

;;; The end of the timers

(defun alarm-in-use-p (engine)
  "True if a thread may still use the alarm of ENGINE, whose timers are closed."
  (or (timers-setting (engine-timers engine))
      (not (timer-thread-missing-p engine))))

(defun await-end-of-timers (engine seconds)
  "Waits up to SECONDS, a real or NIL for no limit, until no thread uses the alarm of ENGINE, whose
timers are closed, and its timer thread has ended."
  (let ((timers (engine-timers engine)))
    ;; A thread that sets the alarm is done in a moment.
    (wait-until (lambda () (not (timers-setting timers)))
                (timers-changed timers) (timers-lock timers) 5 1/1000))
  (wait-for-change engine seconds (lambda ()
                                     (or (timer-thread-missing-p engine)
                                         (eq (timers-thread (engine-timers engine))
                                             (bt:current-thread))))))
