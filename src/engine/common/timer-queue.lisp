(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; Timers: functions that a thread of an engine calls once, at a moment.
;;;;
;;;;   a timer is   its function   because
;;;;   pending      is there       its moment is to come, or no thread took it yet
;;;;   taken        gone           the thread that took it calls it
;;;;   cancelled    gone           a program no longer wants it
;;;;   dropped      gone           its engine stops, or had stopped before
;;;;
;;;; Each changes once, under the lock of the timers, from pending to one of the others.
;;;;
;;;; They are a heap, a binary tree in which none comes before the one above it.  Two trees become
;;;; one on a random way down, so that each way is short: 17 levels or so for 100,000 timers.  A
;;;; cancelled timer is taken out at once, and what is below it comes in its place.
;;;;
;;;;   engine    the alarm is                       its event comes to    functions are called by
;;;;   ready     a timer descriptor in the poller   a worker that waits   that worker, and others
;;;;                                                                      where one blocks
;;;;   blocking  a rest of the sentinel             the sentinel          a worker that it makes
;;;;                                                                      for it, in turn
;;;;
;;;;   Invariant: while a timer is pending, the alarm is set to a moment no later than the quantum
;;;;   after its deadline, or a thread that got the alarm or was called for it has yet to look.

(defconstant +never+ (1- (ash 1 61))
  "A moment after all others.")

(deftype moment ()
  "A moment of MICROSECONDS."
  '(unsigned-byte 62))

(defconstant +alarm-microseconds+ 250
  "The alarm is set to multiples of this, so that it rings once for all timers that are due in
between: an alarm interrupts a processor, which in a virtual machine costs as much as a small
request.  They are late by that much at most.")

(defstruct (timer (:include opaque) (:constructor make-timer (timers deadline function))
                  (:copier nil))
  "A function to be called once, at a moment.  SCHEDULE returns it."
  (timers nil :read-only t)
  (deadline 0 :type moment :read-only t)
  (function nil)
  ;; Its place in the heap.
  (above nil :type (or null timer))
  (left nil :type (or null timer))
  (right nil :type (or null timer)))

(defstruct (timers (:include opaque) (:constructor make-timers ()) (:copier nil))
  "The timers of an engine.  Those that are pending are FIRST and those below it."
  (lock (bt:make-lock "timers") :read-only t)
  (first nil :type (or null timer))
  (ways (make-random-state nil) :read-only t)
  (closed-p nil)                        ; new timers are dropped
  (alarm +never+ :type moment)          ; when it rings, or has rung last
  ;; Makes the alarm ring at a moment; a function of that, called under the lock, and never once the
  ;; timers are closed.  NIL before the start.
  (set-clock nil :type (or null function))
  ;; Statistics, since the start:
  (pending 0 :type fixnum)
  (run 0 :type fixnum)
  (failed 0 :type fixnum))

;;; Under the lock

(defun join-heaps (timers heap other above)
  "One heap, below ABOVE, of HEAP and OTHER, which are timers or NIL."
  (when (or (null heap)
            (and other (< (timer-deadline other) (timer-deadline heap))))
    (rotatef heap other))
  (when heap
    (when other
      (when (zerop (random 2 (timers-ways timers)))
        (rotatef (timer-left heap) (timer-right heap)))
      (setf (timer-left heap) (join-heaps timers (timer-left heap) other heap)))
    (setf (timer-above heap) above))
  heap)

(defun remove-timer (timers timer)
  "Takes TIMER out of TIMERS, and returns its function, which it no longer holds."
  (let* ((above (timer-above timer))
         (below (join-heaps timers (timer-left timer) (timer-right timer) above)))
    (cond ((null above) (setf (timers-first timers) below))
          ((eq timer (timer-left above)) (setf (timer-left above) below))
          (t (setf (timer-right above) below)))
    (setf (timer-above timer) nil
          (timer-left timer) nil
          (timer-right timer) nil)
    (decf (timers-pending timers))
    (shiftf (timer-function timer) nil)))

(defun set-alarm (timers)
  "Sets the alarm of TIMERS for the first of them."
  (let* ((first (timers-first timers))
         (moment (if first
                     (* +alarm-microseconds+ (ceiling (timer-deadline first) +alarm-microseconds+))
                     +never+)))
    (setf (timers-alarm timers) moment)
    (when (and first (timers-set-clock timers))
      (funcall (timers-set-clock timers) moment))))

;;; From any thread

(defun add-timer (timers deadline function)
  "Makes a timer for FUNCTION at DEADLINE one of TIMERS, and returns it; drops it if TIMERS are
closed."
  (let ((timer (make-timer timers deadline function)))
    (with-lock-briefly ((timers-lock timers))
      (cond ((timers-closed-p timers)
             (setf (timer-function timer) nil))
            (t
             (incf (timers-pending timers))
             (setf (timers-first timers) (join-heaps timers (timers-first timers) timer nil))
             (when (< deadline (timers-alarm timers))
               (set-alarm timers)))))
    timer))

(defun take-due-timer (timers now)
  "The function of the first of TIMERS if it is due at NOW, for the caller to call; else NIL.  The
second value is true if another one is due as well, which another thread has to take; otherwise the
alarm is set for the next."
  (declare (type moment now))
  (with-lock-briefly ((timers-lock timers))
    (flet ((due-p ()
             (let ((first (timers-first timers)))
               (and first (<= (timer-deadline first) now)))))
      (values (when (due-p)
                (incf (timers-run timers))
                (remove-timer timers (timers-first timers)))
              (cond ((due-p) t)
                    ((<= (timers-alarm timers) now)
                     (set-alarm timers)
                     nil))))))

(defun schedule (engine seconds function)
  "Has FUNCTION, a function without arguments or the name of one, called once, in a thread of
ENGINE, after SECONDS, a real of 0 or above, perhaps infinite.  The call comes no earlier, and about
a quarter of a millisecond later, so that timers that are due at about the same time share an alarm.
Returns a TIMER.  In the ready engine a worker calls FUNCTION, so it may block; in the blocking
engine one worker at a time calls all that are due.  Errors in FUNCTION are logged and counted.
When ENGINE stops, pending timers are dropped, and so are later ones.  Any thread may call this."
  (let ((seconds (rational (min seconds (/ (ash 1 60) 1000000)))))
    (add-timer (engine-timers engine) (+ (microseconds) (ceiling (* 1000000 seconds))) function)))

(defun cancel (timer)
  "Cancels TIMER: its function is never called, and no longer held.  True if TIMER was pending;
NIL if its function has begun already, or if it was cancelled or dropped before.  Any thread may
call this."
  (let ((timers (timer-timers timer)))
    (with-lock-briefly ((timers-lock timers))
      (when (timer-function timer)
        (remove-timer timers timer)
        t))))

(defun close-timers (timers)
  "Drops TIMERS, and those that are scheduled from now on.  Does nothing the second time."
  (with-lock-briefly ((timers-lock timers))
    (setf (timers-closed-p timers) t)
    ;; Longer than a lock is held otherwise, once in the life of an engine that ends.
    (loop while (timers-first timers)
          do (remove-timer timers (timers-first timers)))))

(defun run-timer (engine function)
  "Calls FUNCTION, of a timer of ENGINE.  An error is logged."
  (handler-case (interruptibly (funcall function))
    (serious-condition (condition)
      (with-lock-briefly ((timers-lock (engine-timers engine)))
        (incf (timers-failed (engine-timers engine))))
      (log-message engine :error "The function of a timer failed: ~A" condition))))
