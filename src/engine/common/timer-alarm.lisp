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
  "Sets the alarm of ENGINE, as the caller was told to.  While it does, others may change their
minds about the moment; they leave it to the caller, who goes on until it was not changed."
  (let ((timers (engine-timers engine)) (done-p nil))
    (unwind-protect-whole
        (loop do (set-alarm-clock engine (timers-alarm timers))
              until (setf done-p (end-setting timers)))
      ;; Where interrupts cannot be deferred, its thread may be destroyed here; others go on.
      (unless done-p
        (with-timers (timers)
          (setf (timers-setting timers) nil))))))

;;; Scheduling

(defun delay-microseconds (seconds)
  "SECONDS, a real, as an integer; 0 for those below."
  (typecase seconds
    ;; Almost always; without consing.
    ((single-float 0f0 1000f0) (values (ceiling (* 1000000f0 seconds))))
    ((double-float 0d0 1000000d0) (values (ceiling (* 1000000d0 seconds))))
    (t (cond ((<= seconds 0) 0)
             ((>= (/ +most-microseconds+ 1000000) seconds) (values (ceiling (* 1000000 (rational seconds)))))
             (t +most-microseconds+)))))    ; infinity, for one

(defparameter *slack-divisor* 1024
  "A timer may be late by its delay divided by this.")

(defparameter *most-slack-microseconds* 4000
  "By how much it may be late for that reason at most.")

(defun deadline-after (delay now)
  "When a timer is due that is to wait for DELAY from NOW, all in microseconds."
  ;; The alarm interrupts a processor; in a virtual machine that costs as much as a small request.
  (let ((slack (min *most-slack-microseconds* (floor delay *slack-divisor*)))
        (deadline (+ now delay)))
    (if (< slack (* 2 *alarm-microseconds*))
        deadline
        (let ((grid (* *alarm-microseconds* (ash 1 (1- (integer-length (floor slack *alarm-microseconds*)))))))
          (* grid (ceiling deadline grid))))))

(defun enter-and-set-alarm (engine timer deadline)
  "Adds TIMER, due at DEADLINE, to those of ENGINE, and returns what ADD-TIMER does."
  ;; Who is to set the alarm is the only one to do so.
  (uninterruptibly
    (let ((next (add-timer (engine-timers engine) timer deadline)))
      (when (eq next :set)
        (set-alarm engine))
      next)))

(defun schedule (engine seconds function)
  "Has FUNCTION, a function without arguments or the name of one, called once, in a thread of
ENGINE, when SECONDS, a real, have passed: not before, and about a quarter of a millisecond later,
or up to a thousandth of SECONDS, but no more than four milliseconds; so those that are due at about
the same time share an alarm.  Returns a TIMER.  In the ready engine a worker calls it, so it may
block; in the blocking engine a thread that all timers of ENGINE share.  Errors in it are noted and
counted.  When ENGINE stops, what is pending is dropped and counted; so is what is scheduled then.
May be called in any thread."
  (let* ((timers (engine-timers engine))
         (timer (make-timer timers function))
         (deadline (deadline-after (delay-microseconds seconds) (microseconds))))
    (loop while (eq :full (enter-and-set-alarm engine timer deadline))
          do (grow-heap timers))
    timer))

(defun cancel (timer)
  "True when TIMER was pending, and is cancelled: its function is never called, and no longer held.
NIL when that has begun already, and when TIMER was cancelled or dropped before.  May be called in
any thread."
  (cancel-timer-of (timer-timers timer) timer))

;;; Calling what is due

(defun next-due-function (engine now)
  "The function of the timer of ENGINE that is due first, if one is at NOW: the caller's, which
defers interrupts, to be called.  Else NIL.  The second value is true when another one is due as
well; else the alarm is set for the next."
  (multiple-value-bind (function next) (take-due-timer (engine-timers engine) now)
    (when (eq next :set)
      (set-alarm engine))
    (values function (eq next :due))))

(defun run-timer (engine function)
  "Calls FUNCTION, of a timer of ENGINE, which cannot fail: neither by an error, which is noted, nor
by the end of the thread is more lost than what it had to do.  Where the thread was destroyed
before, another one calls it."
  (let ((begun-p nil) (done-p nil))
    (unwind-protect-whole
        (handler-case (progn (interruptibly
                               (setf begun-p t)
                               (funcall function))
                             (setf done-p t))
          (serious-condition (condition)
            (log-message engine :error "The function of a timer failed: ~A" condition)))
      (cond (done-p)
            (begun-p (count-failed-timer (engine-timers engine)))
            (t
             (uncount-run (engine-timers engine))
             (schedule engine 0 function))))))
