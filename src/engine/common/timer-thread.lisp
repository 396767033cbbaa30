(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; The timer thread: an alarm clock where the system has none, and in the blocking engine the
;;;; thread that calls the functions.  Made when the first timer needs it.
;;;;
;;;;   ENGINE-TIMER-THREAD   means                                   becomes
;;;;   NIL                   nobody has needed it, or it has ended   :starting :missing
;;;;                         with the timers
;;;;   :missing              it is needed; it could not be made,     :starting
;;;;                         or died, and the sentinel makes one
;;;;   (:starting)           it is being made; each time another     a thread, :missing, NIL
;;;;                         list, so that nobody takes the thread
;;;;                         that ended for the next one
;;;;   a thread              it lives, or died without a word        :missing, NIL

(defun timer-thread-missing-p (engine)
  "True when ENGINE has no timer thread."
  (let ((thread (engine-timer-thread engine)))
    (or (member thread '(nil :missing))
        (and (bt:threadp thread) (not (bt:thread-alive-p thread))))))

(defun claim-timer-thread (engine)
  "A list when the caller is to make the timer thread of ENGINE, which counts as there from now on:
it stands in the place of that.  Else NIL."
  (with-engine (engine)
    (when (timer-thread-missing-p engine)
      (setf (engine-timer-thread engine) :missing)
      (when (may-launch-p engine)
        (setf (engine-timer-thread engine) (list :starting))))))

(defun record-timer-thread (engine claim thread)
  "Notes THREAD, which was made for CLAIM, as the timer thread of ENGINE.  It does so itself when it
begins; but if it is destroyed before that, somebody has to find out."
  (when (bt:threadp thread)             ; a program's method may return something else
    (with-engine (engine)
      (when (eq claim (engine-timer-thread engine))
        (setf (engine-timer-thread engine) thread)))))

(defun start-timer-thread (engine)
  "Makes the timer thread of ENGINE if that has none.  Where it cannot be made, the sentinel tries
again."
  (uninterruptibly
    (let ((claim (claim-timer-thread engine)))
      (when claim
        (handler-case (call-making-thread (lambda ()
                                            (make-engine-thread (engine-service engine) :timers
                                                                (lambda () (run-timer-thread engine)))))
          (error (condition)
            (with-engine (engine)
              (setf (engine-timer-thread engine) :missing))
            (note-thread-trouble engine condition))
          (:no-error (&optional thread &rest values)
            (declare (ignore values))
            (record-timer-thread engine claim thread)
            (forget-thread-trouble engine)))))))

(defun replace-timer-thread (engine)
  "Makes the timer thread of ENGINE that could not be made, or died.  Called by the sentinel."
  (when (and (engine-timer-thread engine)
             (timer-thread-missing-p engine)
             (not (timers-closed-p (engine-timers engine))))
    (start-timer-thread engine)))

(defun notify-timer-thread (engine)
  "Has the timer thread of ENGINE look at the alarm."
  (let ((timers (engine-timers engine)))
    (when (and (timer-thread-missing-p engine) (not (timers-closed-p timers)))
      (start-timer-thread engine))
    (with-timers (timers)
      (bt:condition-notify (timers-changed timers)))))

;;; Its life

(defparameter *longest-alarm-wait* 60
  "For how many seconds the timer thread waits at a time.")

(defun alarm-seconds (alarm now)
  "How long to wait, at NOW, for ALARM."
  (if (= alarm +never+)
      *longest-alarm-wait*
      (max 0 (min *longest-alarm-wait* (/ (- alarm now) 1000000)))))

(defun alarm-rings-p (timers)
  "True when the alarm of TIMERS rings.  Under the lock."
  (<= (timers-alarm timers) (microseconds)))

(defun await-alarm (timers)
  "Waits until the alarm of TIMERS rings, or they are closed."
  (wait-until (lambda () (or (timers-closed-p timers) (alarm-rings-p timers)))
              (timers-changed timers) (timers-lock timers)
              nil (lambda () (alarm-seconds (timers-alarm timers) (microseconds)))))

(defun take-alarm (timers)
  "True when the alarm of TIMERS, which are not closed, rings; for one caller, as with a timer
descriptor: that caller sees to the next time."
  (with-timers (timers)
    (when (and (not (timers-closed-p timers)) (alarm-rings-p timers))
      (setf (timers-alarm timers) +never+))))

(defun begin-timer-thread (engine)
  "Makes the current thread the timer thread of ENGINE, to whom the alarm rings at once: one that
died may have heard it, and done nothing."
  (with-engine (engine)
    (setf (engine-timer-thread engine) (bt:current-thread)))
  (with-timers ((engine-timers engine))
    (setf (timers-alarm (engine-timers engine)) 0)))

(defun end-timer-thread (engine)
  "The last act of the timer thread of ENGINE: the sentinel joins it, and, unless that was the end
of the timers, makes another."
  (let ((closed-p (timers-closed-p (engine-timers engine))))
    (with-engine (engine)
      (setf (engine-timer-thread engine) (if closed-p nil :missing))
      (push (bt:current-thread) (engine-exited-threads engine))
      (bt:condition-notify (engine-changed engine))
      (notify-sentinel engine)))
  (release-resources-when-empty engine))

(defun run-timer-thread (engine)
  "The life of the timer thread of ENGINE, until its timers are closed."
  (let ((*timed-engine* engine))
    (unwind-protect-whole
        (deferring-interrupts
          (begin-timer-thread engine)
          (loop with timers = (engine-timers engine)
                until (timers-closed-p timers)
                do (surviving-interrupts (engine)
                     (await-alarm timers))
                   ;; Not in there: an error of an interrupt must not cost an alarm.
                   (when (take-alarm timers)
                     (attend-timers engine))))
      (end-timer-thread engine))))

;;; The end of the timers

(defun timer-thread-gone-p (engine)
  "True when ENGINE has no timer thread, or the caller is in it."
  (or (timer-thread-missing-p engine)
      (eq (engine-timer-thread engine) (bt:current-thread))))

(defun alarm-in-use-p (engine)
  "True when somebody may still use what ENGINE, whose timers are closed, has for an alarm."
  (or (timers-setting (engine-timers engine))
      (not (timer-thread-missing-p engine))))

(defun await-end-of-timers (engine seconds)
  "Waits up to SECONDS, a real or NIL for no limit, until nobody uses the alarm of ENGINE, whose
timers are closed, and its timer thread has ended."
  (let ((timers (engine-timers engine)))
    ;; Who sets it is done in a moment.
    (wait-until (lambda () (not (timers-setting timers)))
                (timers-changed timers) (timers-lock timers) 5 1/1000))
  (wait-for-change engine seconds (lambda () (timer-thread-gone-p engine))))
