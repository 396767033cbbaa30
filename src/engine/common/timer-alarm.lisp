(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; Between the timers and their engine: how the alarm is set, and how functions are called.
;;;;
;;;;   engine    the alarm is                       its event comes to    functions are called by
;;;;   ready     a timer descriptor in the poller   a worker that waits   that worker, and others
;;;;                                                                      where one blocks
;;;;   blocking  the timer thread                   that thread           that thread, in turn

(defgeneric set-alarm-clock (engine moment)
  (:documentation "Makes the alarm of ENGINE ring at MOMENT, and not before.  One thread at a time
calls it, and none after the engine's timers have ended.")
  (:method ((engine engine) moment)
    (declare (ignore moment))           ; the thread reads it from the timers
    (notify-timer-thread engine)))

(defun set-alarm (engine)
  "Sets the alarm of ENGINE.  Only a caller that was asked to may call it.  If other threads move
the alarm meanwhile, this one sets it again."
  (loop with timers = (engine-timers engine)
        do (set-alarm-clock engine (timers-alarm timers))
        until (end-setting timers)))

;;; Scheduling

(defun delay-microseconds (seconds)
  "SECONDS, a real, in microseconds, an integer; 0 for those below."
  (typecase seconds
    ;; Almost always; without consing.
    ((single-float 0f0 1000f0) (values (ceiling (* 1000000f0 seconds))))
    ((double-float 0d0 1000000d0) (values (ceiling (* 1000000d0 seconds))))
    (t (cond ((<= seconds 0) 0)
             ((>= (/ +most-microseconds+ 1000000) seconds)
              (values (ceiling (* 1000000 (rational seconds)))))
             (t +most-microseconds+)))))    ; infinity, for one

(defparameter *slack-divisor* 1024
  "A timer may be late by its delay divided by this number.")

(defparameter *most-slack-microseconds* 4000
  "The most by which a timer may be late because of its delay.")

(defun deadline-after (delay now)
  "The deadline of a timer with DELAY from NOW, all in microseconds."
  ;; The alarm interrupts a processor; in a virtual machine that costs as much as a small request.
  (let ((slack (min *most-slack-microseconds* (floor delay *slack-divisor*)))
        (deadline (+ now delay)))
    (if (< slack (* 2 *alarm-microseconds*))
        deadline
        (let* ((quanta (floor slack *alarm-microseconds*))
               (grid (* *alarm-microseconds* (ash 1 (1- (integer-length quanta))))))
          (* grid (ceiling deadline grid))))))

(defun enter-and-set-alarm (engine timer deadline)
  "Adds TIMER, due at DEADLINE, to those of ENGINE, and sets the alarm if needed.  Returns the
value of ADD-TIMER."
  ;; No other thread would set the alarm.
  (uninterruptibly
    (let ((next (add-timer (engine-timers engine) timer deadline)))
      (when (eq next :set)
        (set-alarm engine))
      next)))

(defun schedule (engine seconds function)
  "Has FUNCTION, a function without arguments or the name of one, called once, in a thread of
ENGINE, after SECONDS, a real.  The call comes no earlier, and about a quarter of a millisecond
later, or up to a thousandth of SECONDS, but no more than four milliseconds; so timers that are
due at about the same time share an alarm.  Returns a TIMER.  In the ready engine a worker calls
FUNCTION, so it may block; in the blocking engine a thread that all timers of ENGINE share.
Errors in FUNCTION are logged and counted.  When ENGINE stops, pending timers are dropped and
counted, and so are later ones.  Any thread may call this."
  (let* ((timers (engine-timers engine))
         (timer (make-timer timers function))
         (deadline (deadline-after (delay-microseconds seconds) (microseconds))))
    (loop while (eq :full (enter-and-set-alarm engine timer deadline))
          do (grow-heap timers))
    timer))

(defun cancel (timer)
  "Cancels TIMER: its function is never called, and no longer held.  True if TIMER was pending;
NIL if its function has begun already, or if it was cancelled or dropped before.  Any thread may
call this."
  (cancel-timer-of (timer-timers timer) timer))

;;; The pool's proof that it serves

(defgeneric call-when-pool-serves (engine function)
  (:documentation "Has FUNCTION, a function without arguments, called once, in a thread of ENGINE,
when the pool of ENGINE has shown since this call that it can serve a request; never if it does not,
or if ENGINE stops before.  Returns at once.  Any thread may call this."))

;;; Calling due functions

(defun next-due-function (engine now)
  "The function of the first timer of ENGINE that is due at NOW, for the caller, which defers
interrupts, to call; else NIL.  The second value is true if another one is due as well; otherwise
the alarm is set for the next."
  (multiple-value-bind (function next) (take-due-timer (engine-timers engine) now)
    (when (eq next :set)
      (set-alarm engine))
    (values function (eq next :due))))

(defun run-timer (engine function)
  "Calls FUNCTION, of a timer of ENGINE.  An error is logged."
  (let ((done-p nil))
    (unwind-protect (handler-case (progn (interruptibly (funcall function))
                                         (setf done-p t))
                      (serious-condition (condition)
                        (log-message engine :error "The function of a timer failed: ~A"
                                     condition)))
      (unless done-p
        (count-failed-timer (engine-timers engine))))))
